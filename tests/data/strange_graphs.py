"""Files of edges as other programs write them, at random, with the edges that they mean."""

import csv
import datetime
import gzip
import io
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

START = 1_600_000_000
HEADERS = {
    2: [("source", "target"), ("src", "dst"), ("from_id", "to_id"), ("FromNodeId", "ToNodeId"), ("u", "v"),
        ("id_1", "id_2"), ("node1", "node2"), ("Source", "Target"), ("user", "item"), ("follower", "followee")],
    3: [("head", "relation", "tail"), ("h", "r", "t"), ("S", "P", "O"), ("subject", "predicate", "object"),
        ("source", "type", "target"), (":START_ID", ":TYPE", ":END_ID"), ("head_id", "rel", "tail_id"),
        ("subject_id", "predicate", "object_id"), ("from", "relationship", "to")],
}  # fmt: skip
UNKNOWN = {2: [("person", "friend"), ("paper", "reference")], 3: [("person", "feels", "thing"), ("a", "b", "c")]}


@dataclass
class Strange:
    """A file, its edges as texts or integers, [n, 2 or 3], and what its other columns are called in messages."""

    path: object
    edges: list
    others: list = field(default_factory=list)


def _names(draw, count):
    """A form for the names of so many nodes, and the names."""
    forms = [
        "n{}", "Q{}", "http://example.org/resource/{}", "/m/0{:x}", "{:08d}", "Node {}", "Zürich {}", "{}.n.01",
        "#tag{}", "Doe, John {}", 'the "{}"', "a;b{}", "{}", "{}", "{}", "person {} of many", "x|{}", "'{}'", "@{}",
    ]  # fmt: skip
    form = str(draw.choice(np.array(forms, object)))
    first = int(draw.choice([0, 1, 1000]))
    return [form.format(first + number) for number in range(count)]


