"""What short runs leave in their folders, and how to compare and break it."""

import hashlib
import json
import sys
from pathlib import Path

from marius_oac.config import Config

TIMES = ("seconds", "per_second", "rss", "machine")
CHANCE = ("replaced", "cache_rows", "channel_fill", "disk.")  # what depends on how the threads happened to run


def write_config(path: Path, config: Config) -> Path:
    path.write_text(config.dump())
    return path


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


def stop_at(stage: str, sequence: int, error: BaseException):
    """A probe that raises `error` before a stage of a batch."""

    def probe(at: str, number: int) -> None:
        if (at, number) == (stage, sequence):
            raise error

    return probe


def says(lines: list[str], *parts: str) -> bool:
    """Whether the last line is the program's and holds the parts, and no traceback stands above it."""
    sys.stderr.write("\n".join(lines))
    ours = [line for line in lines if line.startswith("marius-oac: ")]
    return (
        lines[-1:] == ours and all(part in lines[-1] for part in parts) and not any("Traceback" in li for li in lines)
    )
