"""Watching a run: each line is read once, what the page's server answers and refuses, what the terminal says."""

import http.client
import io
import json
import os
import socket
import threading
from contextlib import ExitStack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marius_oac.cli.commands import main
from marius_oac.errors import CheckpointError, InputError
from marius_oac.runs.callbacks import Callbacks
from marius_oac.runs.folder.folder import RunFolder
from marius_oac.runs.folder.metrics import MetricsFile
from marius_oac.runs.report.history import read_history
from marius_oac.runs.watch import browser, server, tail
from marius_oac.runs.watch.browser import LivePages, _leading_to, watch_in_browser
from marius_oac.runs.watch.live import LiveRun
from marius_oac.runs.watch.screen import Screen, sparkline, watch_in_terminal
from marius_oac.runs.watch.server import PageServer
from marius_oac.runs.watch.tail import Tail
from marius_oac.training.local import open_run, train
from tests.graphs import tiny_config
from tests.runs.test_report import EVIL, Page, interval, made_up

CHANGES = st.lists(
    st.tuples(st.sampled_from(["add", "half", "damaged", "replace", "cut", "nothing"]), st.integers(0, 5)), max_size=12
)


@given(CHANGES)
@settings(max_examples=60, deadline=None)
def test_lines_are_those_of_the_whole_file_whatever_happened_to_it(tmp_path_factory, changes):
    metrics = MetricsFile(tmp_path_factory.mktemp("run"))
    path, found, begun, number = metrics.path, [], Tail(metrics.path), 0
    for what, count in changes:
        if what in ("add", "half", "damaged"):
            with open(path, "ab") as file:
                for _ in range(count):
                    number += 1
                    file.write(json.dumps(interval(0, number, float(number))).encode() + b"\n")
                file.write({"add": b"", "half": b'{"kind": "inter', "damaged": b"}\xff\n"}[what])
        elif what == "replace" and path.exists():
            metrics.rewind(max(0, number - count))
        elif what == "cut" and path.exists():
            os.truncate(path, os.path.getsize(path) * count // 5)
        void, lines = begun.read()
        found = ([] if void else found) + lines
        assert found == metrics.lines()


def test_what_was_read_is_not_read_again(tmp_path, monkeypatch):
    metrics, places = MetricsFile(tmp_path), []
    for batch in range(50):
        metrics.add(interval(0, batch, 1.0))
    read = Tail(metrics.path)
    assert len(read.read()[1]) == 50
    end = os.path.getsize(metrics.path)
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda file, count, place: places.append(place) or pread(file, count, place))
    metrics.add(interval(0, 50, 1.0))
    void, lines = read.read()
    assert not void and [line["batch"] for line in lines] == [50] and min(places) == end - 256
    assert read.read() == (False, [])


def test_lines_and_files_that_are_too_long_are_refused(tmp_path, monkeypatch):
    path = tmp_path / "metrics.jsonl"
    monkeypatch.setattr(tail, "MOST_LINE", 1000)
    path.write_bytes(b'{"kind": "x", "batch": 0}\n' + b"x" * 1000)
    with pytest.raises(CheckpointError, match=r"metrics.jsonl:2: is damaged: a line is too long"):
        Tail(path).read()
    path.write_bytes(b"")
    os.truncate(path, (256 << 20) + 1)
    with pytest.raises(CheckpointError, match="is larger than"):
        Tail(path).read()
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(CheckpointError, match="pipe"):
        Tail(path).read()


def test_a_run_that_is_killed_resumed_and_ends(graph, tmp_path):
    path = made_up(tmp_path / "a", graph, losses=(3.0, 2.5, 2.0), ended="")
    folder, run = RunFolder.open(path), LiveRun(path)
    assert run.history.batches == 30 and not run.has_ended and run.age() < 60
    with open(path / "metrics.jsonl", "ab") as file:
        file.write(b'{"kind": "interval", "ep')
    version = run.version
    run.read()
    assert run.version == version, "half a line is nothing new"
    folder.metrics.rewind(20)
    for batch, loss in ((29, 1.9), (39, 1.5)):
        folder.metrics.add(interval(1, batch, loss))
    folder.write_config(folder.config.model_copy(update={"training": folder.config.training.model_copy(
        update={"epochs": 7})}))  # fmt: skip
    run.read()
    assert run.version == version + 1 and run.history == read_history(path)
    assert [line.loss for line in run.history.intervals] == [
        3.0,
        2.5,
        1.9,
        1.5,
    ] and run.history.config.training.epochs == 7
    folder.write_summary({"training.epochs": 2})
    run.read()
    assert run.has_ended and run.version == version + 2
    (path / "summary.json").unlink()
    run.read()
    assert not run.has_ended
    (path / "metrics.jsonl").unlink()
    (path / "metrics.jsonl").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match="leads out of the run's folder"):
        run.read()


