"""Runs from strangers: nothing that their files hold is run, unless the user says so or has trained with it."""

import importlib.util
import os
import shutil
import stat
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace

import pytest

import marius_oac
from marius_oac import resume, train
from marius_oac.config.link_prediction import Config
from marius_oac.errors import InputError
from marius_oac.models.compute import trust
from marius_oac.models.compute import user_code as own_code
from marius_oac.models.compute.user_code import admit, load_own
from marius_oac.nodes.groups.thread_group import ThreadGroup
from marius_oac.nodes.training import cluster as node_training
from marius_oac.nodes.training.elastic import _ElasticWorker
from marius_oac.runs.folder.folder import RunFolder
from marius_oac.runs.folder.user_code import code_to_resume
from tests.click_logs import ctr_config, small_log
from tests.graphs import tiny_config
from tests.run_folders import contents, outcome, says, stop_at, write_config

NETWORK = """
import torch
from marius_oac import Network
from marius_oac.models.ctr.network import equal_dimension

class Net(Network):
    def __init__(self, schema, config):
        super().__init__(schema, config)
        self.out = torch.nn.Linear(equal_dimension(schema, config), 1)

    def forward(self, inputs):
        return self.out(torch.stack(inputs.fields).mean(0)).squeeze(1)
"""
LAYER = """
import torch

class Layer(torch.nn.Module):
    activation = staticmethod(torch.relu)

    def __init__(self, inputs):
        super().__init__()
        self.width, self.weight = 8, torch.nn.Linear(inputs, 8)

    def forward(self, values, block, lanes):
        return self.weight(values[:block.num_outputs])
"""


@pytest.fixture(scope="module")
def made(graph, tmp_path_factory):
    """Runs with code of the user's own, by task, with what evaluates them; trained by somebody else."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "my_net.py").write_text(NETWORK)
    (folder / "my_layer.py").write_text(LAYER)
    log = small_log(folder / "day.parquet", rows=64)
    names = graph.node_names(range(graph.num_nodes))
    rows = [
        f"{name}\tclass {number % 8}\t{'test' if number % 5 == 0 else 'train'}" for number, name in enumerate(names)
    ]
    (folder / "labels.tsv").write_text("\n".join(["name\tlabel\tsplit", *rows]) + "\n")
    layers = f"encoder.layers=[{{kind: module, module: '{folder}/my_layer.py:Layer', neighbors: 2}}]"
    configs = {
        "ctr": ctr_config(log, "training.epochs=1", network=f"{folder}/my_net.py:Net"),
        "graph": tiny_config(graph, "training.epochs=1", layers),
        "classes": Config.build(
            {"task": "node_classification", "device": "cpu", "threads": 1,
             "data": {"path": str(graph.path), "labels": str(folder / "labels.tsv")},
             "model": {"dimension": 8}, "training": {"epochs": 1}},
            [layers],
        ),
    }  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder / "somebody else's"))
        for task, config in configs.items():
            write_config(folder / f"{task}.yaml", config)
            train(config, folder / task)
    return folder


def commands(task, run, made, out):
    """What a user may do with a run."""
    node = ["--head", "1", "--relation", "1"]
    some = {
        "ctr": [["eval", run, "--data", made / "day.parquet"],
                ["predict", run, "--data", made / "day.parquet", "--out", out / "p.parquet"]],
        "graph": [["eval", run], ["predict", run, *node], ["export", run, "--out", out / "e"]],
        "classes": [["eval", run], ["predict", run, "--node", "1"], ["export", run, "--out", out / "e"]],
    }[task]  # fmt: skip
    return [*some, ["resume", run, "--set", "training.epochs=2"]]


def hostile(run, task, marker):
    """Makes a run's code leave a mark, with every checksum as it should be."""
    name = "my_net.py" if task == "ctr" else "my_layer.py"
    text = (run / name).read_text() + f"\nopen({str(marker)!r}, 'w').close()\n"
    folder = RunFolder.open(run)
    (run / name).write_text(text)
    (run / "run.json").write_bytes(folder.about.with_files({name: text}).dump())
    return run / name


