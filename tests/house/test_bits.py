"""What tells whether two versions train the same bits."""

import json
import shutil

import numpy as np
import pytest

from marius_oac import Config
from tests.bits import CASES, compared, digests
from tests.run_folders import flip_a_byte


@pytest.fixture
def run(tmp_path):
    """What is read of a run over two nodes: two checkpoints in two parts, and results."""
    for node, number in enumerate(("a", "b")):
        for sequence in (8, 16):
            folder = tmp_path / "run" / "nodes" / "2-x" / number / "checkpoints" / f"{sequence:010d}"
            folder.mkdir(parents=True)
            (folder / "manifest.json").write_text("{}")
            for part in ("values", "state", "timestamps"):
                np.save(folder / f"rows.{part}.npy", np.full((3, 2), sequence + node, np.float32))
            (folder / "dense.safetensors").write_bytes(bytes(64))
    (tmp_path / "run" / "summary.json").write_text(json.dumps({"test.auc": 0.5, "test.seconds": 1, "other": 2}))
    return tmp_path / "run"


@pytest.mark.parametrize("name", ["rows.values.npy", "rows.state.npy", "dense.safetensors"])
@pytest.mark.parametrize("node", ["a", "b"])
def test_a_changed_bit_of_what_was_trained_is_seen(run, name, node):
    before = digests(run)
    flip_a_byte(run / "nodes" / "2-x" / node / "checkpoints" / "0000000016" / name)
    assert digests(run)["trained"] != before["trained"] and digests(run)["results"] == before["results"]


def test_so_are_another_result_and_another_name_but_neither_times_nor_earlier_checkpoints(run):
    before = digests(run)
    newest = run / "nodes" / "2-x" / "b" / "checkpoints" / "0000000016"
    flip_a_byte(newest / "rows.timestamps.npy")
    shutil.rmtree(newest.with_name("0000000008"))
    (run / "summary.json").write_text(json.dumps({"test.auc": 0.5, "test.seconds": 3, "other": 4}))
    assert digests(run) == before
    (run / "summary.json").write_text(json.dumps({"test.auc": 0.25, "test.seconds": 1, "other": 2}))
    (newest / "rows.state.npy").rename(newest / "row.state.npy")
    assert {kind for kind, digest in digests(run).items() if digest != before[kind]} == {"trained", "results"}


def test_the_table_says_what_differs():
    one, other = "1" * 64, "1" * 63 + "2"  # beyond the digits that are shown
    found = {"here": {"x": {"trained": one}, "y": {"trained": one}}}
    assert compared(found)[1] and not any("same" in line for line in compared(found)[0])
    found["there"] = {"x": {"trained": one}, "y": {"trained": other}}
    lines, same = compared(found)
    assert not same and [line.split(" | ")[-1] for line in lines[2:]] == ["same |", "differs |"]


def test_a_run_that_did_not_end_is_the_same_as_none(run):
    (run / "summary.json").unlink()
    assert not compared({"here": {"x": digests(run)}, "there": {"x": digests(run)}})[1]


def test_all_configurations_are_taken():
    for case in CASES:
        Config.build(case.config).replace(*case.resumed)
    assert len({case.name for case in CASES}) == len(CASES)
