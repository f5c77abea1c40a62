"""Messages of this program: notes and progress on standard error, results on standard output.

Messages that a calling program may want go to `logger`, the logger `marius_oac`: warnings for what a user should know,
information for the rest. `standard_error` shows both as lines of a command. Progress and errors of a command are
written by `say`.

Guarantees:
- A stream that is closed, full or gone (EPIPE, EIO, ENOSPC, no stream at all) stops no work and changes no exit code.
  The exception is output that the user has asked for (`answer`): if it can't be written, that is an error. A reader
  that stops early, such as `| head`, is no error.
- What a file or a name holds is no command to a terminal: there all that is written is escaped (`escaped`) but colours
  of our own (`Painted`) and bars. Into pipes and files it goes as it is.
- A file that the program opens never gets the number of a standard stream that was closed (`open_standard_streams`):
  messages would be written into it.
"""

from __future__ import annotations

import io
import logging
import os
import re
import sys
import traceback
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, NamedTuple, TextIO

from marius_oac.errors import InputError

logger = logging.getLogger("marius_oac")
_relayed = False

BOLD, RED, GREEN, YELLOW = 1, 31, 32, 33
"""Of `Painted`: parameters of the terminal's sequence for colours (ECMA-48, SGR)."""


class Painted(NamedTuple):
    """Text of this program's own in a colour, or bold, for standard error; as it is where that takes no colours."""

    text: str
    colour: int


@contextmanager
def standard_error() -> Iterator[None]:
    """Within the block everything that is logged is a line on standard error; warnings begin with `note: `.

    A nested block changes nothing.
    """
    if any(isinstance(each, _Lines) for each in logger.handlers):
        yield
        return
    lines, level, propagate = _Lines(), logger.level, logger.propagate
    logger.addHandler(lines)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(lines)
        logger.setLevel(level)
        logger.propagate = propagate


