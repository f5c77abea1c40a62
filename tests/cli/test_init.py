"""`marius-oac init`: what it guesses, that its configuration reads the file as it stands, and what it refuses."""

import gzip
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from marius_oac.config.link_prediction import Config
from marius_oac.data.logs.guess import guess
from marius_oac.data.logs.guess_label import guess_label
from marius_oac.data.logs.sample import ROWS, LogSample, read_sample
from tests.run_folders import says
from tests.training.own_data import advertising, census, facts, links, ratings


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty folder to work in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def described(command, *argv):
    """The configuration that `init` writes for some sources, its text, and what is said."""
    code, out, err = command("init", *argv, "--out", "found.yaml")
    assert code == 0 and len(out) == 1, err
    with open("found.yaml") as file:
        return Config.load("found.yaml"), file.read(), err


def names(columns):
    return [each.name for each in columns]


def test_a_census_with_a_label_of_texts(command, here):
    config, text, err = described(command, census(here / "adult.csv", 2000))
    data = config.data
    assert config.task == "ctr" and (data.label.column, data.label.positive) == ("income", (">50K",))
    assert names(data.numeric) == ["age", "weight", "capital_gain", "capital_loss", "hours"]
    assert {"education", "education_num", "sex", "country"} <= set(names(data.categorical)) and not data.ignored
    assert {each.transform for each in data.numeric} == {"auto"} and data.missing_numbers == "refuse"
    assert "the other value is '<=50K'" in text and "% of the rows mean 1" in text and "a guess" in text
    assert any("'>50K' mean 1" in line for line in err) and "--split FOLDER" in text


def test_ratings_above_their_mean_are_offered_as_likes(command, here):
    config, text, err = described(command, ratings(here / "ratings.csv", 2000))
    assert config.data.label.column == "rating" and config.data.label.positive == ("4", "5")
    assert names(config.data.categorical) == ["userId", "movieId"] and config.data.ignored == ("timestamp",)
    assert (
        "those above the mean" in text and says_of(err, "those above the mean") and says_of(err, "left out: timestamp")
    )
    config, text, _ = described_again(command, here / "ratings.csv", "--label", "rating", "--positive", "5")
    assert config.data.label.positive == ("5",) and "those above" not in text


def test_positive_says_which_of_several_texts_mean_1(command, here):
    write(here / "log.csv", "user,did\n" + "".join(f"u{i % 7},{('buy', 'cart', 'view')[i % 3]}\n" for i in range(90)))
    config, _, _ = described(command, here / "log.csv", "--label", "did", "--positive", "buy", "--task", "ctr")
    assert (config.data.label.column, config.data.label.positive) == ("did", ("buy",))


def says_of(err, part):
    return any(part in line for line in err)


def described_again(command, *argv):
    os.unlink("found.yaml")
    return described(command, *argv)


def test_an_advertising_log_without_names(command, here):
    config, text, _ = described(command, advertising(here / "train.txt", 2000))
    data = config.data
    assert data.columns == tuple(f"c{i}" for i in range(10)) and data.label.column == "c0" and not data.label.positive
    gaps = {each.name: (each.missing, each.indicator) for each in data.numeric}
    assert gaps == {"c2": (None, False), **dict.fromkeys(("c1", "c3", "c4"), ("median", True))}
    assert names(data.categorical) == ["c5", "c6", "c7", "c8", "c9"] and "these are made up" in text


@pytest.mark.parametrize("suffix, relations", [("tsv", 0), ("csv", 1)])
def test_edges_say_how_to_prepare_them_and_train_then(command, here, suffix, relations):
    make = facts if relations else links
    config, text, err = described(command, make(here / f"my graph.{suffix}", 500))
    assert config.task == "graph" and config.data.path == "data/my graph"
    assert config.model.decoder == ("complex" if relations else "dot")
    said = "marius-oac prepare '" + str(here / f"my graph.{suffix}") + "' --out 'data/my graph'"
    assert f"#   {said}" in text and says_of(err, f"prepare it first: {said}")
    assert command("prepare", here / f"my graph.{suffix}", "--out", "data/my graph")[0] == 0
    assert command("train", "found.yaml", "--out", "run", "--set", "training.epochs=1")[0] == 0
    config, text, err = described_again(command, "data/my graph")
    assert config.model.decoder == ("complex" if relations else "dot") and f"{relations * 4} relations" in text


