"""Click logs that trainers read together, for real: processes on this machine, with the command that a user types."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.nodes.test_node_training import OFTEN, configs, digests, run, start, wait_for_batches

__all__ = ["configs"]
pytestmark = pytest.mark.usefixtures("forked_programs")
EVEN = ["--set", "nodes.packing=even"]  # nothing is read before training


def copied(configs, path, label=None):
    """The log in row groups of 1,000, with a label of a row's own."""
    table = pq.read_table(configs / "day.parquet")
    if label is not None:
        row, value = label
        values = table.column("label").to_numpy().copy()
        values[row] = value
        table = table.set_column(table.column_names.index("label"), "label", pa.array(values))
    pq.write_table(table, path, row_group_size=1000, write_statistics=False)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 3])
def test_a_bad_row_ends_the_run_with_the_line_of_one_machine(configs, tmp_path, count):
    path = copied(configs, tmp_path / "bad.parquet", label=(4000, 7))
    data = ["--set", f"data.train={path}"]
    alone = run("train", configs / "clicks.yaml", *data, "--out", tmp_path / "alone", code=2)
    (told,) = [line for line in alone.splitlines() if "row 4001" in line]
    text = run("train", configs / "clicks.yaml", *data, *EVEN, "--local-nodes", count, "--out", tmp_path / "r", code=2)
    what = told.removeprefix("marius-oac: ")
    assert "Traceback" not in text and what in text, text
    assert all(what in line for line in text.splitlines() if "marius-oac: " in line), text


@pytest.mark.slow
def test_the_log_of_a_run_has_all_digests(configs, tmp_path):
    path = copied(configs, tmp_path / "log.parquet")
    for count, where in ((0, "alone"), (2, "two")):
        nodes = ["--local-nodes", count] if count else []
        run("train", configs / "clicks.yaml", "--set", f"data.train={path}", *nodes, "--out", tmp_path / where)
    found = [
        json.loads((tmp_path / where / "log.json").read_text())["files"][0]["pieces"] for where in ("alone", "two")
    ]
    assert found[0] == found[1] and None not in found[0] and len(found[0]) == 7


@pytest.mark.slow
def test_a_file_that_changes_while_a_run_trains_is_found_in_the_next_epoch(configs, tmp_path):
    path = copied(configs, tmp_path / "log.parquet")
    common = ["train", configs / "clicks.yaml", "--set", f"data.train={path}", "--set", "training.epochs=50", *OFTEN]
    process = start(*common, "--local-nodes", 2, "--out", tmp_path / "run")
    wait_for_batches(tmp_path / "run", process, 20)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1  # of a row group, not of the footer
    path.write_bytes(content)
    text, _ = process.communicate(timeout=240)
    assert process.returncode == 2 and "Traceback" not in text, text
    assert "log.parquet: has changed since it was first read: row group" in text


@pytest.mark.slow
def test_bits_do_not_depend_on_who_reads(configs, tmp_path):
    """Shuffled blocks, virtual parts, and a run that is stopped in the middle of a block and goes on with others."""
    path = copied(configs, tmp_path / "log.parquet")
    settings = [f"data.train={path}", "data.shuffle=3000", "nodes.parts=6", "training.epochs=2"]
    common = ["train", configs / "clicks.yaml", *(word for each in settings for word in ("--set", each))]
    run(*common, "--local-nodes", 1, "--out", tmp_path / "one")
    often = ["--set", "checkpoint.every_batches=30", "--set", "checkpoint.keep=9"]
    run(*common, *often, "--local-nodes", 2, "--out", tmp_path / "some")
    assert digests(tmp_path / "some") == digests(tmp_path / "one")
    run("resume", tmp_path / "some", "--local-nodes", 3, "--checkpoint", "0000000030")
    assert digests(tmp_path / "some") == digests(tmp_path / "one")
