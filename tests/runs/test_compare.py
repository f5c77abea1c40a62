"""Comparing against a loop over all numbers."""

import math
import shutil

import numpy as np
import pytest
import torch

from marius_oac.errors import InputError
from marius_oac.runs.checkpoints.parts import ShardedCheckpoint
from marius_oac.runs.checkpoints.retention import Checkpoints
from marius_oac.runs.compare import compare
from marius_oac.storage.contract import RowLayout
from marius_oac.storage.initial import RowInitial
from marius_oac.storage.memory import MemoryStore
from marius_oac.training import local as training
from marius_oac.training.trained import compare_runs
from tests.graphs import tiny_config

ROWS = 40_000  # more than two blocks


def saved(folder, values, dimension=2, dense=None, timestamp=0):
    store = MemoryStore(
        "entities", len(values), RowLayout(dimension, values.shape[1] - dimension), RowInitial("normal", 1, 0, "e")
    )
    store.load(0, np.full(len(values), timestamp), values)
    return Checkpoints(folder).save(0, [store], dense or {}, {}, keep=1)


def numbers(rows=ROWS, width=3):
    return np.random.default_rng(0).standard_normal((rows, width)).astype(np.float32)


def test_the_same_bits_whatever_the_timestamps(tmp_path):
    found = compare(saved(tmp_path / "a", numbers()), saved(tmp_path / "b", numbers(), timestamp=7))
    assert found.same and "the same bits" in str(found)
    assert [one.name for one in found.differences] == ["entities.values", "entities.state"]


def test_differences_against_a_loop(tmp_path):
    ours, theirs = numbers(), numbers()
    for row, column, change in [(20_000, 1, 0.5), (20_000, 0, -0.25), (39_999, 1, 2.0), (3, 2, 1.0)]:
        theirs[row, column] += np.float32(change)
    dense = [{"relations": torch.zeros(3, 2)}, {"relations": torch.tensor([[0.0, 0], [0, -0.0], [0, 0]])}]
    found = compare(saved(tmp_path / "a", ours, dense=dense[0]), saved(tmp_path / "b", theirs, dense=dense[1]),
                    {"entities": lambda ids: [f"node {i}" for i in ids]})  # fmt: skip
    values, state, relations = found.differences
    gaps = [abs(float(a) - float(b)) for a, b in zip(ours[:, :2].flat, theirs[:, :2].flat, strict=True)]
    assert not found.same and (values.rows, values.differing, values.first) == (ROWS, 2, 20_000)
    assert values.first_name == "node 20000" and "first row 20000 (node 20000)" in str(found)
    assert values.largest == max(gaps) and math.isclose(values.mean, sum(gaps) / len(gaps))
    assert (state.differing, state.first) == (1, 3)
    assert (relations.differing, relations.first, relations.largest) == (1, 1, 0)  # -0.0 is another bit


def test_numbers_that_are_none(tmp_path, monkeypatch):
    monkeypatch.setattr("marius_oac.runs.checkpoints.checkpoint._check_finite", lambda *args: None)
    ours, theirs = numbers(5), numbers(5)
    ours[2, 0] = theirs[2, 0] = np.nan  # the same bits
    ours[3, 0], theirs[3, 0], theirs[3, 1] = np.inf, np.inf, 0
    found = compare(saved(tmp_path / "a", ours), saved(tmp_path / "b", theirs))
    assert found.differences[0].differing == 1 and math.isnan(found.differences[0].largest)


def test_no_state_and_no_rows(tmp_path):
    found = compare(saved(tmp_path / "a", numbers(5, 2)), saved(tmp_path / "b", numbers(5, 2)))
    assert found.same


@pytest.mark.parametrize("what", ["rows", "dimension", "tables"])
def test_what_cannot_be_compared(tmp_path, what):
    other = {"rows": (numbers(4), 2, None), "dimension": (numbers(5), 3, None),
             "tables": (numbers(5), 2, {"bias": torch.zeros(1)})}[what]  # fmt: skip
    with pytest.raises(InputError, match="can't be compared"):
        compare(saved(tmp_path / "a", numbers(5)), saved(tmp_path / "b", *other))


def test_runs_are_compared_with_names_where_the_graph_is(graph, finished, tmp_path):
    assert compare_runs(finished, finished).same
    training.train(tiny_config(graph, "seed=1", "model.reciprocal=true"), tmp_path / "a")
    training.train(tiny_config(graph, "seed=2", "model.reciprocal=true"), tmp_path / "b")
    values, state, relations = compare_runs(tmp_path / "a", tmp_path / "b").differences
    assert values.first_name == graph.node_names([0])[0] and relations.first_name == graph.relation_names([0])[0]
    text = (tmp_path / "a" / "config.yaml").read_text()
    (tmp_path / "a" / "config.yaml").write_text(text.replace(str(graph.path), str(tmp_path / "gone")))
    found = compare_runs(tmp_path / "a", tmp_path / "b")
    assert not found.same and found.differences[0].first_name is None
    shutil.rmtree(tmp_path / "b" / "checkpoints" / "0000000100")
    with pytest.raises(InputError, match="no checkpoint '0000000100'"):
        compare_runs(tmp_path / "a", tmp_path / "b")


@pytest.mark.parametrize("damaged", ["a", "b"])
@pytest.mark.parametrize("part", ["values", "state", "timestamps"])
def test_damage_of_either_run_is_found_though_the_manifests_are_equal(finished, tmp_path, damaged, part):
    for name in ("a", "b"):
        shutil.copytree(finished, tmp_path / name)
    path = max((tmp_path / damaged / "checkpoints").glob(f"*/entities.{part}.npy"))
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match=f"{damaged}/checkpoints/.*{part}.npy: is damaged: its checksum differs"):
        compare_runs(tmp_path / "a", tmp_path / "b")


def test_parts_of_nodes_have_no_checksum_of_a_whole_array(tmp_path):
    part = saved(tmp_path / "a", numbers(5))
    assert set(part.checksums()) == {f"entities.{each}" for each in ("values", "state", "timestamps")}
    assert ShardedCheckpoint(part.path, 0, {}, part.files, {}).checksums() == {}


def test_dense_parameters_of_any_shape_and_type(tmp_path):
    def dense(bias, count):
        return {"bias": torch.tensor(bias), "count": torch.tensor([1, count]), "weights": torch.ones(1, 2, 1)}

    ours = saved(tmp_path / "a", numbers(2), dense=dense(1.5, 2**40))
    found = compare(ours, saved(tmp_path / "b", numbers(2), dense=dense(1.25, 2**40 + 1)))
    told = {one.name: (one.differing, one.first, one.largest) for one in found.differences[2:]}
    assert told == {"bias": (1, 0, 0.25), "count": (1, 1, 1.0), "weights": (0, -1, 0.0)}
