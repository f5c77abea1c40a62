"""A disk that forgets: what was written to a folder, what of it was flushed, and what a crash may leave.

A file's content is known at its last flush and as it is now. A folder has the names that it had at its last flush; what
was made, renamed and removed since is pending: after a crash any of it may have happened, a rename as a whole. A file
that was not flushed may be as it was, as it is, a beginning of that, zeros, or any mix of blocks.
"""

from __future__ import annotations

import os
import random
import shutil
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

BLOCK = 4096
_ZEROS = bytes(BLOCK)
_FINE_NS = 50_000_000  # a file's time of change moves in steps of some milliseconds


@dataclass(frozen=True)
class Content:
    """Of a file, in blocks; those of zeros are empty."""

    size: int
    blocks: tuple[bytes, ...]

    @classmethod
    def read(cls, path: Path, known: dict[bytes, bytes]) -> Content:
        text = path.read_bytes()
        parts = (text[at : at + BLOCK] for at in range(0, len(text), BLOCK))
        return cls(len(text), tuple(b"" if part == _ZEROS else known.setdefault(part, part) for part in parts))

    def write(self, path: Path) -> None:
        with open(path, "wb") as file:
            for number, block in enumerate(self.blocks):
                if block:
                    file.seek(BLOCK * number)
                    file.write(block)
            file.truncate(self.size)


EMPTY = Content(0, ())
Effect = tuple[int, str, int | None]
"""Folder, name in it, and what has this name now; None: nothing."""
Tree = dict[str, Content | None]
"""Of each path its content; None: a folder."""


@dataclass
class _Node:
    """A file or a folder. `seen`: (time of change, size) when `now` was read."""

    is_folder: bool
    now: Content = EMPTY
    flushed: Content | None = None
    seen: tuple[int, int, int] = (0, 0, 0)
    names: dict[str, int] = field(default_factory=dict)
    flushed_names: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Moment:
    """All that a crash at one moment can make use of; `noted` is what whoever watches said last."""

    event: str
    noted: object
    names: dict[int, dict[str, int]]
    pending: tuple[tuple[Effect, ...], ...]
    contents: dict[int, tuple[Content | None, Content] | None]


class Disk:
    """What lies below a folder that is there and empty or flushed; `look` is called before each change of it."""

    def __init__(self, folder: Path):
        self._folder, self._nodes, self._by_inode = folder, {0: _Node(True)}, {os.stat(folder).st_ino: 0}
        self._pending: list[tuple[Effect, ...]] = []
        self._known: dict[bytes, bytes] = {}
        self._renaming: tuple[Path, Path] | None = None
        self._look(0, folder)
        for node in self._nodes.values():
            node.flushed, node.flushed_names = node.now, dict(node.names)
        self._pending.clear()

    def renames(self, before: Path, after: Path) -> None:
        """Said before it happens."""
        self._renaming = before, after

    def flush(self, descriptor: int) -> None:
        found = os.fstat(descriptor)
        number = self._by_inode.get(found.st_ino)
        if number is None:
            return
        node = self._nodes[number]
        if not node.is_folder:
            node.now = node.flushed = Content.read(Path(f"/proc/self/fd/{descriptor}"), self._known)
            return
        for effects in self._pending:
            if any(folder == number for folder, _, _ in effects):
                _apply(effects, {each: self._nodes[each].flushed_names for each, _, _ in effects})
        self._pending = [each for each in self._pending if all(folder != number for folder, _, _ in each)]

    def look(self, event: str, noted: object) -> Moment:
        """Finds what has changed since it was looked last."""
        if self._renaming:
            self._look_at_rename(*self._renaming)
            self._renaming = None
        self._look(0, self._folder)
        linked = {number for node in self._nodes.values() for number in node.names.values()} | {0}
        self._by_inode = {inode: number for inode, number in self._by_inode.items() if number in linked}
        names = {number: dict(node.flushed_names) for number, node in self._nodes.items() if node.is_folder}
        contents = {n: None if node.is_folder else (node.flushed, node.now) for n, node in self._nodes.items()}
        return Moment(event, noted, names, tuple(self._pending), contents)

    def _place(self, path: Path) -> tuple[int, str] | None:
        number: int | None = 0
        try:
            parts = path.absolute().relative_to(self._folder).parts
        except ValueError:
            return None
        for part in parts[:-1]:
            number = self._nodes[number].names.get(part)
            if number is None:
                return None
        return number, parts[-1]

    def _look_at_rename(self, before: Path, after: Path) -> None:
        """One change, if it has happened."""
        old, new = self._place(before), self._place(after)
        number = self._nodes[old[0]].names.get(old[1]) if old else None
        if number is None or new is None or os.path.lexists(before) or not os.path.lexists(after):
            return
        if self._by_inode.get(os.lstat(after).st_ino) == number:
            self._change((*old, None), (*new, number))

    def _change(self, *effects: Effect) -> None:
        self._pending.append(effects)
        _apply(effects, {each: self._nodes[each].names for each, _, _ in effects})

    def _look(self, number: int, path: Path) -> None:
        node, found = self._nodes[number], {}
        with os.scandir(path) as entries:
            for entry in entries:
                try:
                    found[entry.name] = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
        for name in node.names.keys() - found.keys():
            self._change((number, name, None))
        for name, about in sorted(found.items()):
            child = self._by_inode.get(about.st_ino)
            if child is None or self._nodes[child].is_folder != stat.S_ISDIR(about.st_mode):
                child = self._by_inode[about.st_ino] = len(self._nodes)
                self._nodes[child] = _Node(stat.S_ISDIR(about.st_mode))
            if node.names.get(name) != child:
                self._change((number, name, child))
            if stat.S_ISDIR(about.st_mode):
                self._look(child, path / name)
            elif stat.S_ISREG(about.st_mode):
                self._read(self._nodes[child], path / name, about)

    def _read(self, node: _Node, path: Path, about: os.stat_result) -> None:
        *seen, when = node.seen
        if seen != [about.st_mtime_ns, about.st_size] or when - about.st_mtime_ns < _FINE_NS:
            node.seen = about.st_mtime_ns, about.st_size, time.time_ns()
            node.now = Content.read(path, self._known)


