"""Click logs that are known by name: `marius-oac init NAME FOLDER` on made-up files with the columns of each."""

import csv
import gzip
import random

import pytest
import yaml

from marius_oac.data.logs.known import KNOWN_LOGS, find_log
from tests.run_folders import says

LOGS = pytest.mark.parametrize("log", KNOWN_LOGS, ids=lambda log: log.name)
ROWS = 40


def columns(log):
    """Names of the columns of a log's files, and what a value of each is."""
    data = log.config["data"]
    kinds = ("numeric", "categorical", "multi_valued")
    names = {name if isinstance(name, str) else name["name"]: kind for kind in kinds for name in data.get(kind, ())}
    label = data.get("label", "label")
    names |= {label if isinstance(label, str) else label["column"]: "label"} | dict.fromkeys(
        data.get("ignored", ()), "categorical"
    )
    return {name: names[name] for name in data.get("columns", sorted(names))}


def value(draw, kind, n, above=None):
    if kind == "label":
        return n % 2 if above is None else above + n % 2 / 4
    if kind == "numeric":
        return draw.choice([0, 7, 1.5])
    if kind == "multi_valued":
        return "^".join(f"v{draw.randrange(5)}" for _ in range(draw.randrange(4)))
    return draw.choice(["05db9164", "a", "7"])


def made_up(log, folder, packed=False, more=()):
    """Files of a log, with columns beside those that it is known to have."""
    folder.mkdir()
    draw, kinds = random.Random(0), columns(log) | dict.fromkeys(more, "categorical")
    delimiter = log.config["data"].get("delimiter", ",")
    for name in (name for names in log.files.values() for name in names):
        path = folder / (f"{name}.gz" if packed else name)
        with (gzip.open if packed else open)(path, "wt", newline="") as file:
            writer = csv.writer(file, delimiter=delimiter, lineterminator="\n")
            if "columns" not in log.config["data"]:
                writer.writerow(kinds)
            label = log.config["data"].get("label")
            above = label["above"] if isinstance(label, dict) else None
            writer.writerows([value(draw, kind, n, above) for kind in kinds.values()] for n in range(ROWS))
    return folder


@LOGS
def test_the_config_reads_the_log(command, log, tmp_path):
    more = [] if "columns" in log.config["data"] else ["time_stamp"]
    folder = made_up(log, tmp_path / "files", more=more)
    for name in (log.name, *log.aliases):
        code, out, err = command("init", name.upper(), folder)
        assert code == 0 and f"note: published AUC: {log.published}" in err and log.address in out[1]
        config = yaml.safe_load("\n".join(out))
        found = {split: paths if isinstance(paths, list) else [paths] for split, paths in config["data"].items()
                 if split in ("train", "valid", "test")}  # fmt: skip
        assert [path.rpartition("/")[2] for paths in found.values() for path in paths] == [
            name for names in log.files.values() for name in names
        ]
        assert more == [name for name in config["data"].get("ignored", []) if name == "time_stamp"]
        assert config["model"] == log.config["model"] and config["training"] == log.config["training"]


@LOGS
def test_the_log_is_trained(command, log, tmp_path):
    folder, config, run = made_up(log, tmp_path / "files", packed=True), tmp_path / "config.yaml", tmp_path / "run"
    split = ("--split", tmp_path / "split") if "all" in log.files else ()
    smaller = ("--set", "training.epochs=1", "--set", "model.hidden=[8]", "--set", "data.shuffle=0")
    for argv in (("init", log.name, folder, *split, "--out", config), ("train", config, "--out", run, *smaller)):
        code, _, err = command(*argv)
        assert code == 0, err
    assert "test.auc" in (run / "summary.json").read_text()
    if split:
        parts = [gzip.decompress(path.read_bytes()) for path in sorted((tmp_path / "split").iterdir())]
        assert len(parts) == 3 and sum(part.count(b"\n") for part in parts) == ROWS


def test_what_a_known_log_lacks_is_told(command, tmp_path):
    log = find_log("taobao")
    folder = made_up(log, tmp_path / "files")
    assert log.name == "taobaoad_x1" and find_log("nothing") is None
    lines = {
        ("init", "taobao"): "name the folder with its files",
        ("init", "taobao", tmp_path / "none"): f"no such folder; taobaoad_x1 is train.csv, test.csv from {log.address}",
        ("init", "taobao", folder / "train.csv"): "is no folder; taobaoad_x1 is",
        ("init", "criteo-1tb", folder): "day_0 is missing, or day_0.gz; criteo-1tb is day_0, day_1, ..., day_23 from",
        ("init", "taobao", folder, "--label", "x"): "without --label, --positive and --delimiter",
        ("init", "taobao", folder, "--split", tmp_path / "s"): "taobaoad_x1 has its splits",
        ("prepare", "taobao", "--out", tmp_path / "graph"): "a click log is not prepared: marius-oac init",
    }
    for argv, line in lines.items():
        code, _, err = command(*argv)
        assert code == 2 and says(err, line), err
    text = (folder / "test.csv").read_text()
    (folder / "test.csv").write_text(text.replace("brand,", "make,", 1))
    code, _, err = command("init", "taobao", folder)
    assert code == 2 and says(err, "test.csv", "brand")


def test_rows_that_training_would_refuse_are_told(command, tmp_path):
    folder = made_up(find_log("criteo"), tmp_path / "files")
    text = (folder / "train.txt").read_text()
    (folder / "train.txt").write_text(text.replace("0\t", "9\t", 1))
    code, out, err = command("init", "criteo", folder, "--split", tmp_path / "split")
    assert code == 2 and not out and says(err, "train.txt", "'label'", "9") and not (tmp_path / "split").exists()


def test_a_file_of_that_name_is_read(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "frappe").write_text("label,user\n" + "1,a\n0,b\n" * 10)
    code, out, _ = command("init", "frappe", "--task", "ctr")
    assert code == 0 and not any("reczoo" in line for line in out)
