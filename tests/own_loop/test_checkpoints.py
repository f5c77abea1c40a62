"""A loop of the user's own goes on from a checkpoint with the bits of one that was never stopped."""

import fcntl
import functools
import os
import shutil
import signal
import subprocess
import sys

import pytest
import torch
from torch import nn

import marius_oac
import marius_oac.torch as mt
from marius_oac.errors import CheckpointError, DivergedError, InputError
from marius_oac.torch import checkpoints
from tests.graphs import tiny_config
from tests.house.test_house import ROOT
from tests.own_loop.resumed import BATCHES, LOADERS, Training, equal


@functools.cache
def whole(loader="stateful"):
    training = Training(loader)
    with training.engine:
        training.run()
    return training.result()


def saved(folder, count, loader="stateful", **given):
    """Trains so many batches, saves amid the loop, and is left."""
    training = Training(loader, **given)
    with training.engine as engine:
        training.run(lambda trained: trained == count and not engine.save(folder))


def resumed(folder, loader="stateful", **given):
    training = Training(loader, **given)
    with training.engine as engine:
        assert engine.load(folder)
        training.run()
    return training.result()


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("count", [5, BATCHES, BATCHES + 1, 2 * BATCHES])
def test_a_loop_goes_on_where_it_was_saved(tmp_path, loader, count):
    saved(tmp_path, count, loader)
    assert equal(resumed(tmp_path, loader, in_flight=2), whole(loader))


def test_a_batch_that_no_optimizer_has_changed_is_drawn_again(tmp_path):
    training = Training()
    with training.engine as engine:
        batches = engine.batches(training.loader())
        for _ in range(5):
            training.train(next(batches))
        batch = next(batches)
        engine.save(tmp_path)
        training.train(batch)  # it can still be trained
    assert equal(resumed(tmp_path), whole())


@pytest.mark.parametrize("loader", LOADERS)
def test_a_checkpoint_before_the_first_batch_is_of_the_first_one(tmp_path, loader):
    training = Training(loader)
    with training.engine as engine:
        next(engine.batches(training.loader()))
        engine.save(tmp_path)
    assert equal(resumed(tmp_path, loader), whole(loader))


def test_a_batch_whose_rows_are_saved_is_handed_back(tmp_path):
    training = Training()
    with training.engine as engine:
        batch = next(batches := engine.batches(training.loader()))
        training.train(batch)
        engine.save(tmp_path)
        with pytest.raises(InputError, match="there is no batch at hand"):
            training.train(batch)
        training.train(next(batches))
    assert len(training.losses) == 2


@pytest.mark.parametrize("loader", LOADERS)
def test_a_loop_that_was_left_is_saved_as_it_was_left(tmp_path, loader):
    training = Training(loader)
    with training.engine as engine:
        training.run(lambda count: count == 9)
        engine.save(tmp_path)
    assert equal(resumed(tmp_path, loader), whole(loader))


def test_what_was_saved_between_passes_goes_on_with_the_next_pass(tmp_path):
    training = Training()
    with training.engine as engine:
        assert training.run(passes=1)
        engine.save(tmp_path)
        assert training.run()
    assert equal(training.result(), whole()) and equal(resumed(tmp_path), whole())


def test_a_checkpoint_is_saved_again_and_loaded_back_in_place(tmp_path):
    training = Training()
    with training.engine as engine:
        assert not engine.load(tmp_path)
        training.run(lambda count: engine.save(tmp_path) if count % 5 == 0 else count == 13)
        engine.load(tmp_path)
        assert len(training.losses) == 10
        engine.save(tmp_path)
        engine.save(tmp_path, keep=3)
        assert sorted(each.name for each in tmp_path.iterdir()) == ["0000000010", "0000000011", "0000000012"]
        training.run()
    assert equal(training.result(), whole())


@pytest.mark.usefixtures("forked_programs")
@pytest.mark.parametrize("disk", ["", pytest.param("disk", marks=pytest.mark.slow)])
def test_a_killed_loop_is_resumed_with_the_bits_of_one_that_was_not(tmp_path, disk):
    places = [str(tmp_path / disk)] * bool(disk)
    (tmp_path / disk).mkdir(exist_ok=True)

    def run(killed_at):
        command = [sys.executable, "-m", "tests.own_loop.resumed", str(tmp_path), str(killed_at), *places]
        return subprocess.run(command, cwd=ROOT, timeout=60, capture_output=True).returncode

    assert [run(5), run(17), run(0)] == [-signal.SIGKILL, -signal.SIGKILL, 0]
    assert equal(torch.load(tmp_path / "result.pt"), whole())


def test_a_damaged_checkpoint_changes_nothing(tmp_path):
    saved(tmp_path, 3)
    for path in sorted((tmp_path / "0000000003").iterdir()):
        kept = path.read_bytes()
        path.write_bytes(kept[:-9] + bytes([kept[-9] ^ 1]) + kept[-8:])
        training = Training()
        before = training.result()
        with training.engine as engine, pytest.raises(CheckpointError):
            engine.load(tmp_path)
        assert equal(training.result(), before)
        path.write_bytes(kept)