@pytest.fixture
def foreign(made, tmp_path, monkeypatch):
    """`foreign(task)`: a run from a stranger, whose own file is not here, and what its code would leave."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    def make(task):
        run = shutil.copytree(made / task, tmp_path / task)
        shutil.copy(run / "config.yaml", tmp_path / "config.yaml")
        text = (run / "config.yaml").read_text()
        (run / "config.yaml").write_text(text.replace(f"{made}/my_", f"{tmp_path}/none/my_"))
        return run, hostile(run, task, tmp_path / "marker"), tmp_path / "marker"

    return make


@pytest.mark.parametrize("task", ["ctr", "graph", "classes"])
def test_a_run_from_a_stranger_runs_none_of_its_code(made, foreign, tmp_path, command, task):
    run, file, marker = foreign(task)
    for words in commands(task, run, made, tmp_path):
        before = contents(run)
        code, out, err = command(*words)
        assert (code, out) == (2, []) and says(err, f"{file}: is code that you have not trained with here", "--trust")
        assert not marker.exists()
        assert {**contents(run), ".lock": ""} == {**before, ".lock": ""}
    assert command("compare", run, made / task)[0] == 0 and not marker.exists()
    for words in commands(task, run, made, tmp_path):
        assert command(*words, "--trust")[0] == 0
        assert marker.exists()
        marker.unlink()
    words = commands(task, run, made, tmp_path)[0]
    assert command(*words)[0] == 0 and marker.exists()  # `resume --trust` was training with it


def test_what_this_user_has_trained_with_runs_wherever_it_lies(made, tmp_path, command, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert command("train", made / "ctr.yaml", "--out", tmp_path / "run")[0] == 0
    assert command(*commands("ctr", made / "ctr", made, tmp_path)[0])[0] == 0  # somebody else's, with the same text
    (record,) = (tmp_path / "state" / "marius_oac" / "own_code").iterdir()
    assert (record.stat().st_size, stat.S_IMODE(record.stat().st_mode)) == (0, 0o600)
    assert stat.S_IMODE(record.parent.stat().st_mode) == 0o700
    record.unlink()
    assert command(*commands("ctr", tmp_path / "run", made, tmp_path)[0])[0] == 2


def test_a_file_that_was_edited_is_asked_about_and_known_then(made, tmp_path, command):
    shutil.copy(made / "my_net.py", tmp_path / "my_net.py")
    config = Config.load(made / "ctr.yaml", [f"model.network={tmp_path}/my_net.py:Net"])
    train(config, tmp_path / "run")
    with open(tmp_path / "my_net.py", "a") as file:
        file.write("# another line\n")
    more = ["resume", tmp_path / "run", "--set", "training.epochs=2"]
    code, _, err = command(*more)
    assert code == 2 and says(err, f"{tmp_path}/my_net.py: is code that you have not trained with here")
    code, _, err = command(*more, "--trust")
    assert code == 0 and "note: my_net.py has changed since it was last trained; the run keeps the new one" in err
    assert command(*commands("ctr", tmp_path / "run", made, tmp_path)[0])[0] == 0
    assert resume(tmp_path / "run", ["training.epochs=3"]).summary["training.epochs"] == 3


def test_what_becomes_of_a_file_while_it_is_trained_with_does_not_matter(made, tmp_path):
    shutil.copy(made / "my_net.py", tmp_path / "my_net.py")
    overrides = [f"model.network={tmp_path}/my_net.py:Net", f"data.test={made}/day.parquet"]
    config = Config.load(made / "ctr.yaml", overrides)
    train(config, tmp_path / "whole")

    def edit(stage, batch):
        (tmp_path / "my_net.py").write_text("1 / 0")

    train(config, tmp_path / "run", probe=edit)
    assert (tmp_path / "run" / "my_net.py").read_text() == NETWORK
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")


def test_a_kept_text_that_was_changed_is_damaged(made, tmp_path, command):
    run = shutil.copytree(made / "ctr", tmp_path / "run")
    (run / "my_net.py").write_text(NETWORK + "# another line\n")
    code, _, err = command(*commands("ctr", run, made, tmp_path)[0], "--trust")
    assert code == 2 and says(err, "my_net.py: is damaged: it is not what was written")


def test_a_run_goes_on_with_the_text_that_it_has_kept(made, tmp_path, command):
    shutil.copy(made / "my_net.py", tmp_path / "my_net.py")
    config = Config.load(made / "ctr.yaml", [f"model.network={tmp_path}/my_net.py:Net", "training.epochs=2"])
    whole = train(config, tmp_path / "whole")
    with pytest.raises(ZeroDivisionError):
        train(config, tmp_path / "run", probe=stop_at("compute", 2, ZeroDivisionError()))
    (tmp_path / "my_net.py").unlink()
    code, _, err = command("resume", tmp_path / "run")
    assert code == 0
    assert f"note: {tmp_path}/my_net.py has gone: the run goes on with the text that it has kept" in err
    assert outcome(tmp_path / "run") == outcome(whole.path)


def test_a_compiled_file_beside_a_known_text_is_not_run(made, tmp_path):
    path = tmp_path / "my_net.py"
    path.write_text("make = 1\n")
    trust.record([path.read_bytes()])
    (tmp_path / "other.py").write_text(f"open({str(tmp_path / 'marker')!r}, 'w').close()\nmake = 2\n")
    code = compile((tmp_path / "other.py").read_text(), str(path), "exec")
    compiled = Path(importlib.util.cache_from_source(str(path)))
    compiled.parent.mkdir()
    # Of the kind that Python never compares with its source.
    unchecked = importlib._bootstrap_external._code_to_hash_pyc(code, b"12345678", checked=False)
    compiled.write_bytes(unchecked)
    assert load_own(path, "make", "a key") == 1 and not (tmp_path / "marker").exists()


def test_files_that_a_strangers_configuration_names_are_not_run(made, tmp_path, command, monkeypatch):
    """They may be this user's own, and do anything."""
    run = shutil.copytree(made / "ctr", tmp_path / "run")
    (tmp_path / "deploy").mkdir()
    script = tmp_path / "deploy" / "my_net.py"
    script.write_text(f"open({str(tmp_path / 'marker')!r}, 'w').close()\n")
    text = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(text.replace(f"{made}/my_net.py", str(script)))
    code, _, err = command("resume", run, "--set", "training.epochs=2")
    assert code == 2 and says(err, f"{script}: is code that you have not trained with here")
    assert not (tmp_path / "marker").exists()


