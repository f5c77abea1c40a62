"""Streams that are closed, full or gone: they stop no work, and the exit code is that of the work."""

import errno
import io
import os
import subprocess
import sys
from contextlib import ExitStack

import pytest

from marius_oac.cli import commands as cli
from marius_oac.errors import InputError
from marius_oac.runs import reporting
from marius_oac.runs.compare import compare  # noqa: F401 - imported while the streams are whole
from marius_oac.runtime import console
from tests.graphs import tiny_config
from tests.run_folders import write_config


def stream(kind, stack):
    """A real stream that fails as such streams do."""
    if kind == "none":
        return None
    if kind == "full":
        made = open("/dev/full", "w")  # noqa: SIM115 - closed below
    elif kind == "closed":
        made = open(os.devnull, "w")  # noqa: SIM115
        made.close()
    elif kind == "pipe":
        reader, writer = os.pipe()
        os.close(reader)
        made = open(writer, "w")  # noqa: SIM115
    else:
        keyboard, screen = os.openpty()
        made = open(screen, "w")  # noqa: SIM115
        os.close(keyboard)
    stack.callback(made.close)
    return made


@pytest.fixture
def streams(monkeypatch):
    """`streams(stdout="full")` until the test ends; what is left in the buffers must have been let go of by then."""
    with ExitStack() as stack:

        def replace(**kinds):
            for name, kind in kinds.items():
                monkeypatch.setattr(sys, name, stream(kind, stack))

        yield replace
        monkeypatch.undo()


ALL = ("none", "full", "closed", "pipe", "terminal")
# From Python 3.14 on argparse itself fails where `sys.stdout` is a closed file: it asks whether that is a terminal.
OF_COMMANDS = ALL if sys.version_info < (3, 14) else tuple(kind for kind in ALL if kind != "closed")
RECORDS = {"terminal": errno.EIO, "full": errno.ENOSPC}


@pytest.mark.parametrize(("environment", "terminal", "colours"), [
    ({"TERM": "xterm"}, True, True), ({"TERM": "xterm", "NO_COLOR": ""}, True, True), ({"TERM": "xterm"}, False, False),
    ({"TERM": "xterm", "NO_COLOR": "1"}, True, False), ({"TERM": "dumb"}, True, False), ({}, True, False),
])  # fmt: skip
def test_a_terminal_has_colours_unless_they_are_refused(monkeypatch, environment, terminal, colours):
    class Screen(io.StringIO):
        def isatty(self):
            return terminal

    for name in ("TERM", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, Screen())
    with console.standard_error():
        console.logger.warning("a note")
        console.report("title\n  a row")
        console.report("a path")
    said = {"out": sys.stdout.getvalue(), "err": sys.stderr.getvalue()}
    assert cli.main(["trian"]) == 2
    wrong = sys.stderr.getvalue().removeprefix(said["err"])
    if colours:
        assert said == {"out": "\x1b[1mtitle\x1b[0m\n  a row\na path\n", "err": "\x1b[33mnote:\x1b[0m a note\n"}
        assert wrong.startswith("\x1b[31mmarius-oac:\x1b[0m ")
    else:
        assert said == {"out": "title\n  a row\na path\n", "err": "note: a note\n"} and "\x1b" not in wrong


@pytest.mark.parametrize("kind", ALL)
def test_what_is_said_may_go_nowhere(streams, kind):
    streams(stderr=kind)
    for _ in range(3):
        console.say("a note" + 9000 * ".")  # longer than a buffer
    console.is_terminal()
    console.let_go()


@pytest.mark.parametrize("kind", ALL)
def test_a_result_may_go_nowhere_where_the_work_is_done(streams, kind):
    streams(stdout=kind)
    console.report("done")
    console.report("done" + 9000 * ".")
    console.let_go()


@pytest.mark.parametrize("kind", ALL)
def test_an_answer_that_is_not_taken_down_is_an_error(streams, kind):
    streams(stdout=kind)
    if kind in RECORDS:
        with pytest.raises(InputError, match=f"^standard output: can't be written: {os.strerror(RECORDS[kind])}$"):
            console.answer("here")
    else:
        console.answer("here")
    console.let_go()


@pytest.fixture
def config(graph, tmp_path, monkeypatch):
    monkeypatch.setattr(reporting, "LINE_SECONDS", 0.0)
    monkeypatch.setattr(reporting, "BAR_SECONDS", 0.0)
    return write_config(tmp_path / "config.yaml", tiny_config(graph, "training.epochs=1", "metrics.every_batches=2"))


@pytest.mark.parametrize("kind", OF_COMMANDS)
@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_training_ends_as_if_it_had_been_heard(streams, config, tmp_path, name, kind):
    streams(**{name: kind})
    assert cli.main(["train", str(config), "--out", str(tmp_path / "run")]) == 0
    assert (tmp_path / "run" / "summary.json").exists()


@pytest.mark.parametrize("kind", OF_COMMANDS)
@pytest.mark.parametrize(
    "argv", [["config"], ["datasets"], ["--help"], ["predict", "--help"], ["--version"], ["eval", "RUN"]], ids=" ".join
)
def test_commands_whose_output_is_their_purpose(streams, finished, monkeypatch, argv, kind):
    if kind in ("terminal", "closed") and argv[-1].startswith("--"):
        pytest.skip("argparse writes to the stream itself")
    said = []
    monkeypatch.setattr(console, "say", lambda *pieces: said.append(console.line_of(*pieces)))
    streams(stdout=kind)
    code = cli.main([word.replace("RUN", str(finished)) for word in argv])
    where = [f"marius-oac: standard output: can't be written: {os.strerror(RECORDS[kind])}"] if kind in RECORDS else []
    assert (code, [line for line in said if line.startswith("marius-oac")]) == (2 if where else 0, where)


@pytest.mark.parametrize("kind", OF_COMMANDS)
def test_a_verdict_is_the_exit_code(streams, finished, tmp_path, graph, kind):
    streams(stdout=kind, stderr=kind)
    assert cli.main(["compare", str(finished), str(finished)]) == 0
    assert cli.main(["export", str(finished), "--out", str(tmp_path / "export")]) == 0
    source = tmp_path / "edges.tsv"
    source.write_text("a\tr\tb\nb\tr\tc\nc\tr\ta\n" * 9)
    assert cli.main(["prepare", str(source), "--out", str(tmp_path / "graph"), "--valid-fraction", "0.1"]) == 0
    assert cli.main(["eval", str(tmp_path / "nothing")]) == 2


@pytest.mark.parametrize(
    "closed", ["<&-", ">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-", "> /dev/full", "> /dev/full 2>&1"]
)
def test_a_process_without_streams(tmp_path, closed):
    """What it opens gets no standard stream's number, and what Python says at its end changes no exit code."""
    script = (
        "import os, sys\n"
        "from marius_oac.runtime.console import open_standard_streams, say, report\n"
        "from marius_oac.runtime.command import run_command\n"
        "def work():\n"
        "    with open(sys.argv[1], 'w') as file:\n"
        "        assert file.fileno() > 2\n"
        "        say('a note')\n"
        "        report('a result')\n"
        "        file.write('content')\n"
        "sys.exit(run_command('p', work))\n"
    )
    command = f'"$0" -c "$1" "$2" {closed}'
    done = subprocess.run(["sh", "-c", command, sys.executable, script, str(tmp_path / "f")], stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (0, b"" if "2>" in closed else b"a note\n")
    assert (tmp_path / "f").read_text() == "content"
