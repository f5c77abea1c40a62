"""The page of a search: what it says of trials that never were, that it needs nothing else, and what it refuses."""

import json
from pathlib import Path

import numpy as np
import pytest

from marius_oac.cli.commands import main
from marius_oac.config.space import SpaceConfig
from marius_oac.config.task import load_config
from marius_oac.runs.report.parts import number_text
from marius_oac.training.tune.figures import MOST_DRAWN, by_epoch, by_setting, by_trial, drawn
from marius_oac.training.tune.report import config_section, read_study, trials_section, write_study_report
from marius_oac.training.tune.results import ranked
from marius_oac.training.tune.sampling import Sampling
from marius_oac.training.tune.trials import Trial, TrialsFolder
from tests.runs.test_report import EVIL, Page

BASE = Path(__file__).parents[3] / "examples" / "codex-s.yaml"
SPACE = {
    "training.optimizer.learning_rate": {"low": 0.01, "high": 1.0, "log": True},
    "model.decoder": ["complex", "distmult", EVIL],
    "seed": {"low": 0, "high": 9},
}


def trial(number, random):
    """Only the learning rate counts: the nearer to 0.3, the better."""
    rate = float(10 ** random.uniform(-2, 0))
    values = dict(zip(SPACE, (rate, SPACE["model.decoder"][random.integers(3)], int(random.integers(10))), strict=True))
    value = round(0.5 - abs(np.log10(rate / 0.3)) / 5, 4)
    found = Trial(number=number, values=values, seconds=2.0)
    if number % 7 == 3:
        return found.model_copy(update={"state": "failed", "why": f"{EVIL} is no decoder"})
    if number % 7 == 5:
        return found.model_copy(update={"state": "pruned", "curve": ((1, 0.125),)})
    update = {"state": "complete", "value": value, "curve": ((1, value / 2), (2, value)), "test": {"test.auc": 0.75}}
    return found.model_copy(update=update)


@pytest.fixture(scope="module")
def search(tmp_path_factory):
    return made_up(tmp_path_factory.mktemp("searches") / "s", [trial(n, np.random.default_rng(n)) for n in range(40)])


def made_up(path, trials, **shared):
    folder = TrialsFolder(path)
    (path / "trials").mkdir(parents=True)
    shared = {"config": load_config(BASE).model_dump(mode="json"), "space": {"space": SPACE}} | shared
    (path / "search.json").write_text(json.dumps(shared))
    for each in trials:
        folder.write(each)
    return path


def test_a_page_says_what_the_search_found_and_needs_nothing_else(search, tmp_path):
    assert main(["report", str(search), "--out", str(tmp_path / "page.html")]) == 0
    text = (tmp_path / "page.html").read_text()
    assert write_study_report(search).read_text() == text, "the same each time"
    page = Page(text)
    said = " ".join(" ".join(page.texts).split())
    assert not {tag for tag, _ in page.found} & {"script", "iframe", "img", "form", "fieldset", "input"}
    assert "\u202e" not in text and "#0100" not in text and "#0101" not in text and len(text) < 1 << 20
    ids = [attrs["id"] for _, attrs in page.found if "id" in attrs]
    assert len(ids) == len(set(ids))
    trials = read_study(search).trials
    best = max((each for each in trials if each.value is not None), key=lambda each: each.value)
    counts = [sum(each.state == state for each in trials) for state in ("complete", "pruned", "failed")]
    assert "{} complete, {} stopped early, {} failed".format(*counts) in said
    assert f"The best is trial {best.number};" in said and "it has: auc 0.7500" in said
    assert "40 trials of 3 settings by tpe , pruner median , seed 0" in said and "compared by filtered.mrr" in said
    assert said.count("is no decoder") == counts[2] and "stopped early by the pruner, valid filtered.mrr 0.125" in said
    order = [said.index(f"trial's valid filtered.mrr by its {key}") for key in SPACE]
    assert order[0] == min(order), "the setting that matters most comes first"


def test_tables_of_the_best_and_of_values(search):
    study = read_study(search)
    complete = ranked(study.trials)
    found = by_setting(0, "model.decoder", study.space.space["model.decoder"], study.trials, complete[0], study.name)
    expected = []
    for name in SPACE["model.decoder"]:
        values = [each.value for each in complete if each.values["model.decoder"] == name]
        expected.append([name, str(len(values)), number_text(max(values)), number_text(float(np.mean(values)))])
    assert found.table.rows == expected
    key = "training.optimizer.learning_rate"
    ranged = by_setting(1, key, study.space.space[key], study.trials, complete[0], study.name).table.rows
    assert len(ranged) == 10 and sum(int(row[1]) for row in ranged) == len(complete)
    assert [float(row[0].split(" to ")[0]) for row in ranged] == sorted(
        float(row[0].split(" to ")[0]) for row in ranged
    )


