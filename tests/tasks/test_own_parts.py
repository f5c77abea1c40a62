"""Runs with a decoder, a loss and a row optimizer of a user's file: the same bits in every mode, and the rest."""

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from marius_oac.config.link_prediction import Config
from marius_oac.runs.folder.folder import RunFolder
from marius_oac.training.local import resume, train
from tests.click_logs import ctr_config, small_log
from tests.graphs import jitter, run_batches, tiny_config, workers
from tests.models import own_parts
from tests.run_folders import contents, says, write_config

OWN, EXAMPLE = own_parts.__file__, str(own_parts.EXAMPLE)
PARTS = {
    "decoder": [f"model.decoder={EXAMPLE}:SimplE"],
    "without relations": [f"model.decoder={OWN}:Near", "training.negatives.all=true"],
    "loss": [f"training.loss.kind={EXAMPLE}:SquaredHinge"],
    "row optimizer": [f"training.optimizer.kind={EXAMPLE}:Momentum", "training.optimizer.learning_rate=0.03"],
    "relations of another width": [f"model.decoder={OWN}:Rescal", "training.regularization={kind: n3, weight: 0.01}"],
    "row optimizer, all nodes": [f"training.optimizer.kind={OWN}:Adagrad", "training.negatives.all=true"],
}
ALL = [*PARTS["decoder"], *PARTS["loss"], *PARTS["row optimizer"]]
DISK = ["storage.memory=1MiB", "storage.page=4KiB"]
BATCHES = 20
ROOT = Path(__file__).parents[2]


@pytest.mark.usefixtures("all_code_is_known")
@pytest.mark.parametrize("parts", [*PARTS, "all"])
def test_oac_has_the_bits_of_sync(graph, parts):
    overrides = PARTS.get(parts, ALL)
    expected = run_batches(tiny_config(graph, *overrides, "pipeline.mode=sync"), graph, BATCHES)
    assert expected.bits != run_batches(tiny_config(graph, "pipeline.mode=sync"), graph, BATCHES).bits
    for in_flight, count in ((4, 2), (8, 3)):
        more = [f"pipeline.in_flight={in_flight}", f"threads={count}", *workers(count)]
        found = run_batches(tiny_config(graph, *overrides, *more), graph, BATCHES, jitter(in_flight))
        assert found.bits == expected.bits and found.replaced > 0