def test_edges_of_other_make(command, here):
    for name, line, options in [
        ("a.csv", "{i};{j}\n", ""),
        ("b.txt", "{i} {j}\n", ""),
        ("c.tsv", "{i}\t{j}\t0.{i}\n", ""),
        ("d.edges", "{i}\t{j}\n", ""),
    ]:
        (here / name).write_text("".join(line.format(i=i, j=i * i % 17) for i in range(40)))
        code, out, err = command("init", name)
        assert code == 0 and f"#   marius-oac prepare {name} {options}--out data/{name[0]}" in out, (out, err)
        assert "  decoder: dot" in "\n".join(out)
    np.save(here / "e.npy", np.arange(30).reshape(10, 3))
    code, out, _ = command("init", "e.npy")
    assert (
        code == 0
        and "#   marius-oac prepare e.npy --columns 0,1,2 --out data/e" in out
        and "  decoder: complex" in "\n".join(out)
    )


def test_a_name_with_a_line_break_stays_in_its_comment(command, here):
    config, text, _ = described(command, links(here / "a\nseed: 7.tsv", 200))
    assert config.seed == 0 and config.data.path == "data/a\nseed: 7"
    config, _, _ = described_again(command, census(here / "b\nseed: 7.csv", 200))
    assert config.seed == 0 and config.data.train == (str(here / "b\nseed: 7.csv"),)


def test_what_looks_like_edges_and_what_like_clicks(command, here):
    lines = {
        "user_id,item_id,label\n{u},{i},{b}\n": "ctr",
        "source,target,label\n{u},{i},{w}\n": "graph",
        "user,item,rating\n{u},{i},{r}\n": "ctr",
        "{u},{i},{b}\n": "ctr",
        "{w},{u},{i}\n": "ctr",
        "u{u},{w},u{i}\n": "graph",
        "from,to,weight\n{u},{i},0.{r}\n": "graph",
        "u{u},v{i}\n": "graph",
        "n{u},k{r},n{i},2014-01-1{r}\n": "graph",
    }
    for number, (line, task) in enumerate(lines.items()):
        head, _, row = line.removesuffix("\n").rpartition("\n")
        rows = [
            row.format(u=i % 37, i=i % 41, b=i % 2, r=i % 5 + 1, w=("likes", "sees")[i % 3 == 0]) for i in range(200)
        ]
        path = here / f"{number}.csv"
        path.write_text("\n".join([head] * bool(head) + rows) + "\n")
        code, out, err = command("init", path)
        assert code == 0 and ("task: ctr" in out) == (task == "ctr"), (line, out, err)
    code, out, _ = command("init", here / "0.csv", "--task", "graph")
    assert code == 0 and "task: ctr" not in out
    code, out, _ = command("init", here / "7.csv", "--task", "ctr")
    assert code == 2 and not out


def hostile_parquet(path, rows=200):
    """Columns of every type, some with names that YAML takes for something else."""
    draw = np.random.default_rng(0)
    columns = {
        "is: clicked #1": pa.array(draw.random(rows) < 0.4),
        "yes": pa.array(draw.normal(size=rows)),
        "line\nbreak\x85": pa.array(draw.integers(0, 9, rows)),
        "{a: 'b'}": pa.array(draw.choice(["x", "y", None], rows)).dictionary_encode(),
        "- tags": pa.array([draw.integers(5, size=i % 3).tolist() for i in range(rows)]),
        "vector": pa.array([[0.5, 1.5]] * rows),
        "when": pa.array(np.arange(rows).astype("datetime64[s]")),
        "nothing": pa.nulls(rows),
        "flag": pa.array(draw.random(rows) < 0.5),
        "gaps": pa.array([None if i % 3 else float(i) for i in range(rows)]),
        "42": pa.array(np.full(rows, 7)),
        "\U0001f600 é": pa.array(draw.integers(0, 10**12, rows)),
    }
    pq.write_table(pa.table(columns), path)
    return path


