"""A run whose checkpoints are lost: it does not begin again in silence, and nothing of what is left is removed."""

import shutil

import pytest

from marius_oac import resume, train
from marius_oac.errors import CheckpointError, InputError
from marius_oac.runs.checkpoints.retention import SAVED, START, Checkpoints, read_saved
from marius_oac.runs.folder.about import ABOUT
from marius_oac.runs.folder.folder import RunFolder
from marius_oac.runs.peers import Peers
from tests.graphs import tiny_config
from tests.run_folders import contents, outcome, says, stop_at, story

pytestmark = pytest.mark.usefixtures("forked_programs")
MORE = ["training.epochs=3"]


class Crash(Exception):
    pass


@pytest.fixture
def stopped(graph, tmp_path):
    """A run that was killed after its first checkpoints, of which no evaluation tells."""
    config = tiny_config(graph, "checkpoint.every_batches=10", "evaluation.every=0")
    with pytest.raises(Crash):
        train(config, tmp_path / "run", probe=stop_at("compute", 24, Crash()))
    return tmp_path / "run"


def lose(run):
    shutil.rmtree(run / "checkpoints")


def test_it_is_refused_by_name_until_it_is_told_to_start(stopped, graph, command, tmp_path):
    lose(stopped)
    before = contents(stopped)
    for _ in range(2):
        code, _, err = command("resume", stopped)
        assert code == 2 and says(err, f"{stopped}/checkpoints: ", "they are gone", f"--checkpoint {START}")
        assert contents(stopped) == before
    assert command("resume", stopped, "--checkpoint", START)[0] == 0
    train(tiny_config(graph, "checkpoint.every_batches=10", "evaluation.every=0"), tmp_path / "whole")
    assert story(stopped) == story(tmp_path / "whole") and outcome(stopped) == outcome(tmp_path / "whole")


@pytest.mark.parametrize("tells", ["summary", "evaluation"])
def test_a_run_that_has_lost_its_record_tells_by_its_other_files(finished, tmp_path, tells):
    run = shutil.copytree(finished, tmp_path / "run")
    (run / SAVED).unlink()
    if tells == "evaluation":
        (run / "summary.json").unlink()
    lose(run)
    before = contents(run)
    with pytest.raises(CheckpointError, match="they are gone"):
        resume(run, MORE)
    assert contents(run) == before


@pytest.mark.parametrize("noted", [True, False])
def test_a_run_that_was_killed_before_its_first_checkpoint_begins_again(graph, tmp_path, noted):
    config = tiny_config(graph, "metrics.every_batches=5", "evaluation.every=0")
    with pytest.raises(Crash):
        train(config, tmp_path / "run", probe=stop_at("compute", 20, Crash()))
    if not noted:
        (tmp_path / "run" / SAVED).unlink()
    resume(tmp_path / "run")
    train(config, tmp_path / "whole")
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")


def test_of_one_that_is_left_the_run_goes_on_and_says_so(stopped, capsys):
    shutil.rmtree(stopped / "checkpoints" / "0000000020")
    resume(stopped)
    assert "note: checkpoint 0000000020 is gone: the run goes on from 0000000010" in capsys.readouterr().err


def test_what_all_have_saved_is_noted_before_an_older_one_goes(graph, tmp_path, monkeypatch):
    run, seen = tmp_path / "run", []
    real = Checkpoints._remove

    def remove(self, name):
        seen.append((name, read_saved(run)))
        real(self, name)

    monkeypatch.setattr(Checkpoints, "_remove", remove)
    train(tiny_config(graph, "checkpoint.every_batches=10", "checkpoint.keep=1", "evaluation.every=0"), run)
    assert seen == [(f"{n:010d}", f"{m:010d}") for n, m in ((10, 20), (20, 25), (25, 30), (30, 40), (40, 50))]
    resume(run, MORE, checkpoint="0000000050")
    seen.clear()
    resume(run, checkpoint=START)
    assert seen[0] == ("0000000075", "") and read_saved(run) == "0000000075"


def test_a_checkpoint_that_another_process_lacks_is_gone_back_to_by_none(stopped, monkeypatch):
    """Else those that have it would remove their later ones before the error comes."""

    def agreed(self, make):
        make()
        raise InputError("there is no such checkpoint", "node b")

    monkeypatch.setattr(Peers, "agreed", agreed)
    before = contents(stopped)
    with pytest.raises(InputError, match="node b"):
        resume(stopped, checkpoint="0000000010")
    assert contents(stopped) == before


def test_a_run_over_nodes_goes_on_over_nodes(stopped, command):
    """Its checkpoints lie with the nodes: here alone there seem to be none."""
    (stopped / "nodes").mkdir()
    lose(stopped)
    _refused_on_one_box(stopped, command)


def test_so_does_one_whose_nodes_have_it_all(stopped, command):
    folder = RunFolder.open(stopped)
    (stopped / ABOUT).write_bytes(folder.about.model_copy(update={"over_nodes": True}).dump())
    lose(stopped)
    _refused_on_one_box(stopped, command)
    code, _, err = command("eval", stopped)
    assert code == 2 and says(err, f"{stopped}/nodes: no checkpoint: the parts of all nodes must lie here, and don't")


def _refused_on_one_box(run, command):
    before = contents(run)
    for argv in ((), ("--checkpoint", START)):
        code, _, err = command("resume", run, *argv)
        assert code == 2 and says(err, "was trained over nodes; it goes on with --nodes FILE, or --local-nodes N")
    assert contents(run) == before


def test_a_damaged_note_is_named(stopped, command):
    (stopped / SAVED).write_text('{"checkpoint": "../elsewhere"}')
    lose(stopped)
    code, _, err = command("resume", stopped)
    assert code == 2 and says(err, "saved.json: is damaged")
