"""What a file or a name holds is no command to a terminal: it is escaped there, and goes as it is into pipes."""

import io
import os
import shutil
import sys
import termios
import threading
from contextlib import suppress

import pytest

from marius_oac.cli import commands as cli
from marius_oac.config.link_prediction import Config
from marius_oac.errors import InputError
from marius_oac.prepare.prepare import PrepareRequest, prepare
from marius_oac.runtime import console, progress
from marius_oac.runtime.console import escaped
from marius_oac.training import local as training
from tests.run_folders import slow

HOSTILE = {
    "\x1b[2J": "\\x1b[2J", "\x1b]0;title\x07": "\\x1b]0;title\\x07", "\x9b31m": "\\x9b31m", "\x7f": "\\x7f",
    "\x00\x08\r\x0b": "\\x00\\x08\\r\\x0b", "\u202egpj.exe": "\\u202egpj.exe", "\u2066x\u2069": "\\u2066x\\u2069",
    "\u200e\u200f\u061c": "\\u200e\\u200f\\u061c", "\u2028\u2029": "\\u2028\\u2029", "\ufeff\u00ad": "\\ufeff\\xad",
    "\udc80": "\\udc80", "\U000e0041": "\\U000e0041", "\x85": "\\x85", "\u180e": "\\u180e",
}  # fmt: skip
HARMLESS = (
    "Zürich",
    "東京\u3000駅",
    "می\u200cخواهم",
    "👩\u200d👧\ufe0f",
    "a\tb\nc",
    "שלום",
    "e\u0301",
    "\xa0",
    "\ue0b0",
)
NAME = "n\x1b]0;x\x07\u202e"
SHOWN = "n\\x1b]0;x\\x07\\u202e"


@pytest.mark.parametrize(("text", "shown"), HOSTILE.items())
def test_commands_to_a_terminal_are_escaped(text, shown):
    assert escaped(f"a{text}b") == f"a{shown}b"


@pytest.mark.parametrize("text", HARMLESS)
def test_text_of_any_language_is_not(text):
    assert escaped(text) == text


class Screen:
    """A terminal, which keeps what is written to it. Within a block it is standard output and standard error."""

    def __init__(self, patch):
        self._patch, self._found = patch, b""

    def __enter__(self):
        self._master, slave = os.openpty()
        termios.tcsetwinsize(slave, (24, 300))
        self._stream = open(slave, "w", encoding="utf-8", errors="surrogateescape")  # noqa: SIM115 - closed at the end
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        self._patch.setattr(sys, "stdout", self._stream)
        self._patch.setattr(sys, "stderr", self._stream)
        return self

    def _read(self):
        with suppress(OSError):  # EIO, when the other end is closed
            while found := os.read(self._master, 1 << 16):
                self._found += found

    def __exit__(self, *_):
        self._patch.undo()
        self._stream.close()
        self._reader.join()
        os.close(self._master)

    @property
    def said(self):
        """All that was written. To a terminal a line ends with a return."""
        return self._found.decode("utf-8", "surrogateescape").replace("\r\n", "\n")


@pytest.fixture
def screen(monkeypatch):
    """Without colours."""
    with pytest.MonkeyPatch.context() as patch:
        monkeypatch.setenv("TERM", "dumb")
        yield Screen(patch)


def write_all(name):
    """By each way that there is to write something."""
    with console.standard_error():
        console.say(name)
        console.logger.warning(name)
        console.report(name)
        console.report(f"{name}\n{name}")
        console.answer(name)
        console.answer_rows([(name, name)])
        console.relay(f"{name}\n".encode("utf-8", "surrogateescape"), b"")


LINES = "{0}\nnote: {0}\n{0}\n{0}\n{0}\n{0}\n{0}\t{0}\n{0}\n"


def test_all_that_is_written_to_a_terminal_is_escaped(screen):
    with screen:
        write_all(NAME)
    assert screen.said == LINES.format(SHOWN)


def test_into_pipes_it_goes_as_it_is(monkeypatch):
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", out)
    write_all(NAME)
    assert out.getvalue() == LINES.format(NAME)


