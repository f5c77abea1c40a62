"""Trackers have the numbers of `metrics.jsonl`; callbacks see them; neither changes a bit of a run."""

import json
import re
from importlib.util import find_spec

import pytest

from marius_oac.errors import CallbackError, ConfigError
from marius_oac.runs.callbacks import Callbacks
from marius_oac.runs.folder.folder import RunFolder
from marius_oac.runs.tracking import trackers
from marius_oac.runs.tracking.contract import Tracker, Values
from marius_oac.runs.tracking.mlflow import metric_name
from marius_oac.runs.tracking.prometheus import Prometheus
from marius_oac.training.local import open_run, resume, train
from tests.graphs import tiny_config


def missing(package):
    return pytest.mark.skipif(find_spec(package) is None, reason=f"{package} is not installed")


def expected(path):
    """(kind, batch, name) -> number, of all lines and the summary; a later line replaces an earlier one."""
    lines = RunFolder.open(path).metrics.lines()
    summary = open_run(path).summary
    lines.append({"kind": "summary", "batch": summary["training.batches"], **summary})
    found = {}
    for line in lines:
        kind = line["split"] if line["kind"] == "evaluation" else line["kind"]
        for name, value in line.items():
            items = value.items() if isinstance(value, dict) else [(None, value)]
            for part, each in items:
                for inner, number in each.items() if isinstance(each, dict) else [(None, each)]:
                    if type(number) in (int, float) and name != "batch":
                        found[kind, line["batch"], ".".join(filter(None, (name, part, inner)))] = number
    return found


def of_prometheus(path):
    """Kind and name -> number, by the text format's rules; `name` is its batch, too."""
    text, found = (path / "metrics.prom").read_text(), {}
    assert text.endswith("\n")
    typed = set()
    for line in text.splitlines():
        if line.startswith("#"):
            typed.add(re.fullmatch(r"# TYPE (\w+) gauge", line)[1])
            continue
        family, run, name, number = re.fullmatch(
            r'(\w+)\{run="((?:[^"\\]|\\.)*)",name="([^"]*)"\} (\S+)', line
        ).groups()
        assert family in typed and run == path.name
        found[family, name] = float(number)
    return found


def test_a_run_with_trackers_and_callbacks_has_the_bits_of_one_without(graph, finished, tmp_path):
    seen = {"batch": [], "epoch": [], "evaluation": [], "checkpoint": []}
    callbacks = Callbacks(
        on_batch=lambda result: seen["batch"].append((result.batch_index, result.examples)),
        on_epoch=lambda line: (seen["epoch"].append(dict(line)), line.clear()),
        on_evaluation=lambda line: seen["evaluation"].append(line),
        on_checkpoint=lambda path: seen["checkpoint"].append((path.name, (path / "manifest.json").exists())),
    )
    path = tmp_path / "run"
    summary = train(tiny_config(graph, "trackers=prometheus"), path, callbacks=callbacks).summary
    plain = open_run(finished).summary
    assert [key for key in plain if "sha256" in key or "mrr" in key if plain[key] != summary[key]] == []
    assert (
        sorted(batch for batch, _ in seen["batch"]) == list(range(50))
        and sum(each for _, each in seen["batch"]) == 2 * graph.num_edges["train"]
    )
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    for kind in ("epoch", "evaluation"):
        assert seen[kind] == [line for line in lines if line["kind"] == kind]
    assert seen["checkpoint"] == [("0000000025", True), ("0000000050", True)]
    newest, found = {}, of_prometheus(path)
    for (kind, batch, name), number in expected(path).items():
        newest[re.sub(r"\W", "_", f"marius_oac_{kind}_{name}"), name] = number
        newest[f"marius_oac_{kind}_batch", "batch"] = batch
    assert found == newest and not list(path.glob(".*unfinished"))


@pytest.mark.parametrize("name", ["on_batch", "on_epoch", "on_evaluation", "on_checkpoint"])
def test_an_error_of_a_callback_is_the_users_own(graph, name, monkeypatch, tmp_path, finished):
    if name != "on_batch":  # without a run: what the loop calls
        callbacks = Callbacks(**{name: lambda value: 1 / 0})
        line = {"kind": name.removeprefix("on_"), "batch": 0}
        with pytest.raises(
            CallbackError, match=rf"^{name}, a callback of your own, has failed: ZeroDivisionError: div"
        ):
            callbacks.checkpoint(tmp_path) if name == "on_checkpoint" else callbacks.line(line)
        Callbacks().line(line)
        return

    def at_thirty(result):
        if result.batch_index == 30:
            raise KeyError("mine")

    with pytest.raises(CallbackError, match="on_batch, a callback of your own, has failed: KeyError: 'mine'") as caught:
        train(tiny_config(graph), tmp_path / "run", callbacks=Callbacks(on_batch=at_thirty))
    assert isinstance(caught.value.__cause__, KeyError) and caught.value.exit_code == 1
    ended, plain = resume(tmp_path / "run").summary, open_run(finished).summary
    assert ended["tables.entities.sha256"] == plain["tables.entities.sha256"]