def test_columns_of_every_type_and_name_train_as_they_are_described(command, here):
    path = hostile_parquet(here / "log.parquet")
    config, _, _ = described(command, path)
    data = config.data
    assert data.label.column == "is: clicked #1"
    assert set(data.ignored) == {"vector", "when", "nothing", "42"} and names(data.multi_valued) == ["- tags"]
    assert set(names(data.categorical)) == {"line\nbreak\x85", "{a: 'b'}", "flag"}
    assert set(names(data.numeric)) == {"yes", "gaps", "\U0001f600 é"}
    code, _, err = command("train", "found.yaml", "--out", "run", "--set", "threads=1", "--set", "training.epochs=1")
    assert code == 0, err


@pytest.mark.parametrize(
    "name, text, expected",
    [
        ("log.data", "a;click\n{i};{b}\n", {"format": "csv", "delimiter": ";"}),
        ("log.csv", "a\tb\tclick\n{i}\tx|y\t{b}\n", {"delimiter": "\t"}),
        ("log.svm", "{b} {i}:1 7:1\n", {"format": "auto"}),
        ("log.txt", "{b} {i}:1 7:1\n", {"format": "libsvm"}),
        ("log.tsv", ",id\tclick\n0\t{b}\n", None),
    ],
)
def test_files_of_other_make(command, here, name, text, expected):
    *head, row = text.splitlines()
    (here / name).write_text("\n".join([*head, *(row.format(i=i % 13, b=int(i % 3 == 0)) for i in range(60))]) + "\n")
    code, out, err = command("init", name, "--task", "ctr", "--out", "found.yaml")
    if expected is None:
        assert code == 2 and says(err, name, "no column is left for a feature", "is 0 in all rows")
        return
    data = Config.load("found.yaml").data
    assert code == 0 and {key: getattr(data, key) for key in expected} == expected


def test_of_several_files_the_last_tests_unless_their_names_say_more(command, here):
    for name in ("day_1.csv", "day_2.csv", "day_10.csv", "b.train.csv", "b.test.csv", "b.valid.csv"):
        census(here / name, 300)
    data = described(command, "day_*.csv")[0].data
    assert (data.train, data.valid, data.test) == (("day_1.csv",), ("day_2.csv",), ("day_10.csv",))
    data = described_again(command, "day_2.csv", "day_1.csv")[0].data
    assert (data.train, data.valid, data.test) == (("day_2.csv",), (), ("day_1.csv",))
    data = described_again(command, "b.test.csv", "b.train.csv", "b.valid.csv")[0].data
    assert (data.train, data.valid, data.test) == (("b.train.csv",), ("b.valid.csv",), ("b.test.csv",))
    (here / "other.csv").write_text("a,b\n1,2\n")
    code, out, err = command("init", "day_1.csv", "other.csv")
    assert (code, out) == (2, []) and says(err, "other.csv", "there is no column")