def test_colours_are_our_own_alone(screen, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    with screen:
        console.say(console.Painted("note:", console.YELLOW), " \x1b[31mred")
        console.report("\x1b[1mtitle\nrow")
    assert screen.said == "\x1b[33mnote:\x1b[0m \\x1b[31mred\n\x1b[1m\\x1b[1mtitle\x1b[0m\nrow\n"


def test_a_cell_stays_on_its_line(screen):
    with screen:
        console.answer_rows([("a\nb", "c")])
    assert screen.said == "a\\nb\tc\n"


def test_bars_and_lines_of_progress(screen):
    with screen, progress.Progress(f"reading {NAME}", "edges", 9) as bar:
        bar._bar.delay = 0
        bar._bar.refresh()
    assert f"reading {SHOWN}" in screen.said and NAME not in screen.said


def test_the_traceback_of_a_defect(screen, monkeypatch):
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    console.open_standard_streams()
    with screen:
        try:
            raise ValueError(NAME)
        except ValueError as error:
            sys.excepthook(type(error), error, error.__traceback__)
    said = screen.said
    assert said.startswith("Traceback (most recent call last):\n") and said.endswith(f"ValueError: {SHOWN}\n")


def test_mistakes_are_escaped_everywhere():
    assert str(InputError(NAME, NAME)) == f"{SHOWN}: {SHOWN}"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Of a graph with such names, in a folder with such a name."""
    folder = tmp_path_factory.mktemp("run") / NAME
    folder.mkdir()
    rows = [f"{NAME}{i % 17}\tr{i % 3}{NAME}\t{NAME}{i * 7 % 23}\n" for i in range(300)]
    (folder / "edges.tsv").write_text("".join(rows))
    prepare(PrepareRequest(source=str(folder / "edges.tsv"), out=folder / "graph", valid_fraction=0.1,
                           test_fraction=0.1, duplicates="drop"))  # fmt: skip
    tree = {"device": "cpu", "threads": 1, "data": {"path": str(folder / "graph")}, "model": {"dimension": 8}}
    training.train(Config.build(tree, ["training.epochs=1"]), folder / "run")
    return folder / "run"


COMMANDS = {
    "predict": ["predict", "RUN", "--head", f"{NAME}1", "--relation", f"r1{NAME}"],
    "eval": ["eval", "RUN"],
    "verify": ["verify", "RUN"],
    "compare": ["compare", "RUN", "RUN"],
    "export": ["export", "RUN", "--format", "npy"],
    "init": ["init", "EDGES"],
    "init out": ["init", "EDGES", "--out", "OUT.yaml"],
    "prepare": ["prepare", "EDGES", "--out", "OUT", "--valid-fraction", "0.1", "--test-fraction", "0.1",
                "--duplicates", "drop"],
    "train": ["train", "CONFIG", "--out", "OUT"],
    "resume": ["resume", "COPY", "--set", "training.epochs=2"],
    "report": ["report", "RUN", "--out", "OUT.html"],
    "watch": ["watch", "RUN"],
    "unknown name": ["predict", "RUN", "--head", NAME, "--relation", "x"],
    "no file": ["train", f"{NAME}.yaml"],
    "bad argument": ["eval", "RUN", f"--{NAME}"],
    "bad key": ["train", "CONFIG", "--set", f"{NAME}=1"],
    "no run": ["eval", NAME],
}  # fmt: skip


@pytest.mark.parametrize(
    "name", [name if name in ("predict", "eval", "verify", "bad key") else slow(name) for name in COMMANDS]
)
def test_no_command_writes_a_name_raw(run, tmp_path, screen, name):
    places = {"RUN": run, "EDGES": run.parent / "edges.tsv", "OUT": tmp_path / NAME, "CONFIG": run / "config.yaml",
              "COPY": tmp_path / f"copy{NAME}"}  # fmt: skip
    if "COPY" in COMMANDS[name]:
        shutil.copytree(run, places["COPY"])
    words = [str(places.get(word.partition(".")[0], word)) + (word[3:] if word.startswith("OUT.") else "")
             for word in COMMANDS[name]]  # fmt: skip
    with screen:
        cli.main(words)
    said = screen.said
    # Of the sequences that move the cursor, and of returns, bars are the only source.
    rest = said.replace("\x1b[A", "").replace("\r", "")
    assert escaped(rest) == rest, [ch for ch in rest if escaped(ch) != ch]
    assert ("\\x1b]0;x" in said) or name in ("compare", "watch", "init")


def test_a_file_of_answers_has_them_as_they_are(run, capsys):
    assert cli.main(["predict", str(run), "--head", f"{NAME}1", "--relation", f"r1{NAME}"]) == 0
    names = {line.split("\t")[1] for line in capsys.readouterr().out.splitlines()}
    assert all(each.startswith(NAME) for each in names), sorted(names)