class _Lines(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        note = (Painted("note:", YELLOW), " ") if record.levelno >= logging.WARNING else ()
        say(*note, record.getMessage())


def say(*pieces: str | Painted) -> None:
    """Writes lines to standard error, if possible: the pieces one after the other."""
    NOTICES.write(line_of(*pieces) + "\n")
    NOTICES.flush()


def line_of(*pieces: str | Painted) -> str:
    """What `say` writes of them, without the end of the line."""
    colours, terminal = shows_colours(), is_terminal()
    texts = ((each, 0) if isinstance(each, str) else each for each in pieces)
    return "".join(
        _in_colour(text, colour) if text and colour and colours else escaped(text) if terminal else text
        for text, colour in texts
    )


_UNUSUAL = re.compile(r"[^ -~\n\t]")
_COMMANDS = {"Cc", "Cf", "Cs", "Zl", "Zp"}
_JOINERS = "\u200c\u200d"  # of Persian and Indic scripts, and of emoji


def escaped(text: str) -> str:
    """A text as a terminal may be given it: what is a command there (C0, C1, DEL, and so every sequence of ANSI), turns
    the direction of writing, is invisible or no character is written as Python would. Line ends and tabs stay."""
    return _UNUSUAL.sub(_harmless, text)


def _harmless(match: re.Match[str]) -> str:
    found = match.group()
    return ascii(found)[1:-1] if unicodedata.category(found) in _COMMANDS and found not in _JOINERS else found


def report(text: object) -> None:
    """Writes the result of finished work to standard output, if possible; a failure to write is no error. Of several
    lines the first is their title."""
    if _is_open(sys.stdout):
        title, *lines = _for_output(text).split("\n")
        if lines and _is_on_terminal() and _wanted():
            title = _in_colour(title, BOLD)
        try:
            sys.stdout.write("\n".join([title, *lines, ""]))
            sys.stdout.flush()
        except OSError:
            _let_go(sys.stdout)


def relay(output: bytes, errors: bytes) -> None:
    """Writes what another process has written to its standard output and standard error, if possible. The latter it
    has escaped itself, if it is for a terminal (`shown_on_a_terminal`), and may hold its bars."""
    NOTICES.write(errors.decode("utf-8", "replace"))
    NOTICES.flush()
    if output and _is_open(sys.stdout):
        try:
            sys.stdout.write(_for_output(output.decode("utf-8", "replace")))
            sys.stdout.flush()
        except OSError:
            _let_go(sys.stdout)


def answer(text: object) -> None:
    """Writes to standard output what the user has asked for; does nothing where the reader has gone.

    Raises:
        InputError: it can't be written.
    """
    if _is_open(sys.stdout):
        with _asked_for():
            sys.stdout.write(f"{_for_output(text)}\n")
            sys.stdout.flush()


def answer_rows(rows: Iterable[Sequence[object]]) -> None:
    """`answer` for lines of cells with tabs between them. On a terminal a cell that has line ends stays on its line."""
    for row in rows:
        cells = [str(each).replace("\n", "\\n") if _is_on_terminal() else str(each) for each in row]
        answer("\t".join(cells))


def _for_output(text: object) -> str:
    return escaped(str(text)) if _is_on_terminal() else str(text)


def _is_on_terminal() -> bool:
    return _is_shown(sys.stdout)


def finish() -> None:
    """Writes what is left in the buffer of standard output, such as argparse's help, under the rules of `answer`."""
    if _is_open(sys.stdout):
        with _asked_for():
            sys.stdout.flush()


def let_go() -> None:
    """Drops what a stream could not write: it would fail again when the process ends, and change its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if _is_open(stream):
            try:
                stream.flush()
            except OSError:
                _let_go(stream)


def is_terminal() -> bool:
    """Whether standard error is a terminal, or another process relays it to one (`shown_on_a_terminal`)."""
    return _is_shown(sys.stderr) or (_relayed and _is_open(sys.stderr))


def shows_colours() -> bool:
    """Whether standard error is a terminal with colours, which the user has not refused (https://no-color.org)."""
    return is_terminal() and _wanted()


def _wanted() -> bool:
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb"


def _in_colour(text: str, colour: int) -> str:
    return f"\x1b[{colour}m{text}\x1b[0m"


def shown_on_a_terminal() -> None:
    """Says that another process relays standard error to a terminal."""
    global _relayed
    _relayed = True


def open_standard_streams() -> None:
    """Opens standard streams that were closed when the process began; what is written there is discarded. Characters
    that standard output's encoding lacks are written as escapes, as on standard error."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the smallest number that is free: this one
    for name, number in (("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w", closefd=False))  # noqa: SIM115 - as long as the process
    sys.excepthook = _say_traceback
    if isinstance(sys.stdout, io.TextIOWrapper) and not sys.stdout.closed:
        sys.stdout.reconfigure(errors="backslashreplace")


def _say_traceback(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """In place of Python's own, which writes messages to a terminal as they are."""
    say("".join(traceback.format_exception(kind, error, trace)).removesuffix("\n"))


@contextmanager
def _asked_for() -> Iterator[None]:
    """Within the block a failure of standard output is an InputError, unless the reader has gone."""
    try:
        yield
    except OSError as error:
        _let_go(sys.stdout)
        if not isinstance(error, BrokenPipeError):
            raise InputError(f"can't be written: {error.strerror or error}", "standard output") from None


def _is_open(stream: TextIO | None) -> bool:
    return stream is not None and not getattr(stream, "closed", False)  # others put streams of their own there


def _is_shown(stream: TextIO | None) -> bool:
    """Whether it is a terminal; a stream of others' may not have `isatty`."""
    return stream is not None and _is_open(stream) and getattr(stream, "isatty", bool)()


def _let_go(stream: TextIO) -> None:
    """Empties the buffer of a stream that can't be written; what is written later is lost, too."""
    with suppress(OSError):
        number, nowhere = stream.fileno(), os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, number)
        os.close(nowhere)
        stream.flush()


class _Notices:
    """Standard error as it is at each moment, for `say` and for bars of tqdm. Its failures are ignored."""

    def write(self, text: str) -> None:
        with suppress(OSError):
            if _is_open(sys.stderr):
                sys.stderr.write(text)

    def flush(self) -> None:
        with suppress(OSError):
            if _is_open(sys.stderr):
                sys.stderr.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stderr, name)


NOTICES = _Notices()
