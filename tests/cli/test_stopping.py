"""What a signal stops at once: evaluations, predictions before an epoch, queries of a data base."""

import os
import signal
import tempfile
import threading

import numpy as np
import pytest
import torch

from marius_oac.config.link_prediction import Config
from marius_oac.errors import Interrupted
from marius_oac.evaluation import blocks
from marius_oac.evaluation.binary_metrics import ClickMetrics
from marius_oac.evaluation.link_prediction import evaluate
from marius_oac.evaluation.scores import EntityReader, LinkScorer
from marius_oac.runs.checkpoints.retention import Checkpoints
from marius_oac.runs.session import Session
from marius_oac.runtime.command import run_command
from marius_oac.runtime.signals import Requests, StopSignal, stopped_by_signals
from marius_oac.tasks.ctr import predict as ctr_predict
from marius_oac.training import local as training
from tests.click_logs import ctr_config, small_log
from tests.graphs import tiny_config
from tests.moments import Moments
from tests.run_folders import outcome


@pytest.fixture
def days(tmp_path):
    return [small_log(tmp_path / f"day_{n}.parquet", rows=96, seed=n, new=10 * n) for n in range(3)]


def test_a_prediction_before_an_epoch_stops_at_once_and_loses_no_training(days, tmp_path, monkeypatch):
    """Where no checkpoint is due at the end of that epoch, one is written then."""
    rare = ("checkpoint.every_epochs=9", "keys.drop_after=1", "training.progressive=true", "training.epochs=1")
    config = ctr_config(days, *rare)
    training.train(config, tmp_path / "whole")
    real, seen = ctr_predict.ClickPredictor.predict, []

    def predict(predictor, examples):
        seen.append(examples.size)
        if len(seen) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
            seen.append("went on")
        return real(predictor, examples)

    with monkeypatch.context() as patch:
        patch.setattr(ctr_predict.ClickPredictor, "predict", predict)
        with pytest.raises(Interrupted, match="stopped at batch 3; go on with") as caught:
            training.train(config, tmp_path / "run")
    assert caught.value.exit_code == 143 and "went on" not in seen
    assert Checkpoints(tmp_path / "run" / "checkpoints").names() == ["0000000003"]
    training.resume(tmp_path / "run")
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")


@pytest.mark.parametrize("kind", ["links", "classes"])
def test_a_layer_of_all_nodes_stops_at_once_and_leaves_no_file(graph, tmp_path, monkeypatch, kind):
    encoder = "encoder.layers=[{kind: sage, neighbors: 4}, {kind: sage, neighbors: 4}]"
    config = tiny_config(graph, encoder, "training.epochs=1", "threads=2")
    if kind == "classes":
        labels = tmp_path / "labels.tsv"
        names = graph.node_names(range(graph.num_nodes))
        splits = ("train", "valid", "test")
        labels.write_text(
            "name\tlabel\tsplit\n" + "".join(f"{name}\t{n % 2}\t{splits[n % 3]}\n" for n, name in enumerate(names))
        )
        tree = {"task": "node_classification", "device": "cpu", "threads": 2, "model": {"dimension": 8}}
        tree |= {"data": {"path": str(graph.path), "labels": str(labels)}, "training": {"epochs": 1, "batch_size": 32}}
        config = Config.build(tree, [encoder])
    real, threads = Session.evaluate, threading.active_count()

    def evaluate(session, split, **options):
        with Moments(40) as moment:
            try:
                return real(session, split, **options)
            finally:
                assert moment.where

    monkeypatch.setattr(Session, "evaluate", evaluate)
    with pytest.raises(Interrupted):
        training.train(config, tmp_path / "run")
    assert threading.active_count() == threads
    assert not [path for path in (tmp_path / "run").iterdir() if path.name.startswith(".enc")]


