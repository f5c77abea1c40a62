"""Click logs as other programs write them, at random, with what each column is: which values rows share, which numbers
they have, or that it is no feature."""

import bz2
import csv
import datetime
import gzip
import io
import json
import lzma
import uuid
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

PACKED = {"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress,
          ".zst": lambda data: pa.compress(data, "zstd", asbytes=True)}  # fmt: skip
DAY = 1_600_000_000


@dataclass
class Column:
    """What a column is: "id", "bag", "number", "label" or "nothing"; its value in each row, None: missing; and what is
    written."""

    name: str
    role: str
    values: list
    written: list
    kind: pa.DataType | None = None


def _texts(form):
    return lambda values: ["" if value is None else form.format(value) for value in values]


def _grouped(value):
    return f"{value:,.2f}"


def _ids(draw, rows):
    count = int(draw.choice([8, 60, 400]))
    name = draw.choice(["user_id", "itemId", "ad_id", "campaign", "device", "site_id", "CategoryID"])
    ids = [int(each) for each in draw.integers(1, count + 1, rows)]
    if draw.random() < 0.2:
        ids = [None if draw.random() < 0.1 else each for each in ids]
    return name, ids


def ids_of_texts(draw, rows):
    name, ids = _ids(draw, rows)
    form = draw.choice(["{}", "{}.0", "u{}", "{:06d}", " {} ", "{:08x}", "{:+d}", "b'{}'"])
    return Column(name, "id", ids, _texts(form)(ids))


def ids_of_parquet(draw, rows):
    name, ids = _ids(draw, rows)
    kind = draw.choice(["int64", "int32", "uint64", "double", "decimal", "string", "binary", "fixed", "dictionary"])
    if kind in ("string", "binary", "fixed", "dictionary"):
        texts = [None if each is None else f"k{each:05d}" for each in ids]
        made = pa.array(texts)
        kind = {"binary": pa.binary(), "fixed": pa.binary(6), "dictionary": pa.dictionary(pa.int32(), pa.string())}.get(
            kind
        )
        return Column(name, "id", ids, made.cast(pa.binary()).cast(kind) if kind == pa.binary(6) else made, kind)
    if kind == "uint64":
        return Column(name, "id", ids, [None if each is None else each + 2**63 for each in ids], pa.uint64())
    types = {"int64": pa.int64(), "int32": pa.int32(), "double": pa.float64(), "decimal": pa.decimal128(24, 2)}
    return Column(name, "id", ids, pa.array(ids).cast(types[kind]), types[kind])


def hashes(draw, rows):
    pool = draw.integers(0, 2**63 - 1, 50)
    ids = [int(each) for each in draw.choice(pool, rows)]
    return Column(draw.choice(["cookie", "hash", "visitor"]), "id", ids, ids, pa.int64())


def codes(draw, rows):
    name, low, count = [("occupation", 0, 21), ("weekday", 0, 7), ("zone", 1, 260), ("type", 1, 12)][draw.integers(4)]
    ids = [int(each) for each in draw.integers(low, low + count, rows)]
    return Column(name, "id", ids, ids, pa.int64())


def words(draw, rows):
    pool = [["red", "dark blue", "green"], ["True", "False"], ["Y", "N"], ["New York, NY", "Paris", "Rome"],
            ["a", "NULL", "b"], ["mobile", "desktop"]][draw.integers(6)]  # fmt: skip
    values = [str(each) for each in draw.choice(pool, rows)]
    return Column(draw.choice(["color", "kind_of", "segment", "place"]), "id", values, values)


def _prices(draw, rows):
    name = draw.choice(["price", "amount", "bid", "value"])
    prices = np.round(np.exp(draw.normal(5, 2, rows)), 2).tolist()
    return name, [None if draw.random() < 0.03 else each for each in prices] if draw.random() < 0.3 else prices


def prices_of_texts(draw, rows):
    name, prices = _prices(draw, rows)
    form = draw.choice(
        ["{:.2f}", "${:.2f}", "${:,.2f}", "{:,.2f}", "{:.2f}€", "{:.2f} EUR", "{:.1f}%", "{:.3e}", "{:.2f} kg"]
    )
    written = _texts(form)(prices)
    if form in ("{:.1f}%", "{:.3e}"):
        prices = [None if each is None else float(form.rstrip("%").format(each)) for each in prices]
    odd = draw.choice(["", "-", "unknown", "N/A", "--", "not set"]) if draw.random() < 0.2 else ""
    if odd:
        gone = draw.random(rows) < 0.02
        written = [odd if out else each for each, out in zip(written, gone, strict=True)]
        prices = [None if out else each for each, out in zip(prices, gone, strict=True)]
    return Column(name, "number", prices, written)


def decimal_commas(draw, rows):
    name, prices = _prices(draw, rows)
    marked = [f"{each or 0:,.2f}".translate(str.maketrans(",.", ".,")) for each in prices]
    plain = [f"{each or 0:.2f}".replace(".", ",") for each in prices]
    return Column(name, "number", [each or 0.0 for each in prices], marked if draw.random() < 0.5 else plain)


def prices_of_parquet(draw, rows):
    name, prices = _prices(draw, rows)
    kind = [pa.float64(), pa.float32(), pa.decimal128(24, 2), pa.string()][draw.integers(4)]
    return Column(
        name, "number", prices, pa.array(prices).cast(kind) if kind != pa.string() else _texts("{}")(prices), kind
    )


def counts(draw, rows):
    values = [int(each) for each in np.floor(np.exp(draw.normal(3, 2, rows)))]
    return Column(draw.choice(["views", "num_words", "I1", "age"]), "number", [float(each) for each in values], values,
                  pa.int64())  # fmt: skip