def _apply(effects: tuple[Effect, ...], names: dict[int, dict[str, int]]) -> None:
    for folder, name, number in effects:
        if number is None:
            names[folder].pop(name, None)
        else:
            names[folder][name] = number


WAYS = ("nothing", "everything", "names", "zeros", "contents", "beginnings", "mix", "mix", "mix")
"""What of that which was not flushed is there after a crash."""


def left_by(moment: Moment, way: str, chance: random.Random) -> Tree:
    """A tree that a crash at this moment may leave."""
    names = {number: dict(each) for number, each in moment.names.items()}
    pending = list(moment.pending)
    if way in ("nothing", "contents"):
        pending = []
    elif way == "beginnings":
        pending = pending[: chance.randint(0, len(pending))]
    elif way == "mix":
        pending = [each for each in pending if chance.random() < 0.5]
    for effects in pending:
        _apply(effects, names)
    return dict(_tree(moment, names, 0, "", way, chance))


def _tree(moment: Moment, names, number: int, path: str, way: str, chance: random.Random) -> Iterator:
    for name, child in sorted(names[number].items()):
        both = moment.contents[child]
        yield path + name, None if both is None else _left(*both, way, chance)
        if both is None:
            yield from _tree(moment, names, child, f"{path}{name}/", way, chance)


def _left(flushed: Content | None, now: Content, way: str, chance: random.Random) -> Content:
    """What is left of a file."""
    if way == "mix":
        way = chance.choice(("nothing", "everything", "zeros", "beginnings", "blocks"))
    before = flushed or EMPTY
    if before == now or way in ("everything", "contents"):
        return now
    if way in ("nothing", "names"):
        return before
    size = max(before.size, now.size)
    if way == "beginnings" and before.size < now.size:
        size = chance.randint(before.size, now.size)
    old, new = (each.blocks + (b"",) * (-(-size // BLOCK) - len(each.blocks)) for each in (before, now))
    blocks = [b if way == "beginnings" or (way == "blocks" and chance.random() < 0.5) else a
              for a, b in zip(old, new, strict=False)]  # fmt: skip
    return _cut(blocks, size)


def _cut(blocks: list[bytes], size: int) -> Content:
    """A last block that is shorter ends in nothing but its own bytes."""
    blocks = blocks[: -(-size // BLOCK)]
    whole = [block.ljust(BLOCK, b"\0") if block and len(block) < BLOCK else block for block in blocks]
    if whole and size % BLOCK and whole[-1]:
        whole[-1] = whole[-1][: size % BLOCK]
    return Content(size, tuple(b"" if not block.strip(b"\0") else block for block in whole))


def lay(tree: Tree, folder: Path) -> None:
    """Makes a folder what the tree says."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for path, content in tree.items():
        if content is None:
            (folder / path).mkdir()
        else:
            content.write(folder / path)