def test_a_request_that_came_before_an_evaluation_is_kept_in_mind(graph, tmp_path, monkeypatch):
    """While the last checkpoint is written, as here, nothing stops at once: what comes then does not begin."""
    real = Checkpoints.save

    def save(checkpoints, *args, **options):
        os.kill(os.getpid(), signal.SIGTERM)
        return real(checkpoints, *args, **options)

    monkeypatch.setattr(Checkpoints, "save", save)
    monkeypatch.setattr(Session, "evaluate", lambda session, split, **options: pytest.fail("is evaluated"))
    with pytest.raises(Interrupted, match="stopped at batch 25;"):
        training.train(tiny_config(graph, "training.epochs=1"), tmp_path / "run")


def test_what_a_library_makes_of_a_signal_is_no_defect(graph, tmp_path, monkeypatch):
    def evaluate(session, split, **options):
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except KeyboardInterrupt:
            raise RuntimeError("Query interrupted") from None

    monkeypatch.setattr(Session, "evaluate", evaluate)
    with pytest.raises(Interrupted, match="stopped at batch 25;"):
        training.train(tiny_config(graph, "training.epochs=1"), tmp_path / "run")


def test_a_query_stops_at_once(capfd, tmp_path, monkeypatch):
    """It would take seconds. Should the signal come before it has begun, the outcome is the same."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def work():
        with ClickMetrics() as metrics:
            timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGTERM))
            timer.start()
            try:
                metrics._connection.execute("SELECT sum(hash(range)) FROM range(20000000000)").fetchall()
            finally:
                timer.join()

    assert run_command("p", work) == 143
    assert capfd.readouterr().err == "p: stopped\n" and list(tmp_path.iterdir()) == []


def test_tiles_that_nobody_waits_for_any_more_are_not_ranked(monkeypatch):
    """Those that have not begun when a signal comes."""
    config = Config.build({"data": {"path": "g"}, "model": {"decoder": "dot", "dimension": 4}})
    scorer = LinkScorer(config.model, EntityReader.of_array(np.ones((8, 4), np.float32)))
    counted, ranked = [], LinkScorer.count

    def count(*given):
        counted.append(threading.current_thread())
        os.kill(os.getpid(), signal.SIGINT)
        ranked(*given)

    def once(number, frame):
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise KeyboardInterrupt

    monkeypatch.setattr(blocks, "CPU_TILE", 64)
    monkeypatch.setattr(LinkScorer, "count", count)
    before, threads = signal.signal(signal.SIGINT, once), torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with pytest.raises(KeyboardInterrupt):
            evaluate(scorer, np.zeros((1280, 2), np.int64))
    finally:
        torch.set_num_threads(threads)
        signal.signal(signal.SIGINT, before)
    assert 0 < len(counted) <= 4 < 2 * 1280 // 64
    assert not any(thread.is_alive() for thread in counted if thread is not threading.main_thread())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_comes_after_another_process_has_told_of_it_interrupts_nothing(
    graph, tmp_path, monkeypatch, capfd, number
):
    """As a shared evaluation tells of it, while this process closes what it has open."""

    def evaluate(session, split, **options):
        raise StopSignal(signal.SIGTERM)

    def work():
        try:
            training.train(tiny_config(graph), tmp_path / "run")
        finally:
            os.kill(os.getpid(), number)
            seen.append("closed")

    seen = []
    monkeypatch.setattr(Session, "evaluate", evaluate)
    assert run_command("program", work) == 128 + signal.SIGTERM and seen == ["closed"]
    assert "program: stopped at batch" in capfd.readouterr().err


def test_a_second_signal_after_another_process_has_told_of_one_ends_the_command(monkeypatch):
    ended = []
    monkeypatch.setattr(Requests, "_end_soon", lambda requests, number: ended.append(number))
    with pytest.raises(StopSignal), stopped_by_signals() as requests:
        requests.stopping(signal.SIGTERM)
        assert requests.first == signal.SIGTERM
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
    assert ended == [signal.SIGTERM]
    with pytest.raises(StopSignal), stopped_by_signals() as requests:
        os.kill(os.getpid(), signal.SIGINT)
    requests.stopping(signal.SIGTERM)
    assert requests.first == signal.SIGINT
