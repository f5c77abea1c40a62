"""Changes of files with their structure in mind: what a type, a length, an order or a number could be instead."""

import io
import json
import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

NUMBERS = (0, -1, 1, 2, 7, 2**31 - 1, 2**31, 2**32, 2**53, 2**62, 2**63 - 1, 2**63, -(2**63), 10**30,
           0.5, -0.0, 1e308, 1e-320, float("nan"), float("inf"))  # fmt: skip
TEXTS = ("", ".", "..", "../x", "../../../../x", "/etc/passwd", "/dev/zero", "a/b", "\0", "x" * 5000, "\ud800", "\n",
         "'", "train", "-1", "é", "nan", "{}", "1e999")  # fmt: skip
DTYPES = ("<i4", "<i8", "<u8", "<f4", "<f8", ">i4", ">i8", ">f4", "<i2", "|u1", "<f2", "|b1", "<c8", "<U3", "<M8[s]")


def change(path: Path, chance: random.Random) -> str:
    """Changes a file in one way; says which."""
    kinds = {".json": _json, ".npy": _npy, ".parquet": _parquet, ".yaml": _yaml, ".jsonl": _lines, ".tsv": _text,
             ".csv": _text, ".safetensors": _tensors, ".pages": _pages}  # fmt: skip
    ways = [kinds.get(path.suffix, _bytes)] * 9 + [_bytes]
    return chance.choice(ways)(path, chance)


def _value(chance: random.Random):
    other = chance.randrange(8)
    if other == 0:
        return chance.choice((None, True, False))
    if other == 1:
        return chance.choice(([], {}, [[]], {"a": {}}, [1, 2, 3], {"x": "../x"}))
    if other == 2:
        nested: object = 1
        for _ in range(chance.choice((5, 40, 300))):
            nested = [nested] if chance.random() < 0.5 else {"a": nested}
        return nested
    return chance.choice(NUMBERS if other < 6 else TEXTS)


def _places(tree, path=()):
    yield path
    children = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, child in children:
        yield from _places(child, (*path, key))


def _changed_tree(tree, chance: random.Random):
    """A tree with one change, and what it was."""
    *parents, last = chance.choice([path for path in _places(tree) if path] or [("a",)])
    here = tree
    for part in parents:
        here = here[part]
    way = chance.choice(("set", "set", "set", "scale", "remove", "repeat", "empty", "rename"))
    old = here[last] if isinstance(here, list) or last in here else None
    if way == "remove":
        del here[last]
    elif way == "repeat" and isinstance(here, list):
        here.extend(here * chance.choice((1, 100)))
    elif way == "empty" and isinstance(old, list | dict):
        old.clear()
    elif way == "rename" and isinstance(here, dict):
        here[chance.choice(TEXTS)] = here.pop(last)
    elif way == "scale" and isinstance(old, int | float) and not isinstance(old, bool):
        here[last] = chance.choice((old + 1, old - 1, -old, old * 2, old * 10**6, float(old), str(old)))
    else:
        here[last] = _value(chance)
    return f"{way} {'.'.join(map(str, (*parents, last)))}: {str(here)[:80]!r}"


def _json(path: Path, chance: random.Random) -> str:
    tree = json.loads(path.read_text())
    if chance.random() < 0.05 or not isinstance(tree, dict | list):
        path.write_text(json.dumps(_value(chance)))
        return "another value"
    said = _changed_tree(tree, chance)
    path.write_bytes(json.dumps(tree).encode())
    return said


def _yaml(path: Path, chance: random.Random) -> str:
    tree = yaml.safe_load(path.read_text())
    said = _changed_tree(tree, chance)
    path.write_text(yaml.safe_dump(tree, sort_keys=False, allow_unicode=True), "utf-8", "replace")
    return said


