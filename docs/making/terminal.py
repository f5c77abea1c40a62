"""Draws a training run as a terminal shows it: `python -m docs.making.terminal` writes `docs/figures/terminal.svg`.

The run is a real one, of the graph that comes with the package. The picture is made by rich, and refers to no font of
the network.
"""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
import tempfile

from rich.console import Console
from rich.terminal_theme import DIMMED_MONOKAI
from rich.text import Text

from docs.making.notebooks import ROOT
from docs.making.pictures import FIGURES

COLUMNS = 100
COMMAND = "marius-oac train codex-s.yaml --out runs/codex-s"
OPTIONS = ["--set", "training.epochs=12", "--set", "evaluation.every=4"]
_ERASED = re.compile(r"\x1b\[[0-9;?]*[A-HJKlh]")
_FONT = re.compile(r"\s*@font-face \{.*?\}", flags=re.S)


def recorded() -> str:
    """What the command writes to a terminal of so many columns."""
    with tempfile.TemporaryDirectory() as folder:
        os.symlink(ROOT / "examples" / "codex-s.yaml", os.path.join(folder, "codex-s.yaml"))
        ours, theirs = pty.openpty()
        command = [sys.executable, "-m", "marius_oac", *COMMAND.split()[1:], *OPTIONS]
        variables = {**os.environ, "COLUMNS": str(COLUMNS), "TERM": "xterm-256color"}
        streams = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
        with subprocess.Popen(command, cwd=folder, env=variables, **streams) as running:
            os.close(theirs)
            said = io.BytesIO()
            while chunk := read(ours):
                said.write(chunk)
        os.close(ours)
        if running.returncode:
            raise SystemExit(said.getvalue().decode())
    return said.getvalue().decode()


def read(descriptor: int) -> bytes:
    """The next bytes, or nothing once the other side is closed."""
    try:
        return os.read(descriptor, 65536)
    except OSError:
        return b""


def shown(said: str) -> list[str]:
    """The lines that stay: what a carriage return goes back over is gone."""
    lines = [_ERASED.sub("", line).rstrip("\r").rpartition("\r")[2].rstrip() for line in said.split("\n")]
    return [line for line in lines if line]


def main() -> None:
    """Runs the command and draws it."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    console.print(Text("$ " + COMMAND, style="bold"))
    for line in shown(recorded()):
        console.print(Text.from_ansi(line))
    svg = _FONT.sub("", console.export_svg(title="marius_oac", theme=DIMMED_MONOKAI, unique_id="terminal"))
    (FIGURES / "terminal.svg").write_text(svg, "utf-8")


if __name__ == "__main__":
    main()