class Failing(Tracker):
    def __init__(self, folder, first):
        self.first, self.seen = first, []

    def log(self, values):
        self.seen.append(values)
        if len(self.seen) == 2:
            raise OSError("no route to host")

    def close(self):
        raise AssertionError("it has been left out")


def test_a_tracker_that_fails_is_told_of_and_the_others_go_on(graph, tmp_path, monkeypatch, caplog):
    folder = RunFolder.create(tmp_path / "run", tiny_config(graph), "a graph")
    folder.metrics.add({"kind": "interval", "epoch": 0, "batch": 3, "loss": 1.5, "none": None, "nan": float("nan")})
    opened = []
    monkeypatch.setitem(trackers.KINDS, "mlflow", (lambda *given: opened.append(Failing(*given)) or opened[-1], None))
    with trackers.tracking(["mlflow", "prometheus"], folder, 4):
        for batch in (7, 8):
            line = {"kind": "evaluation", "split": "valid", "epoch": 1, "batch": batch, "auc": 0.1 * batch, "ok": True}
            folder.metrics.add(line)
    assert [record.getMessage() for record in caplog.records] == [
        "trackers: mlflow has failed, and gets no more values of this run: OSError: no route to host"
    ]
    (failing,) = opened
    assert failing.first == 4 and failing.seen == [
        Values("interval", 3, {"epoch": 0, "loss": 1.5}), Values("valid", 7, {"epoch": 1, "auc": 0.1 * 7})
    ]  # fmt: skip
    found = of_prometheus(tmp_path / "run")
    assert found["marius_oac_interval_loss", "loss"] == 1.5 and found["marius_oac_valid_auc", "auc"] == 0.1 * 8


def test_prometheus_follows_no_link_and_escapes_names(graph, tmp_path):
    folder = RunFolder.create(tmp_path / 'a"b\\c', tiny_config(graph), "a graph")
    Prometheus(folder, 0).log(Values("interval", 1, {"loss": 1.0}))
    assert 'run="a\\"b\\\\c",name="loss"} 1.0' in (folder.path / "metrics.prom").read_text()
    (folder.path / "metrics.prom").unlink()
    (folder.path / "metrics.prom").symlink_to(tmp_path / "elsewhere")
    with trackers.tracking(["prometheus"], folder, 0):
        folder.metrics.add({"kind": "interval", "epoch": 0, "batch": 3, "loss": 1.5})
    assert not (tmp_path / "elsewhere").exists()


def test_a_package_that_is_missing_is_named(monkeypatch):
    monkeypatch.setattr(trackers, "find_spec", lambda name: None)
    trackers.check_trackers(["prometheus"])
    with pytest.raises(ConfigError, match=r"trackers: mlflow needs a package: pip install '/path/to/.*\[mlflow\]'"):
        trackers.check_trackers(["mlflow"])


@pytest.mark.slow
@missing("tensorboard")
def test_tensorboard_has_the_numbers_of_a_run_that_was_resumed(graph, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    path = resumed(graph, tmp_path / "run", "tensorboard")
    events = EventAccumulator(str(path / "tensorboard"), size_guidance={"tensors": 0})
    events.Reload()
    found = {}
    for tag in events.Tags()["tensors"]:
        kind, _, name = tag.partition("/")
        found |= {(kind, each.step, name): make_ndarray(each.tensor_proto).item() for each in events.Tensors(tag)}
    assert found == expected(path)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # MLflow's own
@missing("mlflow")
@missing("sqlalchemy")
@missing("alembic")
def test_mlflow_has_the_numbers_of_a_run_that_was_resumed(graph, tmp_path, monkeypatch):
    from mlflow import MlflowClient

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    path = resumed(graph, tmp_path / "run", "mlflow")
    client = MlflowClient(f"sqlite:///{path / 'mlflow.db'}")
    last, first = client.search_runs([client.get_experiment_by_name("marius_oac").experiment_id])
    assert (first.info.status, last.info.status) == ("KILLED", "FINISHED")
    assert (first.info.run_name, last.info.run_name) == ("run", "run (from batch 25)")
    assert last.data.params["training.epochs"] == "2"
    wanted = {}
    for (kind, batch, name), number in expected(path).items():
        wanted.setdefault(metric_name(f"{kind}/{name}"), set()).add((batch, number))
    for name, points in wanted.items():
        assert {(each.step, each.value) for each in client.get_metric_history(last.info.run_id, name)} == points, name
    assert set(last.data.metrics) == set(wanted)


def resumed(graph, path, name):
    """A run of two epochs that fails in the second one, after some of its lines, and goes on."""

    def at_forty(result):
        if result.batch_index == 40:
            raise ValueError("stop")

    config = tiny_config(graph, f"trackers={name}", "metrics.every_batches=5")
    with pytest.raises(CallbackError):
        train(config, path, callbacks=Callbacks(on_batch=at_forty))
    resume(path)
    return path