def _lines(path: Path, chance: random.Random) -> str:
    lines = path.read_text().splitlines()
    at = chance.randrange(len(lines))
    tree = json.loads(lines[at])
    said = _changed_tree(tree, chance)
    lines[at] = json.dumps(tree)
    path.write_text("\n".join(lines) + "\n")
    return f"line {at}: {said}"


def _npy(path: Path, chance: random.Random) -> str:
    array = np.load(path)
    way = chance.choice(("numbers", "numbers", "numbers", "numbers", "order", "type", "shape", "header", "object"))
    if way == "numbers" and array.size:
        array = array.copy()
        flat = array.reshape(-1)
        at = chance.choice((0, -1, chance.randrange(flat.size), slice(None)))
        number = chance.choice([*NUMBERS, int(flat.size), flat.flat[0] + 1])
        with np.errstate(all="ignore"):
            flat[at] = np.float64(number) if array.dtype.kind == "f" else _wrapped(number, array.dtype)
        way = f"numbers {at} = {number}"
    elif way == "order":
        array = chance.choice((array[::-1], np.roll(array, 1, 0), np.sort(array, axis=0), np.asfortranarray(array)))
    elif way == "type":
        dtype = chance.choice(DTYPES)
        way = f"type {dtype}"
        with np.errstate(all="ignore"):
            array = array.astype(dtype) if chance.random() < 0.7 else np.zeros(array.shape, dtype)
    elif way == "shape":
        shapes = [array[:0], array[:-1], array[:1], array.reshape(-1), array[None], np.concatenate([array, array])]
        shapes += [array[:, :1], array.T] if array.ndim > 1 else [array.reshape(-1, 1)]
        array = chance.choice(shapes)
        way = f"shape {array.shape}"
    elif way == "object":
        array = np.array([None, "x"], object)
    out = io.BytesIO()
    np.save(out, array, allow_pickle=True)
    content = out.getvalue()
    if way == "header":
        old = repr(array.shape).encode()
        new = repr(chance.choice([(2**40,), (-1,), (array.size * 2,), (0, 2**40), (2**32, 2**32), ()])).encode()
        content = content.replace(old, new[: len(old)].ljust(len(old)) if chance.random() < 0.5 else new, 1)
        content = content[: chance.choice((8, 60, len(content), len(content) - 1))]
    path.write_bytes(content)
    return way


def _wrapped(number, dtype):
    if number != number or abs(number) == float("inf"):
        number = 0
    bits = 8 * dtype.itemsize
    number = int(number) % (1 << bits)
    return np.array(number, f"u{dtype.itemsize}").view(dtype) if dtype.kind in "iu" else number


def _parquet(path: Path, chance: random.Random) -> str:
    table = pq.read_table(path)
    name = chance.choice(table.column_names)
    at, column = table.column_names.index(name), table.column(name)
    odd, whole = chance.choice(("", "\0", "a\nb", "-1")), chance.choice(NUMBERS[:8])
    ways = {
        "no column": lambda: table.remove_column(at),
        "no rows": lambda: table.slice(0, 0),
        "fewer rows": lambda: table.slice(0, max(1, len(table) - 1)),
        "repeated rows": lambda: pa.concat_tables([table, table]),
        "nulls": lambda: table.set_column(at, name, pa.nulls(len(table), column.type)),
        "typeless": lambda: table.set_column(at, name, pa.nulls(len(table))),
        "dictionary": lambda: table.set_column(at, name, column.dictionary_encode()),
        "integers": lambda: table.set_column(at, name, pa.array([whole] * len(table), pa.float64())),
        "huge integers": lambda: table.set_column(at, name, pa.array([2**64 - 1] * len(table), pa.uint64())),
        "floats": lambda: table.set_column(at, name, pa.array([chance.choice(NUMBERS[14:])] * len(table))),
        "bytes": lambda: table.set_column(at, name, pa.array([b"\xff\xfe"] * len(table))),
        "long texts": lambda: table.set_column(at, name, pa.array(["x" * 70_000] * len(table)).dictionary_encode()),
        "odd texts": lambda: table.set_column(at, name, pa.array([odd] * len(table))),
        "lists": lambda: table.set_column(at, name, pa.array([[1]] * len(table))),
        "nested": lambda: table.set_column(at, name, pa.array([[[1]]] * len(table))),
        "ragged": lambda: table.set_column(at, name, pa.array([[1.0] * (i % 3) for i in range(len(table))])),
        "structs": lambda: table.set_column(at, name, pa.array([{"a": 1}] * len(table))),
        "times": lambda: table.set_column(at, name, pa.array([1] * len(table), pa.timestamp("us"))),
        "twice": lambda: table.append_column(name, column),
        "another name": lambda: table.rename_columns([chance.choice(TEXTS[:10] + ("ä",)) if each == name else each
                                                      for each in table.column_names]),
    }  # fmt: skip
    way = chance.choice(sorted(ways))
    pq.write_table(ways[way](), path, compression=chance.choice(("none", "zstd", "snappy")))
    return f"{way} in {name}"


