"""Logs of forms that have misled, beside the same examples in a plain form: `init` reads both alike without a flag, and
where the form leaves a doubt a line names the column, the guess and the key. Plain logs print no such line."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from marius_oac.config.ctr import CtrConfig
from marius_oac.config.errors import parse
from marius_oac.prepare.init.log import LogRequest, first_log, try_rows
from tests.data.written_logs import read


class Log:
    """Examples of ids, a price, tags and clicks."""

    def __init__(self, rows, seed=0):
        draw = np.random.default_rng(seed)
        self.rows, self.user, self.item = rows, draw.integers(0, 30, rows), draw.integers(1, 11, rows)
        self.price = np.round(np.exp(draw.normal(6, 1.5, rows)), 2)
        self.tags = [sorted({int(each) for each in draw.integers(0, 23, 3)}) for _ in range(rows)]
        taste = draw.normal(0, 1, 30)[self.user] + draw.normal(0, 1, 11)[self.item] + np.log(self.price) / 3 - 2.5
        self.click = (draw.random(rows) < 1 / (1 + np.exp(-taste))).astype(int)
        self.gone = draw.random(rows) < 0.01

    def text(self, delimiter=",", quote="", **columns):
        columns = {"user_id": self.user, "item_id": self.item, **columns, "click": columns.get("click", self.click)}
        lines = [list(columns), *zip(*columns.values(), strict=True)]
        return "".join(delimiter.join(f"{quote}{each}{quote}" for each in line) + "\n" for line in lines)

    def parquet(self, **columns):
        return pa.table({"user_id": self.user, "item_id": self.item, **columns, "click": self.click})


def forms(log):
    """The content of each log in its own form and in a plain one, and the key that a line names, if one does."""
    prices = [f"{each:.2f}" for each in log.price]
    gaps = ["" if out else each for each, out in zip(prices, log.gone, strict=True)]
    quoted = {name: [f'"{each}"' for each in values] for name, values in
              {"thousands": [f"{each:,.2f}" for each in log.price], "tags": log.tags}.items()}  # fmt: skip
    plain, tags = log.text(price=prices), ["|".join(map(str, each)) for each in log.tags]
    users = {"null": [None if out else int(each) for each, out in zip(log.user, log.gone, strict=True)]}
    svm = [f" {user + 1}:1 {item + 101}:1\n" for user, item in zip(log.user, log.item, strict=True)]
    us = 1_600_000_000_000_000 + np.arange(log.rows) * 137_000_000
    lists = [[int(a), int(b)] for a, b in zip(log.user % 5, log.item % 7, strict=True)]
    named = {"user_id": [f"u{each}" for each in log.user], "item_id": [f"i{each}" for each in log.item]}
    ctx = [{"os": f"o{each % 3}", "v": int(each)} for each in log.item]
    return {
        "ids_as_floats.csv": (
            log.text(user_id=log.user.astype(float), item_id=log.item.astype(float), price=prices), plain, ""),
        "dollar.csv": (log.text(price=[f"${each}" for each in prices]), plain, ""),
        "thousands.csv": (log.text(price=quoted["thousands"]), plain, ""),
        "semicolon_quoted.csv": (
            log.text(";", '"', price=prices, click=np.where(log.click, "yes", "no")), plain, ""),
        "one_dash.csv": (log.text(price=[each or "-" for each in gaps]), log.text(price=gaps), "data.missing"),
        "list_repr.csv": (log.text(tags=quoted["tags"]), log.text(tags=tags), ""),
        "microseconds.csv": (log.text(event_us=us), log.text(), ""),
        "microseconds_unnamed.csv": (log.text(moment=us), log.text(), "data.numeric, data.categorical"),
        "minus_plus.svm": (
            "".join(("-1", "+1")[label] + each for label, each in zip(log.click, svm, strict=True)),
            "".join(str(label) + each for label, each in zip(log.click, svm, strict=True)), ""),
        "ids_as_doubles.parquet": (
            log.parquet(user_id=pa.array(users["null"], pa.float64())), log.parquet(user_id=users["null"]), ""),
        "binary_ids.parquet": (
            log.parquet(**{name: pa.array(ids).cast(pa.binary()) for name, ids in named.items()}),
            log.parquet(**named), ""),
        "decimals.parquet": (
            log.parquet(price=pa.array(prices).cast(pa.decimal128(12, 2))), log.parquet(price=log.price), ""),
        "struct.parquet": (log.parquet(ctx=ctx), log.parquet(), ""),
        "fixed_size_list.parquet": (
            log.parquet(tags=pa.array(lists, pa.list_(pa.int64(), 2))), log.parquet(tags=lists), ""),
    }  # fmt: skip


NAMES = list(forms(Log(3)))


def write(path, content):
    path.parent.mkdir(exist_ok=True)
    if isinstance(content, pa.Table):
        pq.write_table(content, path)
    else:
        path.write_text(content)
    return path


def described(path):
    """The configuration that `init` writes, its text, and the lines about guesses."""
    text, notes = first_log([path], LogRequest(), "found.yaml")
    return (
        CtrConfig.build(parse(text, "found.yaml")[0]),
        text,
        [each for each in notes if not each.startswith("left out")],
    )


def examples(path):
    config, _, _ = described(path)
    block = read(path, try_rows(config.data, path, 1 << 15), block_rows=1 << 16)
    bags = {name: (bag.keys.tolist(), bag.offsets.tolist()) for name, bag in block.bags.items()}
    return (
        block.labels.tolist(),
        block.numbers.tolist(),
        {name: keys.tolist() for name, keys in block.keys.items()},
        bags,
    )


@pytest.mark.parametrize("name", NAMES)
def test_another_form_has_the_examples_of_the_plain_one(tmp_path, name):
    content, plain, key = forms(Log(500))[name]
    one, other = write(tmp_path / "own" / name, content), write(tmp_path / "plain" / name, plain)
    assert examples(one) == examples(other)
    assert not described(other)[2]
    said = described(one)[2]
    assert len(said) == bool(key) and all(f"({key})" in line and "column '" in line for line in said), said


def test_ids_above_2_63_are_ids(tmp_path):
    log = Log(500)
    big = log.user.astype(np.uint64) + np.uint64(2**63 + 1)
    labels, numbers, keys, _ = examples(write(tmp_path / "big.parquet", log.parquet(user_id=big)))
    assert (np.array(keys["user_id"]) - np.array(keys["user_id"]).min() == log.user - log.user.min()).all()
    assert labels == log.click.tolist() and not np.array(numbers).size


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_another_form_trains_the_model_of_the_plain_one(command, tmp_path, name):
    content, plain, key = forms(Log(20_000))[name]
    for place, each in (("own", content), ("plain", plain)):
        path = write(tmp_path / place / name, each)
        code, _, err = command("init", path, "--out", tmp_path / f"{place}.yaml")
        assert code == 0 and sum("is taken for" in line for line in err) == bool(key and place == "own"), err
        fixed = ["--set", "device=cpu", "--set", "training.epochs=1", "--set", "keys.capacity=5000"]
        code, _, err = command("train", tmp_path / f"{place}.yaml", "--out", tmp_path / f"run_{place}", *fixed)
        assert code == 0 and sum("is taken for" in line for line in err) == bool(key and place == "own"), err
    code, lines, err = command("compare", tmp_path / "run_own", tmp_path / "run_plain")
    assert code == 0, lines + err


CLEAN = {
    "price": lambda log: log.price,
    "age": lambda log: log.user + 20,
    "country": lambda log: [f"c{each}" for each in log.item],
    "weekday": lambda log: log.item % 7,
    "is_mobile": lambda log: log.item % 2,
    "zip": lambda log: [f"{each:05d}" for each in log.user],
    "ratio": lambda log: log.price / 7,
    "views": lambda log: (log.price // 3).astype(int),
    "color": lambda log: ["red"] * (log.rows - 9) + ["blue"] * 9,
    "genres": lambda log: ["|".join(f"g{each}" for each in tags) for tags in log.tags],
}


@pytest.mark.parametrize("seed", range(20))
def test_plain_logs_print_no_line(tmp_path, seed):
    log, draw = Log(300, seed), np.random.default_rng(seed)
    chosen = {str(name): CLEAN[name](log) for name in draw.choice(list(CLEAN), 3, replace=False)}
    lists = {"tags": log.tags} if seed % 2 else {}
    path = tmp_path / ("log.parquet" if seed % 2 else "log.csv")
    _, _, said = described(write(path, log.parquet(**chosen, **lists) if seed % 2 else log.text(**chosen)))
    assert not said
