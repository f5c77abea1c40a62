"""A search whose trials are told here how they go: what it keeps, in which order, and what it goes on from."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from marius_oac.config.space import SpaceConfig
from marius_oac.errors import DivergedError, InputError, Interrupted
from marius_oac.insight.tune import search as module
from marius_oac.insight.tune.results import told
from marius_oac.insight.tune.search import Search, TuneRequest
from marius_oac.insight.tune.study import STUDY, Trials, check_optuna

BASE = Path(__file__).parents[3] / "examples" / "codex-s.yaml"


class Killed(BaseException):
    """The process ends here."""


def evaluation(epoch, value):
    return {"kind": "evaluation", "split": "valid", "epoch": epoch - 1, "filtered.mrr": value}


@pytest.fixture
def search(tmp_path, monkeypatch):
    """Calls `tune` with trials that go as `play` says: it returns results by epoch, or raises an error."""
    (tmp_path / "space.yaml").write_text("space:\n  seed: {low: 0, high: 1000000}\n  training.batch_size: [100, 200]\n")

    def call(play, trials=6, **others):
        def train(self, trial, config):
            call.started.append(trial.number)
            self._run(trial.number).mkdir(exist_ok=True)
            for epoch, value in enumerate(play(trial), 1):
                self._judge(trial, evaluation(epoch, value), epochs=3)

        def result(self, trial, config):
            trial.set_user_attr("test", {"test.filtered.mrr": 0.25})
            return self._trials.known(trial.number)[3]

        monkeypatch.setattr(Search, "_train", train)
        monkeypatch.setattr(Search, "_result", result)
        call.started = []
        return module.tune(TuneRequest(BASE, tmp_path / "space.yaml", trials=trials, out=call.folder, **others))

    call.folder = tmp_path / "out"
    return call


def good(trial):
    return [0.1, 0.2, 0.3 + trial.number % 4 / 100]


def with_others(trial):
    """The seventh is hopeless, the second diverges."""
    if trial.number == 1:
        raise DivergedError(3, 1e30)
    return [0.01, 0.02, 0.03] if trial.number == 6 else good(trial)


def runs(folder):
    return sorted(path.name for path in (folder / "runs").iterdir())


def facts(outcome):
    return [(each.number, each.state.name, each.value, each.params, each.intermediate_values, each.user_attrs)
            for each in outcome.trials]  # fmt: skip


def test_the_best_is_kept_and_of_equal_ones_the_first(search):
    outcome = search(good, trials=8)  # 3 and 7
    assert outcome.run == search.folder / "runs" / "0003" and len(outcome.trials) == 8
    assert runs(search.folder) == ["0003"]
    text = str(outcome)
    assert "8 complete" in text and "test, by which nothing was chosen: filtered.mrr 0.2500" in text
    best = (search.folder / "best.yaml").read_text()
    assert best.startswith("# Trial 3 of 8: valid filtered.mrr 0.3300")
    assert f"\nseed: {outcome.trials[3].params['seed']}\n" in best


def test_all_runs_are_kept_if_asked_for(search):
    search(good, trials=3, keep=True)
    assert runs(search.folder) == ["0000", "0001", "0002"]


def test_a_hopeless_trial_is_stopped_and_a_failed_one_told(search, capfd):
    outcome = search(with_others, trials=8)
    pruned, failed = outcome.trials[6], outcome.trials[1]
    assert (pruned.state.name, pruned.intermediate_values) == ("PRUNED", {1: 0.01})
    assert failed.state.name == "FAIL" and failed.user_attrs["why"].startswith("diverged")
    said = capfd.readouterr().err
    assert "2 of 8: trial 1: failed: diverged" in said and "7 of 8: trial 6: stopped after epoch 1" in said


def test_values_that_do_not_go_together_fail_without_a_run(search, tmp_path):
    (tmp_path / "space.yaml").write_text("space:\n  training.negatives.chunks: [2, 5000]\n  seed: {low: 0, high: 99}\n")
    outcome = search(good, trials=8)
    failed = [trial for trial in outcome.trials if trial.params["training.negatives.chunks"] == 5000]
    assert failed and all("5000 chunks of a batch of 500" in trial.user_attrs["why"] for trial in failed)
    assert {*search.started} == {*range(8)} - {trial.number for trial in failed}


def test_it_ends_when_all_of_the_first_fail(search):
    def play(trial):
        raise MemoryError("of the machine")

    with pytest.raises(InputError, match="all of the first 5 trials failed; the last: there is not enough memory"):
        search(play, trials=20)
    assert len(search.started) == 5


def test_ctrl_c_and_a_defect_end_it_and_it_goes_on(search):
    for error, match in ((Interrupted("stopped; go on with resume", 15), "the same command"), (KeyError("x"), "x")):

        def play(trial, error=error):
            if trial.number == 2:
                raise error
            return good(trial)

        with pytest.raises(type(error), match=match) as raised:
            search(play)
        assert getattr(raised.value, "exit_code", 143) == 143
    outcome = search(good)
    assert search.started == [2, 3, 4, 5] and outcome.run.name == "0003"


@pytest.mark.parametrize("where, moment", [
    ("_judge", 8), ("_write_best", 2),
    *(pytest.param(*each, marks=pytest.mark.slow) for each in (("_judge", 1), ("_judge", 16), ("_write_best", 4),
                                                               ("_remove_run", 5)))
])  # fmt: skip
def test_wherever_it_is_killed_the_outcome_is_that_of_a_search_that_was_not(search, monkeypatch, where, moment):
    """It is killed at the `moment`-th call of a method."""
    expected = facts(search(with_others, trials=7))
    best = (search.folder / "best.yaml").read_text()
    shutil.rmtree(search.folder)
    count, called = 0, getattr(Search, where)

    def dying(self, *args, **others):
        nonlocal count
        count += 1
        if count == moment:
            raise Killed
        return called(self, *args, **others)

    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(Search, where, dying)
        search(with_others, trials=7)
    assert facts(search(with_others, trials=7)) == expected
    assert (search.folder / "best.yaml").read_text() == best
    assert runs(search.folder) == ["0003"]


def test_more_trials_later_are_those_that_more_at_once_would_have_been(search):
    search(good, trials=3)
    later = facts(search(good, trials=6))
    shutil.rmtree(search.folder)
    assert facts(search(good, trials=6)) == later


def test_a_trial_of_another_process_is_left_to_it(search):
    """While a trial runs, another search in the folder makes the rest, and does not touch that one's run."""
    others = []

    def play(trial):
        if trial.number == 1 and not others:
            others.append(None)
            others.append(search(good))
        return good(trial)

    outcome = search(play)
    assert [each.state.name for each in others[1].trials] == ["COMPLETE", "RUNNING", *["COMPLETE"] * 4]
    assert {each.state.name for each in outcome.trials} == {"COMPLETE"} and runs(search.folder) == ["0003"]


