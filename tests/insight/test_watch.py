"""Watching a run: what has changed is read, the page is the report and reloads itself, what the terminal says."""

import io

import pytest

from marius_oac.cli.commands import main
from marius_oac.errors import CheckpointError
from marius_oac.insight.report.history import read_history
from marius_oac.insight.watch import live
from marius_oac.insight.watch import watch as module
from marius_oac.insight.watch.live import LiveRun
from marius_oac.insight.watch.screen import screen, sparkline, watch_in_terminal
from marius_oac.insight.watch.watch import Looks, watch
from marius_oac.runs.callbacks import Callbacks
from marius_oac.runs.folder.folder import RunFolder
from marius_oac.training.local import open_run, train
from tests.graphs import tiny_config
from tests.insight.test_report import EVIL, Page, interval, made_up


def test_a_run_that_is_killed_resumed_and_ends(graph, tmp_path):
    path = made_up(tmp_path / "a", graph, losses=(3.0, 2.5, 2.0), ended="")
    folder, run = RunFolder.open(path), LiveRun(path, 0.0)
    assert run.history.batches == 30 and not run.has_ended and run.age() < 60 and not run.wait()
    with open(path / "metrics.jsonl", "ab") as file:
        file.write(b'{"kind": "interval", "ep')
    before = run.history
    assert run.wait() and run.history == before, "half a line says nothing"
    folder.metrics.rewind(20)
    for batch, loss in ((29, 1.9), (39, 1.5)):
        folder.metrics.add(interval(1, batch, loss))
    more = folder.config.training.model_copy(update={"epochs": 7})
    folder.write_config(folder.config.model_copy(update={"training": more}))
    assert run.wait() and run.history == read_history(path)
    assert [line.loss for line in run.history.intervals] == [3.0, 2.5, 1.9, 1.5]
    assert run.history.config.training.epochs == 7
    folder.write_summary({"training.epochs": 2})
    assert run.wait() and run.has_ended and not run.wait()
    (path / "summary.json").unlink()
    assert run.wait() and not run.has_ended
    (path / "metrics.jsonl").unlink()
    (path / "metrics.jsonl").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match="leads out of the run's folder"):
        run.wait()


def test_looks_that_are_dear_are_seldom(graph, tmp_path, monkeypatch):
    seconds, waited = iter([0.0, 3.0, 3.0, 3.1, 3.1]), []
    monkeypatch.setattr(live.time, "process_time", lambda: next(seconds))
    run = LiveRun(made_up(tmp_path / "a", graph), 10.0)
    monkeypatch.setattr(run._pause, "wait", waited.append)
    run.wait(), run.wait()
    assert waited == [60.0, 10.0]


def test_a_run_that_is_watched_and_reported_has_the_bits_of_one_that_is_not(graph, finished, tmp_path):
    path, runs, sizes = tmp_path / "run", [], set()

    def look(result):
        if result.batch_index % 7 == 3:
            if not runs:
                runs.append(LiveRun(path, 0.0))
            runs[0].wait()
            sizes.add(len(module.render(module.Report([runs[0].history]))))

    summary = train(tiny_config(graph), path, callbacks=Callbacks(on_batch=look)).summary
    plain = open_run(finished).summary
    assert len(sizes) > 1 and [key for key in plain if "sha256" in key and plain[key] != summary[key]] == []
    assert any("sha256" in key for key in plain)


def test_the_page_reloads_itself_until_the_run_has_ended(graph, tmp_path, capsys, monkeypatch):
    path = made_up(tmp_path / "a", graph, losses=(3.0, 2.5), ended="")
    pages, opened, wait = [], [], LiveRun.wait

    def ends_next(run):
        pages.append((path / "report.html").read_text())
        RunFolder.open(path).write_summary({"training.epochs": 1})
        run._every = 0.0
        return wait(run)

    monkeypatch.setattr(LiveRun, "wait", ends_next)
    monkeypatch.setattr(module.webbrowser, "open", opened.append)
    monkeypatch.setattr(module.os, "nice", lambda by: None)
    watch(path, Looks(page=True, every=10.0, opened=True))
    told = capsys.readouterr()
    assert told.out == f"{path / 'report.html'}\n" and told.err == "a: done\n"
    assert opened == [(path / "report.html").as_uri()]
    (first,), last = pages, (path / "report.html").read_text()
    assert ({"http-equiv": "refresh", "content": "10"} in Page(first).of("meta")) and "every 10 s" in first
    assert 'http-equiv="refresh"' not in last and "It ended after 1 epochs" in last and "runs no script" in last
    assert "default-src 'none'" in first and not {tag for tag, _ in Page(first).found} & {"script", "iframe"}


def test_the_terminal_says_how_a_run_is(graph, tmp_path, capsys):
    from rich.console import Console

    change = {"kind": "mode", "epoch": 0, "batch": 9, "mode": "gba", "was": "sync", "switches": True, "reason": EVIL}
    path = made_up(tmp_path / EVIL.replace("/", "|"), graph, ended="", lines=[change, interval(2, 49, None)])
    run = LiveRun(path, 0.0)
    console = Console(file=io.StringIO(), width=90, record=True, markup=False)
    console.print(screen(run, 90))
    said = console.export_text()
    assert "2 epochs and 50 batches so far" in said and "320 examples/s" in said and "filtered.mrr" in said
    assert "3 █▆▃▁ 1.5" in said and "compute" in said and "90.0%" in said and "Mode gba after batch 10" in said
    assert "\u202e" not in said and "\\u202e" in said and "s ago" in said
    RunFolder.open(path).write_summary({"training.epochs": 2})
    run.wait()
    watch_in_terminal(run, keep=False)
    assert "It ended after 2 epochs" in capsys.readouterr().out


def test_values_as_bars():
    assert sparkline([1.0, None, 2.0, float("nan")], 10) == "1 ▁█ 2" and sparkline([1.0], 10) == ""
    assert sparkline([2.0, 2.0], 10) == "2 ▁▁ 2" and sparkline([0.0, 2.0, 4.0, 4.0], 2) == "1 ▁█ 4"


def test_mistakes_are_told_in_a_line(graph, tmp_path, capsys):
    path = made_up(tmp_path / "a", graph)

    def told(*given):
        assert main(["watch", *map(str, given)]) == 2
        return capsys.readouterr().err

    assert "is no run" in told(tmp_path) and "--every: must be" in told(path, "--every", "nan")
    (path / "report.html").symlink_to(tmp_path / "elsewhere")
    assert "is a symbolic link" in told(path, "--page") and not (tmp_path / "elsewhere").exists()