@pytest.mark.parametrize("suffix", ["csv", "csv.gz", "parquet", "txt"])
def test_the_parts_of_a_split_are_the_files_rows(command, here, suffix):
    path = here / f"log.{suffix}"
    if suffix == "parquet":
        hostile_parquet(path)
    elif suffix == "txt":
        advertising(path, 200)
    else:
        census(path, 200)
    config, _, _ = described(command, path, "--split", "parts")
    parts = [here / getattr(config.data, split)[0] for split in ("train", "valid", "test")]
    assert [part.name for part in parts] == [f"{split}.{suffix}" for split in ("train", "valid", "test")]

    def rows(path):
        if suffix == "parquet":
            return [str(row) for row in pq.read_table(path).to_pylist()]
        with gzip.open(path, "rt") if suffix.endswith("gz") else open(path) as file:
            return file.read().splitlines()[suffix != "txt" :]

    assert [len(rows(part)) for part in parts] == [160, 20, 20]
    assert sorted(row for part in parts for row in rows(part)) == sorted(rows(path))
    order = {row: number for number, row in enumerate(rows(path))}
    assert all(found == sorted(found) for found in ([order[row] for row in rows(part)] for part in parts))


def test_numbers_may_be_missing_where_nobody_looked(command, here):
    with open(here / "long.csv", "w") as file:
        file.write("price,click\n")
        file.writelines(f"{i % 97}.5,{i % 3 == 0:d}\n" for i in range(ROWS + 1))
    config, _, _ = described(command, "long.csv", "--task", "ctr")
    assert config.data.missing_numbers == "median"


