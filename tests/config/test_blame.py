"""Messages name the key, the column and the line that are wrong, and not what only suffers from them."""

import pytest

from marius_oac.cli.commands import main
from marius_oac.config.link_prediction import Config
from marius_oac.data.reading import text_parser
from tests.click_logs import ctr_config, small_log
from tests.graphs import tiny_config
from tests.run_folders import says, write_config


@pytest.mark.parametrize(
    "setting, key",
    [
        ("training.negatives.count=100000000000", "training.negatives.count"),
        ("model.dimension=1000000", "model.dimension"),
        ("pipeline.in_flight=1000000", "pipeline.in_flight"),
    ],
)
def test_the_key_that_makes_a_graphs_run_too_large(command, graph, tmp_path, setting, key):
    config = write_config(tmp_path / "c.yaml", tiny_config(graph))
    settings = ("--set", "training.batch_size=1000", "--set", "pipeline.in_flight=4", "--set", setting)
    code, _, err = command("train", config, "--out", tmp_path / "run", *settings)
    assert code == 2 and says(err, f"marius-oac: {key}: ", "GiB of host memory are needed"), err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "setting, key",
    [
        ("training.batch_size=2000000000", "training.batch_size"),
        ("evaluation.batch_size=2000000000", "evaluation.batch_size"),
        ("model.dimension=1000000", "model.dimension"),
    ],
)
def test_the_key_that_makes_a_logs_run_too_large(command, tmp_path, setting, key):
    config = write_config(tmp_path / "c.yaml", ctr_config(small_log(tmp_path / "log.parquet")))
    code, _, err = command("train", config, "--out", tmp_path / "run", "--set", setting)
    assert code == 2 and says(err, f"marius-oac: {key}: ", "GiB of host memory are needed"), err


@pytest.mark.parametrize(
    "setting, parts",
    [
        ("data.missing_numbers=zero", ("data.missing_numbers", "must be refuse, median or a number, not 'zero'")),
        ("data.numeric=[{name: number, missing: zero}]", ("missing", "must be refuse, median or a number")),
        ("data.numeric=[number, number]", ("--set data.numeric", "'number' is named twice here")),
        ("data.ignored=[user]", ("--set data.ignored", "'user' is named here and under data.categorical")),
        ("data.multi_valued=[label]", ("--set data.multi_valued", "'label' is named here and under data.label")),
    ],
)
def test_the_key_of_a_column_or_a_missing_number(command, tmp_path, setting, parts):
    config = write_config(tmp_path / "c.yaml", ctr_config(tmp_path / "log.parquet"))
    code, _, err = command("train", config, "--out", tmp_path / "run", "--set", setting)
    assert code == 2 and says(err, *parts)


def test_the_line_that_is_too_long_in_a_file_of_edges(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(text_parser, "_PARSED_BYTES", 1 << 12)
    lines = [f"a{i}\tb{i % 7}" for i in range(1500)]
    lines[1234] = "c\t" + "y" * (5 << 12)
    (tmp_path / "g.tsv").write_text("\n".join(lines) + "\n")
    assert main(["prepare", str(tmp_path / "g.tsv"), "--out", str(tmp_path / "g")]) == 2
    assert says(capsys.readouterr().err.splitlines(), "g.tsv:1235: the line is 20,482 bytes long")


@pytest.mark.parametrize(
    "text", ["click,user\n" + "1,a\n0,b\n" * 4 + "1,a\n7,b\n", "click,user\r\n\r\n1,a\r\n\r\n7,b\r\n"]
)
def test_the_line_of_a_row_of_a_log(command, tmp_path, text):
    """A header line and blank lines are no rows; a line's end of two bytes is one."""
    (tmp_path / "log.csv").write_bytes(text.encode())
    tree = {"task": "ctr", "data": {"train": str(tmp_path / "log.csv"), "label": "click", "categorical": ["user"]}}
    config = write_config(tmp_path / "c.yaml", Config.build(tree))
    code, _, err = command("train", config, "--out", tmp_path / "run")
    rows = [line for line in text.splitlines() if line][1:]
    line = text.splitlines().index("7,b") + 1
    assert code == 2 and says(err, f"log.csv:{line}: row {len(rows)}: the label in column 'click' is 7")


def test_what_a_file_says_is_no_command_to_a_terminal(command, tmp_path):
    (tmp_path / "log.csv").write_text("\x1b[31mclick,user\n1,a\n")
    tree = {"task": "ctr", "data": {"train": str(tmp_path / "log.csv"), "label": "click", "categorical": ["user"]}}
    config = write_config(tmp_path / "c.yaml", Config.build(tree))
    code, _, err = command("train", config, "--out", tmp_path / "new\nline")
    assert code == 2 and says(err, "did you mean '\\x1b[31mclick'?")


def test_labels_of_which_none_means_1_are_noted(command, tmp_path):
    log = small_log(tmp_path / "log.parquet", rows=40)
    config = write_config(tmp_path / "c.yaml", ctr_config(log, "data.label={column: label, positive: 7}"))
    code, _, err = command("train", config, "--out", tmp_path / "run", "--set", "training.epochs=1")
    told = "note: no label of the first examples of log.parquet means 1, which 7 does (data.label.positive)"
    assert code == 0 and told in err