def test_other_settings_in_the_same_folder_are_refused(search, tmp_path):
    search(good, trials=2)
    with pytest.raises(InputError, match=r"was begun with config.model.dimension 400, and now it is 100"):
        search(good, overrides=("model.dimension=100",))
    (tmp_path / "space.yaml").write_text("space: {seed: [1, 2]}\n")
    with pytest.raises(InputError, match="was begun with space"):
        search(good)


def test_a_folder_of_something_else_a_link_and_damage_are_refused(search, tmp_path):
    search.folder.mkdir()
    (search.folder / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match="exists already, and is no search"):
        search(good)
    (search.folder / "mine.txt").unlink()
    (tmp_path / "else").mkdir()
    (tmp_path / "else" / "mine.txt").write_text("mine")
    search(good, trials=1)
    shutil.rmtree(search.folder / "runs" / "0000")
    (search.folder / "runs" / "0000").symlink_to(tmp_path / "else")
    with pytest.raises(InputError, match="is a symbolic link"):
        search(lambda trial: [0.5, 0.6, 0.7], trials=2)
    assert (tmp_path / "else" / "mine.txt").exists()
    for damage in (b"no journal\n", b"{}\n", b"[1]\n", b'{"op_code": 4}\n', b"\xff\n", b'{"op_code": 99}\n' * 2):
        (search.folder / STUDY).write_bytes(damage)
        with pytest.raises(InputError, match="study.journal: is damaged: "):
            search(good)