def test_what_matters_is_told_from_enough_trials_on_and_is_the_same_each_time():
    trials = [trial(number, np.random.default_rng(number)) for number in range(40)]
    asked = Sampling(SpaceConfig.model_validate({"space": SPACE}))
    shares = asked.importances(trials)
    assert list(shares)[0] == "training.optimizer.learning_rate" and shares == asked.importances(trials)
    assert sum(shares.values()) == pytest.approx(1) and set(shares) == set(SPACE)
    complete = [each for each in trials if each.value is not None]
    assert asked.importances(complete[:19]) == {} != asked.importances(complete[:20])
    one = Sampling(SpaceConfig.model_validate({"space": {"seed": [1, 2]}}))
    assert one.importances([each.model_copy(update={"values": {"seed": 1}}) for each in complete]) == {}


def test_the_best_trials_their_config_and_each_improvement(search):
    study = read_study(search)
    complete = ranked(study.trials)
    (best, others), (config,) = trials_section(study).blocks, config_section(study, complete[0]).blocks
    assert [row[0] for row in best.rows] == [str(each.number) for each in complete[:10]]
    assert {row[0] for row in others.rows} == {str(each.number) for each in study.trials if each.value is None}
    rows = {key: (value, mark) for key, value, mark in config.rows}
    assert rows["seed"] == (str(complete[0].values["seed"]), "searched") and rows["model.dimension"][1] == ""
    values = [0.1, 0.3, 0.3, None, 0.2, 0.5]
    trials = [Trial(number=n, values={}, state="complete" if v else "failed", value=v) for n, v in enumerate(values)]
    assert by_trial(trials, trials[5], "mrr").table.rows == [["0", "0.1"], ["1", "0.3"], ["5", "0.5"]]


def test_a_trial_that_was_evaluated_once_is_drawn_by_epoch():
    ended = {"state": "complete", "value": 0.5, "values": {}}
    long = Trial(number=0, curve=((1, 0.25), (2, 0.5)), **ended)
    short = [Trial(number=n, state="pruned", values={}, curve=((1, 0.125 * n),)) for n in (1, 2)]
    alone, among = (by_epoch([long, *more], long, "auc").drawings[""]["wide"] for more in ([], short))
    assert among.count("<use") == alone.count("<use") + 2
    assert by_epoch([Trial(number=0, curve=((1, 0.5),), **ended), *short], long, "auc") is None


def test_many_trials_are_thinned_but_the_best_is_drawn():
    trials = [Trial(number=n, values={}, state="complete", value=float(n == 7)) for n in range(5 * MOST_DRAWN)]
    shown = drawn(trials, trials[7])
    assert len(shown) == MOST_DRAWN + 1 and shown[2].number == 7 and shown[1].number == 5


@pytest.mark.parametrize("ended", [[], ["failed", "running"]])
def test_a_search_without_a_result(tmp_path, ended):
    values = dict(zip(SPACE, (0.5, "complex", 1), strict=True))
    trials = [Trial(number=n, values=values, state=state) for n, state in enumerate(ended)]
    text = write_study_report(made_up(tmp_path / "s", trials)).read_text()
    assert "No trial is complete yet." in text and ("has not ended" in text) == bool(ended)


def test_what_is_damaged_or_not_asked_for_right_is_one_line(search, tmp_path, capsys):
    def told(*words):
        assert main(["report", *map(str, words)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        return line

    assert "is a search, whose report has no other run" in told(search, search)
    assert "is a search, whose report has no other run" in told(search, "--quality")
    assert "search.json: is damaged: config and space are expected" in told(made_up(tmp_path / "a", [], space=3))
    assert "search.json" in told(made_up(tmp_path / "b", [], config={"task": "knitting"}))
    assert "search.json: is damaged" in told(made_up(tmp_path / "c", [], space={"space": {}}))
    linked = made_up(tmp_path / "d", [])
    (linked / "trials" / "0000.json").symlink_to(search / "trials" / "0000.json")
    assert "0000.json: is a symbolic link that leads out" in told(linked)
    for number, name in enumerate(("search.json", "trials")):
        linked = made_up(tmp_path / f"link{number}", [])
        (linked / name).rename(tmp_path / f"{name}{number}")
        (linked / name).symlink_to(tmp_path / f"{name}{number}")
        assert f"{name}: is a symbolic link that leads out" in told(linked)
    assert not list(tmp_path.glob("*/report.html"))