def write(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


REFUSED = [
    ("log.csv", b"", ("log.csv", "is empty")),
    ("log.csv", "a,click\n", ("log.csv", "no examples")),
    ("log.csv", os.urandom(3000) + b"\xff\n", ("log.csv",)),
    ("log.csv", b"\0" * 3000, ("log.csv", "no examples")),
    ("log.csv", "click\n1\n0\n", ("log.csv", "one column", "','", "--delimiter")),
    ("log.csv", "a,b,c,d\n" + "".join(f"{i},{i % 7},x{i % 9},{i / 7}\n" for i in range(90)),
     ("which column says what was clicked?", "--label COLUMN", "b (categorical)", "d (numeric)")),
    ("log.csv", "flag,clicked,a_click,n\n" + "".join(f"{i % 2},{i % 3 // 2},{i % 5 // 4},{i}\n" for i in range(90)),
     ("which column says what was clicked?", "'flag', 'clicked', 'a_click'", "--label COLUMN")),
    ("log.csv", "clicked,n,m,k\n" + "".join(f"{'1' * (i % 2)},{i / 7},{i},x\n" for i in range(90)),
     ("which column says what was clicked? no column has two values",)),
    ("log.csv", "a,b,a,click\n" + "1,2,3,0\n1,2,3,1\n" * 9, ("log.csv", "two columns are named 'a'")),
    ("log.csv", "a,b,c,click\n1,2,3\n1,2,3,1\n", ("log.csv",)),
    ("log.csv.gz", b"\x1f\x8b\x08garbage", ("log.csv.gz", "compressed file")),
    ("log.csv", gzip.compress(b"a,click\n1,0\n", mtime=0), ("log.csv", "compressed with gzip")),
    ("log.parquet", b"PAR1garbage", ("log.parquet", "not a Parquet file")),
    ("log.npy", b"garbage", ("log.npy", "not a NumPy file")),
]  # fmt: skip


@pytest.mark.parametrize("name, content, parts", REFUSED)
def test_what_is_no_log_is_refused_in_one_line(command, here, name, content, parts):
    write(here / name, content)
    code, out, err = command("init", name, "--out", "found.yaml")
    assert (code, out, os.listdir(here)) == (2, [], [name]) and says(err, *parts)
    assert len([line for line in err if not line.startswith("note: ")]) == 1


def test_arguments_that_contradict_the_file_or_what_is_there(command, here):
    census(here / "log.csv", 100)
    census(here / "other.csv", 100)
    os.mkfifo(here / "pipe.csv")
    os.mkdir(here / "folder")
    write(here / "few.csv", "a,click\n" + "1,0\n2,1\n" * 2)
    for argv, parts in [
        (["none.csv"], ("none.csv", "no such file")),
        (["none_*.csv"], ("none_*.csv", "no file has such a name")),
        (["nothing"], ("nothing",)),
        (["pipe.csv"], ("pipe.csv", "no regular file")),
        (["folder"], ("folder", "has no files")),
        (["log.csv", "folder"], ("folder", "has no files")),
        (["log.csv", "--label", "wealth"], ("--label", "no column 'wealth'", "age")),
        (["log.csv", "--label", "age"], ("--label", "different values")),
        (["log.csv", "--positive", "rich"], ("--positive", "'rich'", "income")),
        (["log.csv", "other.csv", "--split", "parts"], ("--split", "single file")),
        (["log.csv", "--split", "folder"], ("folder", "exists already")),
        (["few.csv", "--task", "ctr", "--split", "parts"], ("few.csv", "4 rows are too few")),
        (["log.csv", "--out", "other.csv"], ("other.csv", "exists already")),
        (["log.csv", "--delimiter", "ab"], ("delimiter", "one")),
        ([], ("required",)),
    ]:
        before = sorted(os.listdir(here))
        code, out, err = command("init", *argv)
        assert (code, out) == (2, []) and says(err, *parts), (argv, err)
        assert sorted(os.listdir(here)) == before, argv


@pytest.mark.parametrize(
    "name, values, kind",
    [
        ("age", [str(17 + i % 70) for i in range(300)], "numeric"),
        ("movie_id", [str(i * 7 % 90) for i in range(300)], "categorical"),
        ("x", [f"{i % 200:05d}" for i in range(300)], "categorical"),
        ("stars", [str(i % 5) for i in range(300)], "categorical"),
        ("n", [str(i) for i in range(300)], "row_number"),
        ("n", [f"text {i}" for i in range(300)], "row_number"),
        ("event_id", [f"e{i * 7 % 300}" for i in range(300)], "row_number"),
        ("height", [str(i * 7 % 300) for i in range(300)], "numeric"),
        ("order_id", [str(i * 7 % 300) for i in range(300)], "row_number"),
        ("user_id", [f"u{i * 7 % 299}" for i in range(300)], "categorical"),
        ("user_id", [str(i * 7 % 299) for i in range(300)], "categorical"),
        ("created", [f"2024-01-{i % 28 + 1:02d}" for i in range(300)], "time"),
        ("timestamp", [str(1_500_000_000 + 37 * i) for i in range(300)], "time"),
        ("genres", [("Drama|Crime", "Drama", "Crime|War", "War")[i % 4] for i in range(300)], "multi_valued"),
        ("title", [("Up, up", "Down, down", "Left, left")[i % 3] for i in range(300)], "categorical"),
        ("empty", ["", "NA", "?"] * 100, "unusable"),
        ("same", ["x"] * 300, "unusable"),
        ("zip", [str(90_000 + i % 99) for i in range(300)], "categorical"),
        ("price", [f"{i * 0.37:.2f}" for i in range(300)], "numeric"),
        ("big", [str(2**61 + i % 150 * i) for i in range(300)], "categorical"),
        ("big", [str(2**61 + i * i) for i in range(300)], "row_number"),
    ],
)
def test_the_kind_of_a_column(tmp_path, name, values, kind):
    path = tmp_path / "log.tsv"
    path.write_text("\n".join([f"{name}\tclick", *(f"{value}\t{i % 3 == 0:d}" for i, value in enumerate(values))]))
    sample = read_sample(path)
    found = guess(sample)
    assert (found[0].name, found[0].kind) == (name, kind), found[0]
    assert guess_label(sample).name == "click"


@pytest.mark.parametrize("value", [str, int, "u{}".format], ids=["numbers as texts", "integers", "texts"])
def test_different_ids_are_one_a_row_only_if_many_rows_or_all_say_so(tmp_path, value):
    for rows, whole, kind in [(300, False, "categorical"), (300, True, "row_number"), (10_000, False, "row_number")]:
        ids = pa.array([value(number * 7 % rows + 10**6) for number in range(rows)])
        sample = LogSample(tmp_path / "log.csv", "csv", ",", True, ["user_id"], {"user_id": ids}, whole)
        assert guess(sample)[0].kind == kind, (rows, whole)


PACKAGES = "package,needs,how,weight\nbash,libc6,Depends,0.5\ntar,libacl1,PreDepends,1.5\nxz,tar,Suggests,2.5\n"


def test_a_graph_with_weights_whose_columns_have_names_of_their_own(command, here):
    write(here / "packages.csv", PACKAGES)
    code, _, err = command("init", "packages.csv", "--out", "found.yaml")
    assert code == 2 and says(err, "--label COLUMN", "edges of a graph: --columns HEAD,RELATION,TAIL", "needs (")
    code, _, err = command("init", "packages.csv", "--task", "graph", "--out", "found.yaml")
    assert code == 2 and says(err, "4 found", "--columns HEAD,RELATION,TAIL", "'package', 'needs', 'how', 'weight'")
    config, _, err = described(command, "packages.csv", "--columns", "package,how,needs")
    assert config.model.decoder == "complex" and config.data.path == "data/packages"
    said = "marius-oac prepare packages.csv --columns package,how,needs --out data/packages"
    assert any(said in line for line in err), err
    assert command(*said.split()[1:])[0] == 0


def test_the_relation_is_the_column_with_far_fewer_values_if_names_do_not_tell(command, here):
    rows = [(f"p{i}", f"q{i * i % 97}", "abc"[i % 3]) for i in range(200)]
    for order, header, asked in [
        ((0, 2, 1), ("package", "how", "needs"), None),
        ((0, 1, 2), ("package", "needs", "how"), "package,how,needs"),
        ((2, 0, 1), ("how", "package", "needs"), "package,how,needs"),
        ((0, 1, 2), None, "0,2,1"),
        ((2, 0, 1), None, "1,0,2"),
        ((0, 2, 1), None, None),
        ((0, 1, 2), ("source", "target", "type"), None),
        ((0, 1, 2), ("package", '"needs, if any"', "how"), "0,2,1"),
    ]:
        lines = [header] * bool(header) + [tuple(row[n] for n in order) for row in rows]
        write(here / "e.csv", "".join(",".join(line) + "\n" for line in lines))
        code, out, err = command("init", "e.csv", "--task", "graph")
        said = next(line for line in out if "marius-oac prepare" in line)
        assert code == 0 and (f"--columns {asked} " in said if asked else "--columns" not in said), (order, header)
        assert any("taken for the relation" in line for line in err) == bool(asked)
    pq.write_table(pa.table(list(map(pa.array, zip(*rows, strict=True))), ["p", "n", "h"]), here / "e.parquet")
    assert any("--columns p,h,n " in line for line in command("init", "e.parquet")[1])
    write(here / "e.csv", "".join(f"p{i},q{i % 9},r{i % 5}\n" for i in range(200)))
    found = command("init", "e.csv", "--task", "graph")[1]
    assert any("--columns 0,1,2 " in line for line in found), "not far fewer: the order of the file"


def test_columns_of_a_graph_are_refused_for_what_is_no_file_of_edges(command, here):
    write(here / "packages.csv", PACKAGES)
    for argv, parts in [
        (["--task", "ctr"], ("--columns", "a click log")),
        (["--label", "how"], ("--columns", "a click log")),
        (["--columns", "package,hwo,needs"], ("'hwo'", "did you mean 'how'?")),
        (["--columns", "package"], ("columns", "not 1")),
    ]:
        code, out, err = command("init", "packages.csv", "--columns", "package,how,needs", *argv)
        assert (code, out) == (2, []) and says(err, *parts), (argv, err)
    code, out, err = command("init", "codex-s", "--columns", "0,1,2")
    assert (code, out) == (2, []) and says(err, "codex-s", "no such file")