def test_a_run_that_is_watched_and_reported_has_the_bits_of_one_that_is_not(graph, finished, tmp_path):
    path, pages, sizes, live = tmp_path / "run", [], set(), []

    def look(result):
        if result.batch_index % 7 == 3:
            if not live:
                live.append(LiveRun(path))
                pages.append(LivePages(live[0], 0.0))
            live[0].read()
            sizes.add(len(pages[0].page("")[0]))  # the report of the run so far

    summary = train(tiny_config(graph), path, callbacks=Callbacks(on_batch=look)).summary
    plain = open_run(finished).summary
    assert len(sizes) > 1 and [key for key in plain if "sha256" in key and plain[key] != summary[key]] == []
    assert any("sha256" in key for key in plain)


@pytest.fixture
def served(monkeypatch):
    """A server of one page, the port that it is at and its token; what it raised is raised here."""
    begun, stop, errors = threading.Event(), threading.Event(), []
    pages = {"": ("<p>é", 7.0), "last": ("end", None)}
    serving = PageServer(pages.get)

    def serve():
        try:
            serving.serve(begun.set, stop.is_set, 0.05)
        except BaseException as error:
            errors.append(error)
            begun.set()

    thread = threading.Thread(target=serve)
    thread.start()
    begun.wait()
    port, token = serving.address.removeprefix("http://127.0.0.1:").rstrip("/").split("/")
    yield int(port), token, pages
    stop.set()
    thread.join()
    assert not errors


def _ask(port, path, method="GET", **headers):
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer, text


def test_the_page_is_served_to_who_has_the_token_alone(served):
    port, token, _ = served
    answer, text = _ask(port, f"/{token}/")
    assert (answer.status, text, answer.headers["Refresh"]) == (200, "<p>é", "7")
    assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'")
    assert answer.headers["Cache-Control"] == "no-store" and answer.headers["Referrer-Policy"] == "no-referrer"
    answer, text = _ask(port, f"/{token}/last", Host=f"LocalHost:{port}")
    assert (answer.status, text, answer.headers["Refresh"]) == (200, "end", None)
    for path in (
        "/",
        "//",
        f"/{token[:-1]}/",
        f"/{token}x/",
        f"/x/{token}/",
        f"/{token.lower()}/",
        "/%00/",
        "/\u00e9/",
    ):
        answer, text = _ask(port, path.encode("latin-1").decode("latin-1").replace("\u00e9", "%E9"))
        assert (answer.status, text) == (404, ""), path
    assert _ask(port, f"/{token}/../etc/passwd")[0].status == 404
    assert len(token) >= 43


def test_other_hosts_and_methods_are_refused(served):
    port, token, _ = served
    for host in (
        "evil.example",
        f"evil.example:{port}",
        "127.0.0.1",
        f"127.0.0.1:{port}.evil.example",
        "localhost:1",
        "",
    ):
        answer, text = _ask(port, f"/{token}/", Host=host)
        assert (answer.status, text) == (421, ""), host
    assert _ask(port, f"/{token}/", "POST")[0].status == 405 and _ask(port, "/x/", "POST")[0].status == 404

    def raw(content):
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(content)
            return connection.makefile("rb").readline()

    host = f"Host: 127.0.0.1:{port}\r\n".encode()
    line = f"GET /{token}/ HTTP/1.1\r\n".encode()
    assert b" 200 " in raw(line + host + b"\r\n")
    assert b" 421 " in raw(line + b"\r\n"), "no host"
    assert b" 421 " in raw(line + host + b"Host: evil.example\r\n\r\n"), "two hosts"
    assert b" 400 " in raw(f"GET /{token}/\r\n".encode() + host + b"\r\n")
    assert b" 404 " in raw(b"GET /\xff\xff/ HTTP/1.1\r\n" + host + b"\r\n")


def test_what_never_ends_is_dropped_and_hinders_nobody(served, monkeypatch):
    port, token, _ = served
    monkeypatch.setattr(server, "PATIENCE", 600.0)  # so that nothing is dropped for that
    here = ("127.0.0.1", port)
    with socket.create_connection(here) as slow, socket.create_connection(here, 30) as long:
        slow.sendall(b"GET /")
        try:
            long.sendall(b"x" * (1 << 20))
            assert long.recv(1) == b""
        except ConnectionError:
            pass  # it was closed while there was more to send
        assert _ask(port, f"/{token}/")[0].status == 200
        monkeypatch.setattr(server, "MOST_CONNECTIONS", 1)
        with socket.create_connection(here, 30) as more:
            assert more.recv(1) == b""


def test_an_error_of_a_page_ends_the_server(monkeypatch):
    def page(name):
        raise CheckpointError("is damaged", "x")

    serving = PageServer(page)
    asking = threading.Thread(target=lambda: pytest.raises(OSError, _ask_at, serving.address))
    with pytest.raises(CheckpointError, match="x: is damaged"):
        serving.serve(asking.start, lambda: False, 60.0)
    asking.join()
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(InputError, match="can't be listened on"):
        PageServer(page, taken.getsockname()[1]).serve(asking.start, lambda: True, 60.0)