def test_a_guest_runs_no_file_because_a_run_names_it(made, tmp_path):
    script = tmp_path / "my_net.py"
    script.write_text(f"open({str(tmp_path / 'marker')!r}, 'w').close()\n{NETWORK}")
    config = Config.load(made / "ctr" / "config.yaml", [f"model.network={script}:Net"])
    log = (made / "ctr" / "log.json").read_text()
    fingerprint = RunFolder.open(made / "ctr").about.data
    elastic_worker = object.__new__(_ElasticWorker)
    elastic_worker._overrides, elastic_worker._trust = (), False
    told = {"config": config.dump(), "files": {"log.json": log, "my_net.py": NETWORK}, "fingerprint": fingerprint}
    with pytest.raises(InputError, match=f"{script}: is code that you have not trained with here"):
        elastic_worker._task(told)
    elastic_worker._trust = True
    with pytest.raises(InputError, match="my_net.py: is not the text that the run trains with"):
        elastic_worker._task(told)
    assert not (tmp_path / "marker").exists()
    script.write_text(NETWORK)
    assert elastic_worker._task(told).fingerprint == fingerprint


@pytest.mark.parametrize("where", ["a file in the way", "others may write", "a link", "no home"])
def test_a_record_that_can_not_be_kept_stops_no_training(made, tmp_path, command, monkeypatch, where):
    state = tmp_path / "state"
    folder = state / "marius_oac" / "own_code"
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    if where == "a file in the way":
        state.write_text("")
    elif where == "others may write":
        folder.mkdir(parents=True)
        folder.chmod(0o777)
        (folder / trust._digest(NETWORK.encode())).touch()  # theirs
    elif where == "a link":
        (tmp_path / "elsewhere").mkdir()
        folder.parent.mkdir(parents=True)
        folder.symlink_to(tmp_path / "elsewhere")
        (tmp_path / "elsewhere" / trust._digest(NETWORK.encode())).touch()
    else:
        monkeypatch.setenv("XDG_STATE_HOME", "relative")
        monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    code, _, err = command("train", made / "ctr.yaml", "--out", tmp_path / "run")
    said = [line for line in err if line.startswith("note: what code you train with can't be noted down (")]
    assert code == 0 and len(said) == 1 and said[0].endswith("later commands will need --trust")
    words = commands("ctr", tmp_path / "run", made, tmp_path)[0]
    assert command(*words)[0] == 2
    assert command(*words, "--trust")[0] == 0