def other(**given):
    """An engine over another loop than `Training`'s."""
    items = mt.Embedding(given.pop("dimension", 4), seed=given.pop("seed", 0))
    model = nn.Sequential(items, nn.Dropout(0.3), nn.Linear(items.dimension, given.pop("outputs", 1)))
    optimizers = [given.pop("rows", mt.Adagrad)(model), given.pop("dense", torch.optim.Adam)(model.parameters())]
    stateful = given.pop("stateful", [optimizers[1], optimizers[1]])
    return mt.Engine(model, keys={items: "item"}, optimizers=optimizers, stateful=stateful)


@pytest.mark.parametrize(
    "given, line",
    [
        ({"dimension": 5}, "has table '0' as {'dimension': 4"),
        ({"seed": 5}, "has table '0' as"),
        ({"rows": mt.SGD}, "has table '0' as"),
        ({"dense": torch.optim.SGD}, "has the optimizers Adagrad, Adam, not Adagrad, SGD"),
        ({"outputs": 3}, "parameter '2.bias' is [1], and in the model [3]"),
        ({"stateful": []}, "has 2 objects of `stateful`, not 0"),
    ],
)
def test_a_checkpoint_of_another_loop_is_told(tmp_path, given, line):
    saved(tmp_path, 3)
    with other(**given) as engine, pytest.raises(CheckpointError) as error:
        engine.load(tmp_path)
    assert line in str(error.value) and "\n" not in str(error.value)


def test_an_engine_that_loaded_half_a_checkpoint_is_of_no_use(tmp_path):
    saved(tmp_path, 3)
    with other() as engine:
        with pytest.raises(CheckpointError, match="can't be loaded"):
            engine.load(tmp_path)
        with pytest.raises(InputError, match="the engine has failed"):
            engine.batches([])


def test_what_cannot_be_saved_is_told_and_leaves_no_checkpoint(tmp_path):
    training = Training()
    with training.engine as engine:
        with torch.no_grad():
            training.model[2].bias.fill_(float("nan"))
        with pytest.raises(DivergedError, match="parameter '2.bias'"):
            engine.save(tmp_path)
        training.model[2].bias.data.zero_()
        training.losses = [object()]
        with pytest.raises(InputError, match="state 'stateful.1.losses.0'.*can't be saved"):
            engine.save(tmp_path)
        training.losses = [functools.reduce(lambda inner, _: [inner], range(40), 0)]
        with pytest.raises(InputError, match="Engine.save: a state can't be saved: it is nested too deeply"):
            engine.save(tmp_path)
        training.losses = ["\ud800"]
        with pytest.raises(InputError, match="Engine.save: a state can't be saved: .* is no Unicode text"):
            engine.save(tmp_path)
        with pytest.raises(InputError, match="keep must be a number of at least 1, not 0"):
            engine.save(tmp_path, keep=0)
    assert not list(tmp_path.iterdir())


def test_a_state_as_deep_as_it_may_be_is_loaded_again(tmp_path):
    training = Training()
    with training.engine as engine:
        for depth in range(40):
            training.losses = [functools.reduce(lambda inner, _: [inner], range(depth), 2**100)]
            try:
                engine.save(tmp_path)
            except InputError:
                break
            assert engine.load(tmp_path)
    assert 5 < depth < 39


def test_a_state_too_large_for_a_manifest_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoints, "MOST_BYTES", 100)
    with other() as engine, pytest.raises(InputError, match="MiB are no tensors or arrays; make them such"):
        engine.save(tmp_path)
    assert not list(tmp_path.iterdir())


def test_checkpoints_of_something_else_are_left_alone(tmp_path, graph):
    run = marius_oac.train(tiny_config(graph), tmp_path / "run").path / "checkpoints"
    saved(tmp_path / "loop", 2)
    for folder in (run, tmp_path / "loop"):
        before = sorted(each.name for each in folder.iterdir())
        with other(dimension=5) as engine, pytest.raises(InputError, match="holds checkpoints of something else"):
            engine.save(folder, keep=1)
        assert sorted(each.name for each in folder.iterdir()) == before and before


def test_another_process_that_saves_there_is_told(tmp_path):
    saved(tmp_path, 2)
    there, opened = sorted(tmp_path.iterdir()), os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(opened, fcntl.LOCK_EX)
    with pytest.raises(InputError, match="another process saves its checkpoints there: name another folder"):
        saved(tmp_path, 3)
    assert sorted(tmp_path.iterdir()) == there
    os.close(opened)
    saved(tmp_path, 3)
    assert len([*tmp_path.iterdir()]) == 2


def test_a_damaged_checkpoint_says_how_to_go_on_from_the_one_before(tmp_path):
    saved(tmp_path, 2), saved(tmp_path, 4)
    (tmp_path / "0000000004" / "manifest.json").write_text("{}")
    with pytest.raises(CheckpointError, match="; to go on from 0000000002, remove its folder$"):
        resumed(tmp_path)
    shutil.rmtree(tmp_path / "0000000004")
    assert equal(resumed(tmp_path), whole())


def test_a_loader_shorter_than_what_was_trained_is_told(tmp_path):
    saved(tmp_path, 9, "generator")
    training = Training()
    with training.engine as engine:
        engine.load(tmp_path)
        with pytest.raises(InputError, match="the loader has 2 batches, but 9 of the pass were trained"):
            next(engine.batches([{}, {}]))


def test_an_object_without_state_is_refused():
    with pytest.raises(InputError, match="Engine: stateful: 3 has no state_dict"):
        other(stateful=[3])
