"""What the training loop waits for where processes train together: told by a crew of one that writes down its calls."""

import pytest

from marius_oac import resume, train
from marius_oac.errors import Interrupted, NodeLost
from marius_oac.pipeline.runner import Pipeline
from marius_oac.runs.checkpoints import retention as checkpoints
from marius_oac.runs.checkpoints.retention import Checkpoints
from marius_oac.runs.loop import TrainingLoop
from marius_oac.runs.peers import Peers
from marius_oac.runs.session import Session
from tests.graphs import tiny_config

TOLD = {
    "batches": (Pipeline, "run"),
    "wait": (Peers, "wait"),
    "write": (checkpoints, "write_checkpoint"),
    "load": (TrainingLoop, "_load"),
    "evaluate": (Session, "evaluate"),
}


@pytest.fixture
def told(monkeypatch):
    """The names of what happened, in order."""
    events = []

    def tells(name, real):
        def call(*arguments, **named):
            events.append(name)
            return real(*arguments, **named)

        return call

    for name, (owner, attribute) in TOLD.items():
        monkeypatch.setattr(owner, attribute, tells(name, getattr(owner, attribute)))
    return events


def test_nobody_saves_or_looks_at_rows_before_everyone_has_come_so_far(graph, tmp_path, told):
    train(tiny_config(graph, "training.epochs=2", "checkpoint.every_batches=10"), tmp_path / "run")
    for number, event in enumerate(told):
        if event == "batches":
            assert told[number + 1] == "wait"  # another trainer's batches may not be in our rows yet
    told.clear()
    resume(tmp_path / "run", checkpoint="0000000050")
    assert told[:4] == [
        "load",
        "wait",
        "wait",
        "evaluate",
    ]  # else the first looks at rows that others are still loading


def test_a_checkpoint_goes_when_all_have_the_next(graph, tmp_path, monkeypatch):
    """With one that is kept, a crash between the saves of two nodes would leave no moment that both have."""
    folder = Checkpoints(tmp_path / "run" / "checkpoints")

    def wait(self):
        if len(folder.names()) == 2:
            raise NodeLost("node1", "has ended")

    monkeypatch.setattr(Peers, "wait", wait)
    with pytest.raises(NodeLost):
        train(tiny_config(graph, "training.epochs=2", "checkpoint.keep=1", "evaluation.every=0"), tmp_path / "run")
    assert folder.names() == ["0000000025", "0000000050"]


def test_the_best_checkpoint_is_forgotten_by_all_where_one_has_it_no_more(graph, tmp_path, monkeypatch):
    train(tiny_config(graph, "training.epochs=2"), tmp_path / "run")
    real, found = Peers.common, []
    monkeypatch.setattr(Peers, "common", lambda self, names: found.append(names) or real(self, names[1:]))
    made = []
    monkeypatch.setattr(TrainingLoop, "run", lambda self: made.append(self))
    resume(tmp_path / "run", checkpoint="0000000050")  # whose best is 25, which another one lacks
    assert found[-1] == ["0000000025", "0000000050"] and made[0].position.best < 0


def test_who_is_stopped_among_an_epochs_last_batches_goes_on_from_there(graph, tmp_path, monkeypatch):
    """Over nodes all end some batches after the request; the epoch may end before, without a checkpoint of its own."""
    real = Pipeline.run

    def run(self, first, last):
        reached = real(self, first, last)
        self.request_stop()
        return reached

    monkeypatch.setattr(Pipeline, "run", run)
    config = tiny_config(graph, "training.epochs=4", "checkpoint.every_epochs=3", "evaluation.every=0")
    with pytest.raises(Interrupted, match="batch 25"):
        train(config, tmp_path / "run")
    assert Checkpoints(tmp_path / "run" / "checkpoints").names() == ["0000000025"]