def test_a_trial_that_was_killed_as_it_was_chosen_has_failed_and_a_strangers_is_refused(search):
    search(good, trials=2)
    path = search.folder / STUDY
    lines = path.read_text().splitlines(keepends=True)
    values = [place for place, line in enumerate(lines) if '"op_code":5' in line]
    path.write_text("".join(lines[: values[-1]]))  # the second trial has one of its two values
    assert [each.state.name for each in search(good, trials=3).trials] == ["COMPLETE", "FAIL", "COMPLETE"]
    path.write_text("".join(lines).replace('"param_name":"seed"', '"param_name":"model.decoder"'))
    with pytest.raises(InputError, match="study.journal: is damaged: trial 0 has values that are not of the space"):
        search(good, trials=3)


def test_what_a_full_disk_has_left_of_a_line_is_cut_off(search):
    expected = facts(search(good, trials=3))
    with open(search.folder / STUDY, "a") as file:
        file.write('{"op_code": 4, "wor')
    assert facts(search(good, trials=3)) == expected
    assert len(search(good, trials=4).trials) == 4


def test_a_search_without_evaluations_is_refused(search):
    with pytest.raises(InputError, match="evaluation.every: is 0, and trials are compared by validation"):
        search(good, overrides=("evaluation.every=0",))


def test_values_are_told_in_few_characters():
    assert told({"a.rate": 1e-7, "a.kind": None, "a.many": True}) == "rate=1e-07 kind=null many=True"


SPACE = {
    "rate": {"low": 0.01, "high": 1, "log": True},
    "share": {"low": 0, "high": 1, "step": 0.25},
    "count": {"low": 100, "high": 500, "step": 100},
    "size": {"low": 1, "high": 64, "log": True},
    "kind": ["a", None, True, 3, 0.5],
}


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_values_lie_in_the_space_and_follow_from_the_seed_and_the_results(tmp_path, sampler):
    def values(name, seed=0, sign=1):
        space = SpaceConfig.model_validate({"space": SPACE, "startup": 3, "sampler": sampler, "seed": seed})
        found = []
        for _ in range(6):
            trials = Trials(tmp_path / name, space)  # as of a process of its own
            trial = trials.ask()
            found.append(trial.params)
            trials.study.tell(trial, sign * (trial.params["share"] - trial.params["rate"]))
        return found

    first = values("a.db")
    for each in first:
        assert 0.01 <= each["rate"] <= 1 and each["share"] in (0, 0.25, 0.5, 0.75, 1)
        assert each["count"] in range(100, 501, 100) and each["size"] in range(1, 65)
        assert each["kind"] in SPACE["kind"] and {type(each["count"]), type(each["size"])} == {int}
    assert values("b.db") == first and values("c.db", seed=1)[0] != first[0]
    other = values("d.db", sign=-1)
    assert other[:3] == first[:3] and (other == first) == (sampler == "random")


@pytest.mark.slow
def test_nothing_of_a_study_is_unpickled(tmp_path):
    """In a process of its own, in which nothing can be."""
    program = (
        "import sys, pickle\n"
        "from pathlib import Path\n"
        "from marius_oac.config.space import SpaceConfig\n"
        "from marius_oac.insight.tune.study import Trials\n"
        "pickle.loads = pickle.load = pickle.Unpickler = None\n"
        "space = {'sampler': sys.argv[1], 'startup': 1, 'space': {'a': {'low': 0, 'high': 1}}}\n"
        "for _ in range(4):\n"
        "    trials = Trials(Path(sys.argv[2]), SpaceConfig.model_validate(space))\n"
        "    trial = trials.ask()\n"
        "    trial.report(1.0, 1), trial.should_prune()\n"
        "    trials.study.tell(trial, trial.params['a'])\n"
    )
    for sampler in ("tpe", "random"):
        subprocess.run([sys.executable, "-c", program, sampler, tmp_path / sampler], check=True, timeout=120)


def test_without_optuna_or_what_a_sampler_needs(monkeypatch):
    space = SpaceConfig.model_validate({"space": SPACE, "sampler": "gp"})
    monkeypatch.setitem(sys.modules, "scipy", None)
    with pytest.raises(InputError, match="sampler: gp: needs scipy: pip install scipy"):
        check_optuna(space)
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(InputError, match=r"needs Optuna: pip install '/path/to/marius_oac\[tune\]'"):
        check_optuna(space)