def test_a_server_that_is_stopped_says_nothing_of_those_who_are_connected(caplog):
    looks = iter((False, False, False))

    def done():
        for each in looks:
            return each
        raise KeyboardInterrupt

    with ExitStack() as stack:

        def connect():
            port = int(serving.address.split(":")[2].partition("/")[0])
            stack.enter_context(socket.create_connection(("127.0.0.1", port)))

        serving = PageServer({}.get)
        with pytest.raises(KeyboardInterrupt):
            serving.serve(connect, done, 0.01)
    assert not caplog.records


def _ask_at(address):
    port, _, path = address.removeprefix("http://127.0.0.1:").partition("/")
    answer = _ask(int(port), f"/{path}")
    if not answer[1]:
        raise OSError


def test_pages_are_made_when_there_is_something_new(graph, tmp_path, monkeypatch):
    path = made_up(tmp_path / "a", graph, losses=(3.0, 2.5), ended="")
    made, seconds = [], iter([0.0, 5.0, 5.0, 5.5, 5.5, 5.6, 5.6, 5.7])
    monkeypatch.setattr(browser, "render", lambda report: made.append(list(report.axes)) or f"page {len(made)}")
    monkeypatch.setattr(browser.time, "process_time", lambda: next(seconds))
    folder, run = RunFolder.open(path), LiveRun(path)
    pages = LivePages(run, 10.0)
    assert pages.page("") == ("page 1", 100) and pages.page("batches") == ("page 1", 100)
    assert pages.page("seconds") == ("page 2", 10) and pages.page("x") is None and pages.page("../a") is None
    folder.metrics.add(interval(1, 29, 2.0))
    run.read()
    assert pages.page("") == ("page 3", 10) and not pages.shown_the_end and pages.patience == 21
    folder.write_summary({"training.epochs": 2})
    assert pages.page("") == ("page 4", None) and pages.shown_the_end
    assert made == [["batches"], ["seconds"], ["batches"], ["batches"]]


def test_the_page_of_a_run_is_sound_and_it_ends_with_the_run(graph, tmp_path, capsys, monkeypatch):
    path = made_up(tmp_path / "a", graph, losses=(3.0, 2.5), ended="")
    text, again = LivePages(LiveRun(path), 10.0).page("")
    page = Page(text)
    assert again >= 10 and not {tag for tag, _ in page.found} & {"script", "form", "input", "iframe"}
    links = [attrs for attrs in page.of("a") if not attrs["href"].startswith("#")]
    assert {each["href"] for each in links} == {"batches", "seconds", "epochs"}
    assert [each["href"] for each in links if "aria-current" in each] == ["batches"]
    assert "asks for a newer one every 10 s" in text and "marius_oac watch" in text
    RunFolder.open(path).write_summary({"training.epochs": 1})
    monkeypatch.setattr(LivePages, "patience", 0.0)
    watch_in_browser(LiveRun(path), 10.0, 0, False, False)
    told = capsys.readouterr()
    assert told.out.startswith("http://127.0.0.1:") and told.err == "a: done\n"
    with _leading_to("http://127.0.0.1:1/token/") as private:
        assert "token" in private.read_text() and private.parent.stat().st_mode & 0o77 == 0
    assert not private.exists()


def test_the_terminal_says_how_a_run_is(graph, tmp_path, capsys):
    from rich.console import Console

    change = {"kind": "mode", "epoch": 0, "batch": 9, "mode": "gba", "was": "sync", "switches": True, "reason": EVIL}
    path = made_up(tmp_path / EVIL.replace("/", "|"), graph, ended="", lines=[change, interval(2, 49, None)])
    run = LiveRun(path)
    console = Console(file=io.StringIO(), width=90, record=True, markup=False)
    screen = Screen(run, console)
    console.print(screen.now())
    said = console.export_text()
    assert "2 epochs and 50 batches so far" in said and "320 examples/s" in said and "filtered.mrr" in said
    assert "3 █▆▃▁ 1.5" in said and "compute" in said and "90.0%" in said and "Mode gba after batch 10" in said
    assert "\u202e" not in said and "\\u202e" in said and "s ago" in said
    RunFolder.open(path).write_summary({"training.epochs": 2})
    run.read()
    watch_in_terminal(run, 0.1, keep=False)
    assert "It ended after 2 epochs" in capsys.readouterr().out


def test_values_as_bars():
    assert sparkline([1.0, None, 2.0, float("nan")], 10) == "1 ▁█ 2" and sparkline([1.0], 10) == ""
    assert sparkline([2.0, 2.0], 10) == "2 ▁▁ 2" and sparkline([0.0, 2.0, 4.0, 4.0], 2) == "1 ▁█ 4"


def test_mistakes_are_told_in_a_line(graph, tmp_path, capsys, monkeypatch):
    path = str(made_up(tmp_path / "a", graph))

    def told(*given):
        assert main(["watch", *given]) == 2
        return capsys.readouterr().err

    assert "is no run" in told(str(tmp_path)) and "--every: must be" in told(path, "--every", "nan")
    assert "--port: must be" in told(path, "--port", "65536") and "leave out --text" in told(path, "--text", "--open")