def _edges(draw, rows):
    """Edges of one of several kinds of graphs."""
    count = int(draw.choice([60, 300, 1500]))
    nodes = _names(draw, count)
    shape = draw.choice(["random", "hubs", "sorted", "two kinds", "chain"])
    heads, tails = draw.integers(0, count, rows), draw.integers(0, count, rows)
    if shape == "hubs":
        tails = np.minimum(draw.zipf(1.6, rows) - 1, count - 1)
    if shape == "sorted":
        heads = np.sort(heads)
    if shape == "two kinds":
        heads, tails = heads % (count // 2), count // 2 + tails % (count // 2)
    if shape == "chain":
        tails = (heads + draw.integers(1, 4, rows)) % count
    edges = [[nodes[head], nodes[tail]] for head, tail in zip(heads, tails, strict=True)]
    if draw.random() < 0.5:
        many = int(draw.choice([1, 3, 11, 40]))
        kinds = [str(draw.choice(["r{}", "likes {}", "/people/person/{}", "_hypernym{}", "{}"])).format(each)
                 for each in range(many)]  # fmt: skip
        if nodes[0].isdecimal() and draw.random() < 0.5:
            kinds = [str(each) for each in range(many)]
        chosen = np.minimum(draw.zipf(1.5, rows) - 1, many - 1) if draw.random() < 0.5 else draw.integers(0, many, rows)
        edges = [[head, kinds[kind], tail] for (head, tail), kind in zip(edges, chosen, strict=True)]
    return edges


def _other(draw, rows):
    """A further column: its name and values."""
    seconds = START + np.cumsum(draw.integers(0, 900, rows))
    if draw.random() < 0.3:
        seconds = draw.permutation(seconds)
    days = [datetime.datetime.fromtimestamp(int(at), datetime.UTC) for at in seconds]
    kinds = {
        "weight": [f"{each:.3f}" for each in draw.random(rows)],
        "score": [f"{each:.2e}" for each in draw.random(rows)],
        "count": [str(each) for each in draw.poisson(3, rows) + 1],
        "sign": [str(each) for each in draw.choice([-1, 1], rows)],
        "value": ["1.0"] * rows,
        "time": [str(each) for each in seconds],
        "timestamp": [str(each * 1000 + 7) for each in seconds],
        "ts": [str(each * 10**6) for each in seconds],
        "datetime": [each.isoformat() for each in days],
        "date": [f"{each:%Y-%m-%d}" for each in days],
        "created": [f"{each:%Y-%m-%d %H:%M:%S}" for each in days],
        "year": [str(1950 + int(each) % 70) for each in seconds],
    }
    name = str(draw.choice(list(kinds)))
    return name, kinds[name]


def write_graph(folder, seed, rows):
    """Writes the graph of this number."""
    draw = np.random.default_rng(10_000 + seed)
    if draw.random() < 0.25:
        return _write_arrays(draw, folder, seed, rows)
    edges = _edges(draw, rows)
    width = len(edges[0])
    header = draw.choice(["known", "known", "none", "none", "none", "unknown"])
    columns = [list(each) for each in zip(*edges, strict=True)]
    pool = HEADERS if header != "unknown" else UNKNOWN
    names = list(pool[width][draw.integers(len(pool[width]))])
    order = list(range(width))
    if width == 3 and draw.random() < 0.15:
        order = [[0, 2, 1], [1, 0, 2]][draw.integers(2)]
    columns, names, others = [columns[each] for each in order], [names[each] for each in order], []
    if draw.random() < 0.35:
        name, values = _other(draw, rows)
        if name not in map(str.lower, names):
            others.append(f"'{name}'" if header != "none" else f"column {width}")
            columns, names = [*columns, values], [*names, name]
    if draw.random() < 0.2:
        return _write_parquet(folder, seed, edges, columns, names, others)
    if width == 3 and not others and draw.random() < 0.1 and all(each.isdecimal() for row in edges for each in row):
        return _write_openke(draw, folder, seed, edges)
    return _write_text(draw, folder, seed, edges, columns, names if header != "none" else None, others)


def _write_text(draw, folder, seed, edges, columns, names, others):
    texts = [text for column in columns for text in (column[0], column[-1])]
    possible = [mark for mark in "\t\t\t,,,;| " if mark in ",\t" or not any(mark in text for text in texts)]
    mark = str(draw.choice(possible))
    quoting = csv.QUOTE_ALL if draw.random() < 0.2 and mark != " " else csv.QUOTE_MINIMAL
    end = str(draw.choice(["\n", "\n", "\r\n"]))
    out = io.StringIO()
    lines = zip(*columns, strict=True)
    if mark == "\t" and quoting != csv.QUOTE_ALL:  # as a TSV is written: without quotes
        rows = ["\t".join(line) for line in ([names] * bool(names) + list(lines))]
    else:
        writer = csv.writer(out, delimiter=mark, quoting=quoting, lineterminator="\n")
        writer.writerows([names] * bool(names) + list(lines))
        rows = out.getvalue().splitlines()
    if mark == " " and draw.random() < 0.3:
        rows = [f" {row.replace(' ', '   ')}" for row in rows]
    if mark == "," and quoting == csv.QUOTE_MINIMAL and '"' not in "".join(rows) and draw.random() < 0.15:
        rows = [row.replace(",", ", ") for row in rows] if not any("," in text for text in texts) else rows
    if draw.random() < 0.2:
        rows = [f"# Nodes: {len(edges)} Edges: {len(edges)}", f"# From{mark}To", *rows]
    elif not names and draw.random() < 0.05:
        rows = [f"#source{mark}target", *rows]
    if draw.random() < 0.1:
        rows.insert(len(rows) // 2, "")
    suffixes = {"\t": ["tsv", "txt", "tab", "edges"], ",": ["csv", "csv", "txt", "edges"]}
    suffix = suffixes.get(mark, ["csv", "txt", "dat"])
    content = ("\ufeff" * (draw.random() < 0.1) + end.join(rows) + end * (draw.random() < 0.9)).encode()
    zipped = draw.random() < 0.2
    path = folder / f"g{seed}.{draw.choice(suffix)}{'.gz' * zipped}"
    path.write_bytes(gzip.compress(content, mtime=0) if zipped else content)
    return Strange(path, edges, others)


def _write_openke(draw, folder, seed, edges):
    path = folder / f"{draw.choice(['train2id', 'edges'])}-{seed}.txt"
    mark = str(draw.choice([" ", "\t"]))
    path.write_text(f"{len(edges)}\n" + "".join(f"{h}{mark}{t}{mark}{r}\n" for h, r, t in edges))
    return Strange(path, edges)


def _write_parquet(folder, seed, edges, columns, names, others):
    made = {name: pa.array(column) for name, column in zip(names, columns, strict=True)}
    for name, values in made.items():
        if others and f"'{name}'" == others[0] and "." in str(values[0]) and "T" not in str(values[0]):
            made[name] = values.cast(pa.float64())
    pq.write_table(pa.table(made), folder / f"g{seed}.parquet")
    return Strange(folder / f"g{seed}.parquet", edges, [f"'{names[-1]}'"] if others else [])


def _write_arrays(draw, folder, seed, rows):
    count, many = int(draw.choice([60, 1500])), int(draw.choice([0, 0, 3, 40]))
    kind = np.int32 if draw.random() < 0.3 else np.int64
    ends = draw.integers(0, count, (rows, 2)).astype(kind)
    kinds = draw.integers(0, many or 1, rows).astype(kind)
    edges = np.stack([ends[:, 0], kinds, ends[:, 1]], 1) if many else ends
    form = draw.choice(["rows", "fortran", "turned", "npz", "packed"])
    path = folder / f"g{seed}.npy"
    if form in ("npz", "packed"):
        save = np.savez if form == "npz" else np.savez_compressed
        path = path.with_suffix(".npz")
        save(path, x=np.ones((count, 2)), edge_index=ends.T, **({"edge_type": kinds} if many else {}))
    elif form == "turned":
        edges = ends
        np.save(path, np.ascontiguousarray(ends.T))
    else:
        np.save(path, np.asfortranarray(edges) if form == "fortran" else edges)
    return Strange(path, edges.tolist())
