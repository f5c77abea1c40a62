"""Lines of code by folder: `python -m tests.size` prints them, and `tests/size.txt` has the most that each may have.

A line counts if a token of code stands in it: no blank line, comment or docstring does. Of the package each folder of
its root counts by itself, and the modules beside them as `marius_oac`; `tests` and `benchmarks` count whole.
`--check`, which `make lint` runs, fails in a line for each folder above its ceiling. `--write` lowers the ceilings to
the present numbers: a change that needs a higher one raises it in `tests/size.txt` by hand.
"""

from __future__ import annotations

import argparse
import ast
import io
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
CEILINGS = Path(__file__).with_name("size.txt")
_LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING,
           tokenize.ENDMARKER}  # fmt: skip


def code_lines(text: bytes) -> int:
    """Lines of a module in which code stands."""
    found = {line for token in tokenize.tokenize(io.BytesIO(text).readline) if token.type not in _LAYOUT
             for line in range(token.start[0], token.end[0] + 1)}  # fmt: skip
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            found -= set(range(node.lineno, node.end_lineno + 1))
    return len(found)


def sizes(root: Path = ROOT) -> Counter[str]:
    """Lines of code by folder."""
    found = Counter()
    for path in (path for top in ("marius_oac", "tests", "benchmarks") for path in (root / top).rglob("*.py")):
        top, *folders = path.relative_to(root).parent.parts
        found["/".join([top, *folders[:1]]) if top == "marius_oac" else top] += code_lines(path.read_bytes())
    return found


def ceilings() -> dict[str, int]:
    """The most lines that each folder may have, as `tests/size.txt` says."""
    lines = (line.split() for line in CEILINGS.read_text("utf-8").splitlines())
    return {folder: int(most) for most, folder in lines}


def above(found: Mapping[str, int], most: Mapping[str, int]) -> Iterator[str]:
    """A line for each folder that has more lines than it may have; a folder without a ceiling may have none."""
    for folder, lines in sorted(found.items()):
        if lines > most.get(folder, 0):
            yield f"{folder} has {lines} lines of code, {lines - most.get(folder, 0)} more than tests/size.txt allows"


def table(found: Mapping[str, int]) -> str:
    return "".join(f"{lines:6} {folder}\n" for folder, lines in sorted(found.items()))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.size", description="Lines of code by folder.")
    parser.add_argument("--write", action="store_true", help="lower the ceilings to the present numbers")
    parser.add_argument("--check", action="store_true", help="fail if a folder is above its ceiling")
    args = parser.parse_args()
    if args.check:
        sys.exit("\n".join(above(sizes(), ceilings())) or None)
    if args.write:
        most = ceilings()
        lowered = {folder: min(lines, most.get(folder, lines)) for folder, lines in sizes().items()}
        CEILINGS.write_text(table(lowered), "utf-8")
    total = sum(lines for folder, lines in sizes().items() if folder.startswith("marius_oac"))
    print(f"{table(sizes())}{total:6} all of marius_oac")