def _bags(draw, rows):
    return [[int(each) for each in draw.integers(1, 30, draw.integers(1, 5))] for _ in range(rows)]


def bags_of_texts(draw, rows):
    bags, name = _bags(draw, rows), draw.choice(["tags", "genres", "history"])
    forms = [
        lambda bag: "|".join(f"t{each}" for each in bag), lambda bag: ";".join(map(str, bag)),
        lambda bag: ",".join(map(str, bag)), str, json.dumps, lambda bag: str([f"t{each}" for each in bag]),
        lambda bag: json.dumps([f"a, {each}" for each in bag]), lambda bag: str(tuple(bag)),
    ]  # fmt: skip
    form = forms[draw.integers(len(forms))]
    return Column(name, "bag", bags, [form(bag) for bag in bags])


def bags_of_parquet(draw, rows):
    bags = _bags(draw, rows)
    kind = [pa.list_(pa.int64()), pa.large_list(pa.int32()), pa.list_(pa.float64()), pa.list_(pa.string())][
        draw.integers(4)
    ]
    if draw.random() < 0.3:
        bags, kind = [[bag[0], bag[-1]] for bag in bags], pa.list_(pa.int64(), 2)
    made = [[str(each) for each in bag] for bag in bags] if kind == pa.list_(pa.string()) else bags
    return Column("tags", "bag", bags, pa.array(made, kind), kind)


def times(draw, rows):
    seconds = DAY + np.sort(draw.integers(0, 10**7, rows))
    name = draw.choice(["timestamp", "event_time", "created_at", "ts", "event_us", "moment", "date"])
    forms = [
        lambda at: at, lambda at: at * 1000 + 7, lambda at: at * 10**6 + 7, lambda at: at * 10**9 + 7,
        lambda at: datetime.datetime.fromtimestamp(at, datetime.UTC).isoformat(),
        lambda at: f"{datetime.datetime.fromtimestamp(at, datetime.UTC):%Y-%m-%d %H:%M:%S}",
        lambda at: f"{datetime.datetime.fromtimestamp(at, datetime.UTC):%Y%m%d}",
        lambda at: f"{at}.25",
    ]  # fmt: skip
    form = forms[draw.integers(len(forms))]
    return Column(name, "nothing", [None] * rows, [form(int(at)) for at in seconds])


def differing(draw, rows):
    chance = [
        lambda i: str(uuid.UUID(int=int(draw.integers(2**62)) * (i + 1))), lambda i: i, lambda i: f"r{i * 7919 % rows}",
        lambda i: 2**62 + 3 * i, lambda i: i * 7919 % rows + 10**6,
    ]  # fmt: skip
    form = chance[draw.integers(len(chance))]
    return Column(
        draw.choice(["request_id", "row_id", "impressionId"]), "nothing", [None] * rows, [form(i) for i in range(rows)]
    )


def other_types(draw, rows):
    made = [pa.array([{"os": "x", "v": 1}] * rows), pa.array([[0.5, 0.25]] * rows, pa.list_(pa.float32(), 2)),
            pa.array([[("a", 1)]] * rows, pa.map_(pa.string(), pa.int64()))][draw.integers(3)]  # fmt: skip
    return Column("context", "nothing", [None] * rows, made, made.type)


def labels(draw, rows):
    values = [int(each) for each in draw.random(rows) < 0.3]
    names = [(0, 1), ("no", "yes"), ("False", "True"), (-1, 1), ("0.0", "1.0"), ("skipped", "bought")][
        draw.choice(6, p=[0.3, 0.2, 0.2, 0.15, 0.1, 0.05])
    ]
    return Column(
        draw.choice(["click", "label", "is_clicked", "target"]), "label", values, [names[each] for each in values]
    )


BOTH = (codes, words, counts, times, differing, hashes)
TEXTS = (ids_of_texts, prices_of_texts, bags_of_texts, *BOTH, ids_of_texts, prices_of_texts)
PARQUET = (ids_of_parquet, prices_of_parquet, bags_of_parquet, other_types, *BOTH, ids_of_parquet)


def columns_of(draw, makers, rows):
    found = {}
    for make in [makers[0], *draw.choice(np.array(makers), draw.integers(2, 6))]:
        column = make(draw, rows)
        found.setdefault(column.name, column)
    label = labels(draw, rows)
    return [*found.values(), label] if draw.random() < 0.5 else [label, *found.values()]


def write_log(folder, seed, rows):
    """Writes the log of this number; returns its path and columns."""
    draw = np.random.default_rng(seed)
    if draw.random() < 0.35:
        columns = columns_of(draw, PARQUET, rows)
        path = folder / f"log_{seed}.parquet"
        made = {each.name: pa.array(each.written, each.kind) if isinstance(each.written, list) else each.written
                for each in columns}  # fmt: skip
        pq.write_table(pa.table(made), path)
        return path, columns
    delimiter = str(draw.choice([",", ",", ";", "|", "\t"]))
    columns = columns_of(draw, (*TEXTS, decimal_commas) if delimiter == ";" else TEXTS, rows)
    quoting = [csv.QUOTE_MINIMAL, csv.QUOTE_ALL][draw.integers(2)]
    out = io.StringIO()
    writer = csv.writer(out, delimiter=delimiter, quoting=quoting, lineterminator=str(draw.choice(["\n", "\r\n"])))
    writer.writerow([each.name for each in columns])
    writer.writerows(zip(*(each.written for each in columns), strict=True))
    suffix = str(draw.choice([*PACKED, "", "", ""]))
    path = folder / f"log_{seed}.{'tsv' if delimiter == chr(9) else 'csv'}{suffix}"
    path.write_bytes(PACKED[suffix](("\ufeff" * (draw.random() < 0.1) + out.getvalue()).encode()))
    return path, columns
