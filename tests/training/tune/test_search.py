"""A search whose trials are told here how they go: what it keeps, in which order, and what it goes on from."""

import json
import shutil
import signal
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from marius_oac.errors import InputError, MariusOacError
from marius_oac.training.tune import processes
from marius_oac.training.tune import search as module
from marius_oac.training.tune.processes import Running
from marius_oac.training.tune.request import TuneRequest
from marius_oac.training.tune.trials import Trial, TrialsFolder
from tests.nodes.outliving import ASKS

BASE = Path(__file__).parents[3] / "examples" / "codex-s.yaml"


class Ended:
    """A process that has."""

    def __init__(self, returncode=0):
        self.returncode = returncode


class Told:
    """In the place of `Processes`: trials end in the order in which they began, `slots` at once.

    `play` has, for a number of a trial, its curve, its exit code and the processes that are alive, or an error.
    """

    def __init__(self, folder, metric, slots):
        self.folder, self.slots, self.running = folder, slots, []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def room(self):
        return len(self.running) < self.slots

    def start(self, trial, config, overrides):
        self.started.append((trial.number, overrides))
        self.folder.run(trial.number).mkdir(exist_ok=True)
        self.folder.file(trial.number, "log").write_text("a line\nmarius-oac tune: it is wrong\n")
        one = Running.__new__(Running)
        one.trial, one.process, one.stopped = trial, Ended(), None
        one.__class__ = type("Fake", (Running,), {"seconds": 1.0, "stop": lambda self: None})
        self.running.append(one)

    def wait(self):
        one = self.running[0]
        curve, one.process.returncode = self.play(one.trial)
        done = len(one.trial.curve)
        if done < len(curve) and not one.stopped:
            one.trial = one.trial.model_copy(update={"curve": (*one.trial.curve, (done + 1, curve[done]))})
            return [], [one]
        return [self.running.pop(0)], []


@pytest.fixture
def search(tmp_path, monkeypatch):
    """Calls `tune` with trials that go as `play` says; returns what there is afterwards."""
    monkeypatch.setattr(module, "Processes", Told)
    monkeypatch.setattr(module.Search, "_with_result", lambda self, trial: trial.model_copy(
        update={"state": "complete", "value": trial.curve[-1][1], "test": {"test.filtered.mrr": 0.25}}))  # fmt: skip
    (tmp_path / "space.yaml").write_text("space:\n  seed: {low: 0, high: 1000000}\n  training.batch_size: [100, 200]\n")

    def call(play, trials=6, **others):
        monkeypatch.setattr(Told, "play", staticmethod(play), raising=False)
        monkeypatch.setattr(Told, "started", [], raising=False)
        request = TuneRequest(BASE, tmp_path / "space.yaml", trials=trials, out=tmp_path / "out", **others)
        return module.tune(request)

    call.folder = TrialsFolder(tmp_path / "out")
    return call


def good(trial):
    return [0.1, 0.2, 0.3 + trial.number % 4 / 100], 0


def runs(folder):
    return sorted(path.name for path in (folder.path / "runs").iterdir())


def test_the_best_is_kept_and_of_equal_ones_the_first(search):
    outcome = search(good, trials=8)  # 3 and 7
    assert (outcome.best.number, round(outcome.best.value, 2), len(outcome.trials)) == (3, 0.33, 8)
    assert runs(search.folder) == ["0003"]
    text = str(outcome)
    assert "8 complete" in text and "test, by which nothing was chosen: filtered.mrr 0.2500" in text
    best = (search.folder.path / "best.yaml").read_text()
    assert best.startswith("# Trial 3 of 8: valid filtered.mrr 0.3300")
    assert f"\nseed: {outcome.best.values['seed']}\n" in best


def test_all_runs_are_kept_if_asked_for(search):
    search(good, trials=3, keep=True)
    assert runs(search.folder) == ["0000", "0001", "0002"]


def test_a_hopeless_trial_is_stopped_and_a_failed_one_told(search, capfd):
    def play(trial):
        return ([0.01, 0.02, 0.03], 130) if trial.number == 6 else ([], 2) if trial.number == 1 else good(trial)

    outcome = search(play, trials=8)
    pruned, failed = outcome.trials[6], outcome.trials[1]
    assert (pruned.state, pruned.curve, pruned.value) == ("pruned", ((1, 0.01),), None)
    assert (failed.state, failed.why) == ("failed", "it is wrong")
    table = [line.split("\t") for line in (search.folder.path / "trials.tsv").read_text().splitlines()]
    assert [row[1] for row in table] == ["state", "complete", "failed", *["complete"] * 4, "pruned", "complete"]
    assert table[2][-1] == "it is wrong"
    said = capfd.readouterr().err
    assert "2 of 8: trial 1: failed: it is wrong" in said and "7 of 8: trial 6: stopped after epoch 1" in said


def test_values_that_do_not_go_together_fail_without_a_process(search, tmp_path):
    (tmp_path / "space.yaml").write_text("space:\n  training.negatives.chunks: [2, 5000]\n  seed: {low: 0, high: 99}\n")
    outcome = search(good, trials=8)
    failed = [trial for trial in outcome.trials if trial.values["training.negatives.chunks"] == 5000]
    assert failed and all("5000 chunks of a batch of 500" in trial.why for trial in failed)
    assert {number for number, _ in Told.started} == {0, 1, 2, 3, 4, 5, 6, 7} - {trial.number for trial in failed}


