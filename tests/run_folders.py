"""What short runs leave in their folders, and how to compare and break it."""

import hashlib
import json
import sys
from pathlib import Path

import pytest

from marius_oac.config.link_prediction import Config

TIMES = ("seconds", "per_second", "rss", "machine")
# What depends on how the threads happened to run.
CHANCE = ("replaced", "refused", "cache_rows", "channel_fill", "disk.")


def write_config(path: Path, config: Config) -> Path:
    path.write_text(config.dump())
    return path


def slow(*values):
    """Values for `parametrize` that the quick run leaves out."""
    return pytest.param(*values, marks=pytest.mark.slow)


def each_with_one_of(these, those):
    """Pairs for `parametrize`: each of these with one of those, taking turns; all other pairs are slow."""
    pairs = ((number % len(those) == place, one, other) for number, one in enumerate(these)
             for place, other in enumerate(those))  # fmt: skip
    return [pytest.param(one, other) if quick else slow(one, other) for quick, one, other in pairs]


def story(path: Path) -> list:
    """The lines of metrics.jsonl without what differs between two runs with the same bits."""

    def told(line):
        return {key: value for key, value in line.items() if not any(part in key for part in (*TIMES, *CHANCE))}

    return [told(json.loads(line)) for line in (path / "metrics.jsonl").read_text().splitlines()]


def outcome(path: Path) -> dict:
    """The summary, likewise."""
    summary = json.loads((path / "summary.json").read_text())
    return {key: value for key, value in summary.items() if not any(part in key for part in (*TIMES, *CHANCE))}


def contents(folder: Path) -> dict[str, str]:
    """SHA-256 of every file below a folder, by its path in it."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def flip_a_byte(path: Path) -> None:
    """In the middle of the file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def edit(path: Path, old: str, new: str) -> None:
    """Replaces a text that stands in a file once, as a user would."""
    text = path.read_text()
    assert text.count(old) == 1, f"{text.count(old)} times {old!r} in {path}"
    path.write_text(text.replace(old, new))


def stop_at(stage: str, batch_index: int, error: BaseException):
    """A probe that raises `error` before a stage of a batch."""

    def probe(at: str, number: int) -> None:
        if (at, number) == (stage, batch_index):
            raise error

    return probe


def says(lines: list[str], *parts: str) -> bool:
    """Whether the last lines are the program's, one for each mistake, one of them holds the parts, and no traceback
    stands above them."""
    sys.stderr.write("\n".join(lines))
    ours = [line for line in lines if line.startswith("marius-oac: ")]
    held = any(all(part in line for part in parts) for line in ours)
    return held and lines[-len(ours) :] == ours and not any("Traceback" in line for line in lines)
