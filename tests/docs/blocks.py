"""The blocks of code on a page, as a reader would run them, from the top to the bottom, in one folder.

```bash                     each line is a command; # begins a comment
```python                   all such blocks of a page are one session
```yaml title="a.yaml"      a file to write; so is Python with a title
```text, ```diff            what is shown; not run
<!-- not run: WHY -->       before a block that can't be run here
<!-- run                    what a block needs that the page does not show: Python, up to -->
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from marius_oac.cli.commands import main

SHOWN = ("text", "diff")
_BLOCK = re.compile(
    r'^(?:<!-- not run: (?P<why>[^\n]+) -->\n)?```(?P<kind>\w*)(?: title="(?P<file>[^"]+)")?\n(?P<text>.*?)^```$'
    r"|^<!-- run\n(?P<hidden>.*?)^-->$",
    flags=re.M | re.S,
)


class Block(NamedTuple):
    """`kind`: its language; `file`: where it is to be written, or nothing; `line`: of the page, where it begins."""

    kind: str
    text: str
    file: str
    why_not: str
    line: int


def blocks(page: str) -> Iterator[Block]:
    """The blocks of a page's text."""
    for found in _BLOCK.finditer(page):
        line = page[: found.start()].count("\n") + 1
        if found["hidden"]:
            yield Block("python", found["hidden"], "", "", line)
        else:
            yield Block(found["kind"], found["text"], found["file"] or "", found["why"] or "", line)


def run(page: Path) -> int:
    """Runs a page's blocks in the present folder. Returns how many. Fails with the page and line of what fails."""
    ran, session = 0, {"__name__": "__main__"}
    for block in blocks(page.read_text("utf-8")):
        where = f"{page}:{block.line}"
        assert block.kind, f"{where}: a block without a language"
        if block.why_not or block.kind in SHOWN:
            continue
        ran += 1
        if block.file:
            Path(block.file).write_text(block.text, "utf-8")
        elif block.kind == "bash":
            _commands(block.text, where)
        elif block.kind == "python":
            lines = "\n" * block.line  # so that a traceback names the page's line
            exec(compile(lines + block.text, str(page), "exec"), session)
        else:
            raise AssertionError(f"{where}: {block.kind} is neither run nor written: give it a title")
    return ran


def _commands(text: str, where: str) -> None:
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if not words:
            continue
        if words[0] == "marius-oac" and "--local-nodes" in words:
            words[:1] = ["python", "-m", "marius_oac"]  # a launcher has its process for itself
        if words[0] == "marius-oac":
            code = main(words[1:])
        elif words[0] == "python":
            code = subprocess.run([sys.executable, *words[1:]], check=False, timeout=120).returncode
        else:
            code = subprocess.run(["bash", "-c", line], check=False, timeout=60).returncode
        assert code == 0, f"{where}: {line!r} ends with {code}"
