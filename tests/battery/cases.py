"""What a case of the battery is, and what it promises."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from string import Template

COMPILING = "compiling kernels, once for this machine"

Content = str | bytes | Callable[[Path, Mapping[str, str]], None]
"""A text, in which `$graph` and the like stand for paths of specimens; bytes; or what makes something at a path."""


@dataclass(frozen=True)
class Case:
    """A command in an empty folder, and the one line that it has to say.

    Args:
        name: of the case; no other has it.
        command: words behind `marius-oac`, of a process a line of the shell, in which `$oac` is the program.
        files: what stands in the folder, by name.
        where: what the line blames: file, line, key; "" where it blames nothing.
        what: how the line goes on.
        code: exit code.
        notes: lines that stand above it, a table being one; None: any number.
        made: what the command leaves in its folder, names as `glob` takes them; else nothing may change there.
        variables: of the environment; None: it is not set. Processes only.
    """

    name: str
    command: str
    files: Mapping[str, Content] = field(default_factory=dict)
    where: str = ""
    what: str = ""
    code: int = 2
    notes: int | None = 0
    made: tuple[str, ...] = ()
    variables: Mapping[str, str | None] = field(default_factory=dict)

    @property
    def line(self) -> str:
        """How the line begins that it has to say; "" where it says none."""
        said = f"{self.where}: {self.what}" if self.where else self.what
        return f"marius-oac: {said}" if said else ""

    @property
    def check(self) -> str:
        """What is checked, as far as the message tells: without the names, values and numbers of this case."""
        if not self.what:  # that it is silent: of signals, streams and so on
            return f"{self.name.partition('-')[0]}: nothing is said, and the exit code is {self.code}"
        text = re.sub(r"'[^']*'|\S*[/.]\S*|\d[\d,]*", "_", self.what)
        return " ".join(text.split()[:6])

    def words(self, specimens: Mapping[str, str]) -> list[str]:
        """The command's words."""
        return [filled(word, specimens) for word in shlex.split(self.command)]

    def write(self, folder: Path, specimens: Mapping[str, str]) -> None:
        """Writes the files."""
        for name, content in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if callable(content):
                content(path, specimens)
            else:
                path.write_bytes(content if isinstance(content, bytes) else filled(content, specimens).encode())


def filled(text: str, specimens: Mapping[str, str]) -> str:
    """A text with the paths of specimens."""
    return Template(text).safe_substitute(specimens)


def listing(*folders: Path) -> dict[str, tuple]:
    """What lies below folders: kind, size and time of change of each file, and what each link says."""
    found = {}
    for folder in folders:
        for root, names, files in os.walk(folder):
            for name in (*names, *files):
                path = Path(root, name)
                seen = path.lstat()
                is_folder = path.is_dir() and not path.is_symlink()
                told = () if is_folder else (seen.st_size, seen.st_mtime_ns)
                found[str(path)] = (seen.st_mode, *told)
    return found


def wrong_lines(case: Case, said: str, specimens: Mapping[str, str]) -> str | None:
    """What is wrong with what a command has said on standard error; None: nothing."""
    lines = said.splitlines()
    if "Traceback" in said:
        return "a traceback"
    lines = [line for line in lines if not line.startswith("  ")]  # rows of a table
    lines = [line for line in lines if line != COMPILING]  # said or not by what ran on the machine before
    if case.notes is not None and len(lines) != case.notes + bool(case.line):
        return f"{len(lines)} lines, {case.notes + bool(case.line)} were expected"
    if case.line and not lines[-1:] or case.line and not lines[-1].startswith(filled(case.line, specimens)):
        return f"the line is not {case.line!r}"
    if sum("marius-oac: " in line for line in lines) > bool(case.line) or said.count("marius-oac: marius-oac"):
        return "the program names itself twice"
    return None
