"""Files changed with their structure in mind: the same cases each time, and that what goes wrong in one is seen."""

import json
import random
import shutil

import numpy as np
import pytest

from marius_oac.data.graphs.graph import Graph
from marius_oac.runs.folder.folder import RunFolder
from tests.chaos import children, resealed
from tests.chaos.resealed_changes import change
from tests.chaos.resealed_seals import reseal_all
from tests.graphs import copy_of_graph
from tests.run_folders import contents

CASES = {"graph": 14, "run": 14, "disk": 10, "clicks": 12, "logs": 12}


@pytest.mark.slow
def test_no_change_does_more_than_be_refused():
    faults = [str(outcome) for outcome in resealed.sample(CASES) if outcome.fault]
    assert not faults, "\n\n".join(faults)


def test_what_was_not_changed_is_sealed_as_it_was(finished, graph, tmp_path):
    run, folder = shutil.copytree(finished, tmp_path / "run"), copy_of_graph(graph, tmp_path / "graph")
    before = contents(run)
    reseal_all(tmp_path)
    assert contents(run) == before and Graph.open(folder).fingerprint == graph.fingerprint


def test_what_was_changed_is_sealed_anew(finished, graph, tmp_path):
    run, folder = shutil.copytree(finished, tmp_path / "run"), copy_of_graph(graph, tmp_path / "graph")
    edges = np.load(folder / "train.npy")
    np.save(folder / "train.npy", edges[::-1])
    config = (run / "config.yaml").read_text().replace(str(graph.path), str(folder))
    (run / "config.yaml").write_text(config)
    (values,) = run.glob("checkpoints/*0/entities.values.npy")
    np.save(values, 2 * np.load(values))
    reseal_all(tmp_path)
    opened, checkpoint = Graph.open(folder), RunFolder.open(run)
    checkpoint.check_data(opened.fingerprint, checkpoint.config)
    assert opened.fingerprint != graph.fingerprint
    assert np.array_equal(checkpoint.checkpoint().array("entities", "values"), np.load(values))


def test_a_case_is_the_same_everywhere(graph, tmp_path):
    def changed(name):
        folder = copy_of_graph(graph, tmp_path / name)
        said = [change(path, random.Random(path.name)) for path in sorted(folder.iterdir())]
        return said, contents(folder)

    assert changed("a") == changed("b") and len(changed("c")[0]) > 5


def cases(tmp_path, monkeypatch, made=None):
    """A specimen of one file and a command that does as the test wants."""
    folder = tmp_path / "specimen"
    folder.mkdir()
    monkeypatch.chdir(tmp_path)
    found = object.__new__(resealed._Cases)
    found.specimen, found._folder, found.here = "x", folder, folder / "sandbox" / "here"
    for each in (found.here, folder / "out"):
        each.mkdir(parents=True)
    (found.here / "file").write_text("x")
    return found


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (lambda here: 0, None),
        (lambda here: print("marius-oac: wrong", file=resealed.sys.stderr) or 2, None),
        (lambda here: 2, "0 lines"),
        (lambda here: print("x\n" * 50, file=resealed.sys.stderr) or 2, "51 lines"),
        (lambda here: 1 // 0, "ZeroDivisionError"),
        (lambda here: print("\ud800"), "UnicodeEncodeError"),
        (lambda here: print("Traceback (most recent call last)", file=resealed.sys.stderr) or 2, "Traceback"),
        (lambda here: 3, "exit code 3"),
        (lambda here: (here.parent / "evil").write_text("x") and 0, "files elsewhere"),
        (lambda here: (here.parents[1] / "evil").write_text("x") and 0, "files elsewhere"),
        (lambda here: print("no", file=resealed.sys.stderr) or (here / "file").unlink() or 2, "refused, but changed"),
    ],
)
def test_what_goes_wrong_is_seen(tmp_path, monkeypatch, act, said):
    found = cases(tmp_path, monkeypatch)
    monkeypatch.setattr("marius_oac.cli.commands.main", lambda words: act(found.here))
    fault = found._command(("eval", "HERE"), 30)[1]
    assert fault is None if said is None else said in fault


SLOW = "import faulthandler, time; faulthandler.dump_traceback_later(0.1, exit=True); time.sleep(20)"


@pytest.mark.parametrize("end", ["import os; os.kill(os.getpid(), 11)", SLOW], ids=["crash", "hang"])
def test_the_end_of_a_process_is_seen(tmp_path, monkeypatch, end):
    told = [{"of": {"specimen": "x", "number": 0, "change": "one"}, "done": True},
            {"of": {"specimen": "x", "number": 1, "change": "two"}, "done": False}]  # fmt: skip

    def command(line, **given):
        text = "".join(f"print({json.dumps(each)!r}, flush=True);" for each in told)
        return real([children.sys.executable, "-c", text + end], **given)

    real = children.subprocess.Popen
    monkeypatch.setattr(children.subprocess, "Popen", command)
    outcomes = list(resealed._child("x", 0, 2, tmp_path / "x", None))
    assert [each.number for each in outcomes] == [0, 1]
    assert outcomes[0].fault is None and "has ended with code" in outcomes[1].fault
