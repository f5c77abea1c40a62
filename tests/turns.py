"""Which of the dear checks `.ci/run` makes: those whose subject has changed, and of the others a seventh in turn.

`.ci/turn` holds a number. Whoever lands a change adds 1, so that seven landings in a row make every check. What has
changed is what differs from the commit before the one that last wrote that file. `make everything` makes all.

    python -m tests.turns     # the environments to test in, as targets of make; the reasons go to standard error

Slow tests are made in as many turns as `tests/budget.txt` says of their topic: `pytest --turn slow` skips those that
neither their file, nor what their topic tests, nor the turn asks for. `--turn hypothesis` makes a seventh of the
property tests.
"""

from __future__ import annotations

import subprocess
import sys
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.costs import topic_of, topics

ROOT = Path(__file__).parents[1]
FILE = ".ci/turn"
TURNS = 7
INSTALLED = ("setup.cfg", "constraints.txt")
"""What decides which packages an environment has."""
ENVIRONMENTS: Mapping[str, tuple[str, ...]] = {
    "test-dgl": ("marius_oac/dgl.py", "marius_oac/data/dgl", "marius_oac/prepare/dgl", "marius_oac/models/gnn",
                 "tests/data/dgl"),
    "test-loops": ("marius_oac/torch", "marius_oac/runs/tracking", "examples",
                   "tests/examples", "docs/own_loop_examples.md"),
    "test-ray": ("marius_oac/nodes/launch", "tests/nodes/test_on_ray.py"),
    "docs": ("docs", "mkdocs.yml", "README.md"),
    "test-triton": ("marius_oac/kernels/gpu", "tests/kernels/compile_for_gpu.py", "tests/kernels/test_gpu_compiled.py"),
}  # fmt: skip
"""Targets of make, each with the paths that it tests."""


@dataclass(frozen=True)
class Turn:
    """What a run of the checks makes.

    Attributes:
        number: that `.ci/turn` holds.
        changed: paths, relative to the root, that have changed; None: that is not known, so everything is made.
        since: the commit that they have changed since.
    """

    number: int
    changed: frozenset[str] | None
    since: str = ""

    def why(self, place: int, paths: Iterable[str], turns: int = TURNS) -> str:
        """Why the check with this number is made, one of those that are made in so many turns; "" if it is not."""
        if self.changed is None:
            return "what has changed is not known"
        found = sorted(path for path in self.changed if any(path == p or path.startswith(f"{p}/") for p in paths))
        return f"{found[0]} has changed" if found else "its turn" if place % turns == self.number % turns else ""


def turn(root: Path = ROOT) -> Turn:
    """Of the checkout, with what is not committed yet."""
    number = int((root / FILE).read_text("utf-8"))
    try:
        is_new = bool(_git(root, "status", "--porcelain", "--", FILE))
        commits = _git(root, "log", "--format=%H", f"--max-count={1 if is_new else 2}", "--", FILE)
        if len(commits) < (1 if is_new else 2):
            return Turn(number, None)
        changed = _git(root, "diff", "--name-only", commits[-1]), _git(root, "ls-files", "-o", "--exclude-standard")
    except (OSError, subprocess.CalledProcessError):
        return Turn(number, None)
    return Turn(number, frozenset(path for paths in changed for path in paths), commits[-1])


def _git(root: Path, *words: str) -> list[str]:
    done = subprocess.run(("git", "-C", str(root), *words), capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def targets(now: Turn) -> tuple[list[str], list[str]]:
    """The environments to test in, and a line on each one."""
    chosen, lines = [], [f"turn {now.number % TURNS} of {TURNS}, changes since {now.since[:8] or 'an unknown commit'}"]
    for place, (target, paths) in enumerate(ENVIRONMENTS.items()):
        why = now.why(place, (*paths, *INSTALLED))
        chosen += [target] if why else []
        lines.append(f"  {target}: {why or f'left out; its turn is {place}'}")
    return chosen, lines


def add_option(parser: pytest.Parser) -> None:
    parser.addoption(
        "--turn", choices=("slow", "hypothesis"), help="of tests so marked, only those that tests/turns.py chooses"
    )


def modify(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With `--turn`, skips the tests that are not chosen; `tests.skips` says at the end how many."""
    if not (marker := config.getoption("--turn")):
        return
    now, known = turn(), topics()
    for item in items:
        file = item.nodeid.partition("::")[0]
        topic = topic_of(file, known)
        turns = topic.turns if marker == "slow" else TURNS
        chosen = now.why(zlib.crc32(item.nodeid.encode()), (file, *topic.tested), turns)
        if item.get_closest_marker(marker) and not chosen:
            item.add_marker(pytest.mark.skip(reason=f"is made in another one of {turns} turns"))


def main() -> None:
    chosen, lines = targets(turn())
    print(*lines, sep="\n", file=sys.stderr)
    print(*chosen)


if __name__ == "__main__":
    main()