def test_it_ends_when_all_of_the_first_fail(search):
    with pytest.raises(InputError, match="all of the first 5 trials failed; the last: it is wrong"):
        search(lambda trial: ([], 2), trials=20)
    assert len(Told.started) == 5


def test_one_more_than_memory_has_room_for_is_a_failed_trial(search):
    outcome = search(lambda trial: ([0.1], -9) if trial.number == 1 else good(trial), trials=3)
    assert outcome.trials[1].why == "was killed by signal 9; there may be too little memory"


@pytest.mark.parametrize("code, what", [(1, "has ended with a defect"), (143, "was stopped by a signal")])
def test_a_defect_or_a_signal_from_elsewhere_ends_it_and_it_goes_on(search, code, what):
    with pytest.raises(MariusOacError, match=f"trial 2 {what}, see .*0002.log; the same command goes on"):
        search(lambda trial: ([0.1], code) if trial.number == 2 else good(trial))
    outcome = search(good)
    assert [number for number, _ in Told.started] == [2, 3, 4, 5] and outcome.best.number == 3


@contextmanager
def killed_at(monkeypatch, moment):
    """The search is killed when its `moment`-th file is about to be written."""
    count, write = 0, TrialsFolder.write

    def dying(self, trial):
        nonlocal count
        count += 1
        if count == moment:
            raise SystemExit
        write(self, trial)

    with monkeypatch.context() as patched:
        patched.setattr(TrialsFolder, "write", dying)
        yield


def test_wherever_it_is_killed_the_outcome_is_that_of_a_search_that_was_not(search, monkeypatch):
    def play(trial):
        return ([0.01], 130) if trial.number == 6 else ([], 2) if trial.number == 1 else good(trial)

    expected = search(play, trials=7)
    files = {path.name: path.read_text() for path in search.folder.path.iterdir() if path.is_file()}
    writes = sum(2 + len(trial.curve) for trial in expected.trials)
    for moment in {*range(1, writes + 1, 7), writes - 1, writes}:  # the last trial is the one that is stopped
        shutil.rmtree(search.folder.path)
        with killed_at(monkeypatch, moment), pytest.raises(SystemExit):
            search(play, trials=7)
        assert search(play, trials=7) == expected
        assert {path.name: path.read_text() for path in search.folder.path.iterdir() if path.is_file()} == files
        assert runs(search.folder) == ["0003"]


def test_more_trials_later_are_those_that_more_at_once_would_have_been(search):
    search(good, trials=3)
    later = search(good, trials=6)
    shutil.rmtree(search.folder.path)
    assert search(good, trials=6) == later


def test_other_settings_in_the_same_folder_are_refused(search, tmp_path):
    search(good, trials=2)
    with pytest.raises(InputError, match=r"was begun with config.model.dimension 400, and now it is 100"):
        search(good, overrides=("model.dimension=100",))
    (tmp_path / "space.yaml").write_text("space: {seed: [1, 2]}\n")
    with pytest.raises(InputError, match="was begun with space"):
        search(good)


def test_a_folder_of_something_else_a_link_and_damage_are_refused(search, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match="exists already, and is no search"):
        search(good)
    (out / "mine.txt").unlink()
    search(good, trials=2)
    trial = json.loads(search.folder.file(1, "json").read_text())
    search.folder.file(1, "json").write_text(json.dumps(trial | {"number": 0}))
    with pytest.raises(InputError, match="is damaged: it is of trial 0"):
        search(good)
    search.folder.file(1, "json").write_text(json.dumps(trial | {"state": "won"}))
    with pytest.raises(InputError, match="0001.json: is damaged: state must be"):
        search(good)
    (tmp_path / "else").mkdir()
    (tmp_path / "else" / "mine.txt").write_text("mine")
    search.folder.file(1, "json").unlink()
    search.folder.remove_run(0)
    search.folder.run(0).symlink_to(tmp_path / "else")
    with pytest.raises(InputError, match="is a symbolic link"):
        search.folder.remove_run(0)
    assert (tmp_path / "else" / "mine.txt").exists()


def test_two_searches_in_one_folder(search):
    search(good, trials=1)
    shared = json.loads((search.folder.path / "search.json").read_text())
    with search.folder.locked(shared), pytest.raises(InputError, match="another process is searching"):
        search(good)


def test_wishes_that_can_not_be_met(search):
    with pytest.raises(InputError, match="--jobs: 5000 trials at once, and there are"):
        search(good, jobs=5000)
    with pytest.raises(InputError, match="evaluation.every: is 0, and trials are compared by validation"):
        search(good, overrides=("evaluation.every=0",))


def test_a_trial_without_a_value_is_told_by_what_it_has():
    trial = Trial(number=1, values={"a.rate": 1e-7, "a.kind": None, "a.many": True})
    assert trial.told() == "rate=1e-07 kind=null many=True"


def test_the_kernel_ends_the_process_of_a_trial_with_the_search(tmp_path, monkeypatch):
    """Also before it has begun to do so itself: the program says what it was started with."""
    program = tmp_path / "python"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -S -c "{ASKS}"\n')
    program.chmod(0o755)
    monkeypatch.setattr(processes.sys, "executable", str(program))
    (tmp_path / "trials").mkdir()
    folder = TrialsFolder(tmp_path)
    with processes.Processes(folder, "mrr", 1) as made:
        made.start(Trial(number=1, values={}), "x.yaml", ())
        made.running[0].process.wait(60)
    assert folder.file(1, "log").read_text() == f"{int(signal.SIGKILL)}\n"