def digests(path):
    """SHA-256 of what a run has trained."""
    found = {name: each for name, each in RunFolder.open(path).summary().items() if name.endswith("sha256")}
    assert found
    return found


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """The parts in a file of the user, who has trained with nothing yet: overrides that name it."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    shutil.copy(EXAMPLE, tmp_path / "mine.py")
    return [each.replace(EXAMPLE, str(tmp_path / "mine.py")) for each in ALL]


def test_a_run_is_resumed_evaluated_and_exported(graph, mine, tmp_path, command, monkeypatch):
    more = ["pipeline.in_flight=4", *workers(2)]
    whole = train(tiny_config(graph, *mine, *more), tmp_path / "whole")
    train(tiny_config(graph, *mine, *more, "training.epochs=1"), tmp_path / "run")
    assert (tmp_path / "run" / "mine.py").read_text() == Path(EXAMPLE).read_text()
    resume(tmp_path / "run", ["training.epochs=2"])
    assert digests(tmp_path / "run") == digests(tmp_path / "whole")
    train(tiny_config(graph, *mine, "pipeline.mode=sync", *DISK), tmp_path / "disk")
    assert digests(tmp_path / "disk") == digests(tmp_path / "whole")
    code, lines, _ = command("eval", tmp_path / "whole")
    assert code == 0 and lines[1].split() == ["filtered.mrr", f"{whole.summary['test.filtered.mrr']:.4f}"]
    assert command("export", tmp_path / "whole", "--out", tmp_path / "exported")[0] == 0
    assert contents(tmp_path / "exported")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another user"))
    code, _, err = command("eval", tmp_path / "whole")
    assert code == 2 and says(err, "mine.py: is code that you have not trained with here")
    assert command("eval", tmp_path / "whole", "--trust")[0] == 0


def test_a_graph_without_relations_is_refused_by_a_decoder_that_needs_them(tmp_path, mine, command):
    (tmp_path / "edges.tsv").write_text("".join(f"{i}\t{(i * 7 + 1) % 50}\n" for i in range(400)))
    assert command("prepare", tmp_path / "edges.tsv", "--out", tmp_path / "graph", "--no-relations")[0] == 0
    config = Config.build({"data": {"path": str(tmp_path / "graph")}, "device": "cpu"}, mine)
    code, _, err = command("train", write_config(tmp_path / "c.yaml", config), "--out", tmp_path / "run")
    assert code == 2 and says(err, "model.decoder", "mine.py:SimplE needs relations, and the graph has none; use dot")


@pytest.mark.usefixtures("all_code_is_known")
def test_clicks_have_the_bits_of_sync(tmp_path):
    log, ends = small_log(tmp_path / "log.parquet"), []
    for number, more in enumerate((["pipeline.mode=sync"], ["pipeline.in_flight=4", "threads=2", *workers(2)])):
        config = ctr_config(log, f"training.optimizer.kind={EXAMPLE}:Momentum", *more)
        train(config, tmp_path / str(number))
        ends.append(digests(tmp_path / str(number)))
    assert ends[0] == ends[1]


@pytest.mark.slow
def test_a_run_on_disk_that_is_killed_ends_in_the_same_bits(graph, mine, tmp_path):
    config = tiny_config(graph, *mine, *DISK, "checkpoint.every_batches=7", "pipeline.in_flight=4")
    train(config, tmp_path / "whole")
    source, folder = write_config(tmp_path / "c.yaml", config), tmp_path / "run"
    moments = [("compute", 9), ("write", 25), ("fsync", 8)]
    starts = [{"argv": ["resume", str(folder)], "signal": int(signal.SIGKILL), "at": at} for at in moments]
    starts[0]["argv"] = ["train", str(source), "--out", str(folder)]
    script = {"folder": str(folder), "starts": [*starts, {"argv": ["resume", str(folder)]}]}
    warm = ["train", str(source), "--out", str(tmp_path / "warm")]
    done = subprocess.run(
        [sys.executable, "-m", "tests.runs.fault_driver"],
        input=json.dumps({"warm_up": warm, "scripts": [script]}), capture_output=True, text=True, cwd=ROOT, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (outcome,) = json.loads(done.stdout)
    assert [end["code"] for end in outcome["ended"]] == [-signal.SIGKILL] * 3 + [0], outcome["ended"]
    assert digests(folder) == digests(tmp_path / "whole")


@pytest.mark.usefixtures("all_code_is_known")
@pytest.mark.parametrize("parts", [ALL, PARTS["without relations"]], ids=["all", "without relations"])
def test_under_an_encoder_oac_has_the_bits_of_sync(graph, parts):
    overrides = ["encoder.layers=[{kind: sage, neighbors: 4}]", *parts]
    expected = run_batches(tiny_config(graph, *overrides, "pipeline.mode=sync"), graph, BATCHES)
    more = ["pipeline.in_flight=8", "threads=2", *workers(3)]
    found = run_batches(tiny_config(graph, *overrides, *more), graph, BATCHES, jitter(8))
    assert found.bits == expected.bits and found.replaced > 0


@pytest.mark.usefixtures("all_code_is_known")
@pytest.mark.parametrize("network", ["fm", "dien"])
def test_clicks_follow_the_rule_of_the_package(tmp_path, network):
    log, losses = small_log(tmp_path / "log.parquet"), []
    for kind in ("adagrad", f"{OWN}:Adagrad"):
        config = ctr_config(
            log, f"training.optimizer.kind={kind}", "training.embedding_l2=0.01", network=network, test=log
        )
        train(config, tmp_path / kind.rpartition(":")[2])
        losses.append(RunFolder.open(tmp_path / kind.rpartition(":")[2]).summary()["test.log_loss"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@pytest.mark.slow
def test_two_nodes_have_the_bits_of_sync(graph, mine, tmp_path):
    ends = []
    for mode in ("sync", "oac"):
        config = write_config(tmp_path / f"{mode}.yaml", tiny_config(graph, *mine, f"pipeline.mode={mode}"))
        words = ["train", config, "--local-nodes", 2, "--out", tmp_path / mode]
        subprocess.run([sys.executable, "-m", "marius_oac", *map(str, words)], check=True, timeout=200)
        ends.append(digests(tmp_path / mode))
    assert ends[0] == ends[1]