def test_the_record_is_bounded_and_forgets_what_was_trained_with_longest_ago(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(trust, "MOST", 3)
    for number in range(5):
        trust.record([b"%d" % number])
        os.utime(trust._folder() / trust._digest(b"%d" % number), ns=(number, number))
        trust.record([b"0"])  # again and again
    (trust._folder() / "a file of the user's").touch()
    trust.record([b"5"])
    assert [trust.is_known(b"%d" % number) for number in range(6)] == [True, False, False, False, True, True]
    assert (trust._folder() / "a file of the user's").exists()


def test_several_processes_record_at_once(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    texts = [b"%d" % number for number in range(40)]
    with ProcessPoolExecutor(4, get_context("fork")) as pool:
        list(pool.map(_record, [texts[number % 4 :: 2] for number in range(8)]))
    assert all(map(trust.is_known, texts)) and not trust.is_known(b"another")


_record = partial(trust.record)


@pytest.mark.slow
def test_nothing_is_imported_from_the_folder_that_the_command_is_called_in(tmp_path):
    """`python -m` would take a yaml.py that lies beside a run for the library."""
    root = Path(marius_oac.__file__).parent
    used = {path.stem for path in (tmp_path, *root.rglob("*.py"))} - {root.name}
    for name in ("typing", "argparse", "json", "yaml", "numpy", "torch", "pydantic", "dataclasses", "hashlib"):
        assert name not in used
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'marker')!r}, 'w').write({name!r})\n")
    environment = {**os.environ, "PYTHONPATH": str(root.parent)}
    words = [sys.executable, "-m", "marius_oac", "eval", "."]
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 2 and "is no run: it has no run.json" in done.stderr
    assert not (tmp_path / "marker").exists()


def test_nothing_is_run_without_being_admitted(made, tmp_path):
    path = tmp_path / "my_net.py"
    path.write_text(f"open({str(tmp_path / 'marker')!r}, 'w').close()\n")
    with pytest.raises(InputError, match="not trained with here"):
        load_own(path, "make", "a key")
    config = Config.load(made / "ctr.yaml", [f"model.network={path}:Net"])
    with pytest.raises(InputError, match="not trained with here"):
        admit(config)
    assert not (tmp_path / "marker").exists()


def test_who_is_started_again_runs_what_this_command_names_and_nothing_else(made, tmp_path, monkeypatch):
    """torchrun starts a command again also where it has refused a run that was there already: a stranger's."""
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no record")))
    mine = tmp_path / "net.py"
    mine.write_text(NETWORK + "# mine\n")
    config = Config.load(made / "ctr.yaml", [f"model.network={mine}:Net"])
    (group,) = ThreadGroup.members(1)
    place = SimpleNamespace(attempt=1, rank=0)
    monkeypatch.setattr(own_code, "_TEXTS", {})
    monkeypatch.setattr(node_training, "open_group", lambda place: nullcontext(group))

    def resumed(run, *arguments):
        trust = arguments[-1]
        code_to_resume(config, run, trust)  # as it was begun
        return code_to_resume(RunFolder.open(run).config, run, trust)

    monkeypatch.setattr(node_training, "_resumed", resumed)
    with pytest.raises(InputError, match="my_net.py: is code that you have not trained with here"):
        node_training.train_on_nodes(config, place, made / "ctr")