def _text(path: Path, chance: random.Random) -> str:
    lines = path.read_bytes().split(b"\n")
    at = chance.randrange(max(1, len(lines) - 1))
    mark = b"\t" if path.suffix == ".tsv" else b","
    fields = lines[at].split(mark)
    way = chance.choice(("field", "field", "field", "more", "fewer", "join", "none", "return", "long"))
    place = chance.randrange(len(fields))
    if way == "field":
        texts = [str(each).encode("utf-8", "replace") for each in (*NUMBERS, *TEXTS)] + [
            b'"',
            b'"a',
            b"\xff",
            b"0x1",
            b"1_0",
        ]
        fields[place] = chance.choice(texts)
    elif way in ("more", "fewer"):
        fields = fields * 2 if way == "more" else fields[:-1]
    elif way == "long":
        fields[place] = b"y" * chance.choice((70_000, 5_000_000))
    lines[at] = mark.join(fields)
    if way == "join":
        lines[at : at + 2] = [b"".join(lines[at : at + 2])]
    elif way == "none":
        lines = chance.choice(([], [b""], lines[:1], [b"\n"] * 5))
    elif way == "return":
        lines[at] = lines[at].replace(mark, mark + b"\r", 1)
    path.write_bytes(b"\n".join(lines))
    return f"{way} in line {at}"


def _tensors(path: Path, chance: random.Random) -> str:
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    said = _changed_tree(header, chance) if header else "a header"
    if chance.random() < 0.3:
        header, said = {"x": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}}, "another tensor"
    text = json.dumps(header).encode()
    size = chance.choice((len(text), len(text), len(text), 2**62, 0, len(text) + 1))
    path.write_bytes(size.to_bytes(8, "little") + text + content[8 + int.from_bytes(content[:8], "little") :])
    return said


def _pages(path: Path, chance: random.Random) -> str:
    """Pages have checksums of their own, which stand beside their slots: without these this is damage."""
    content = bytearray(path.read_bytes())
    at = 8 * chance.randrange(len(content) // 8)
    content[at : at + 8] = (chance.choice((1, 2**63 - 1, 2**40)) % 2**64).to_bytes(8, "little")
    path.write_bytes(content)
    return f"word {at}"


def _bytes(path: Path, chance: random.Random) -> str:
    content = bytearray(path.read_bytes())
    way = chance.choice(("cut", "flip", "empty", "longer", "zeros"))
    at = chance.randrange(max(1, len(content)))
    if way == "cut":
        content = content[:at]
    elif way == "flip" and content:
        content[at] ^= 1 << chance.randrange(8)
    elif way == "longer":
        content += bytes(chance.choice((1, 5000)))
    elif way == "zeros":
        content[at : at + 64] = bytes(len(content[at : at + 64]))
    path.write_bytes(b"" if way == "empty" else content)
    return f"{way} at {at}"
