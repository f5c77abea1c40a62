"""Flipped bits, and files that were cut, emptied or removed: `python -m tests.chaos flips`.

Each case harms one file of a small run, graph or log and calls one command. It must end in exit code 2 and name the
file, or the folder that is nothing without it; or with the very results that it has without the harm. Where it refuses,
no checkpoint may be gone. `verify` must find the harm of every file that it does not call unchecked.
"""

import itertools
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.children import Case, Said, call
from tests.chaos.small_runs import make_all, must
from tests.run_folders import contents, outcome

MORE = ("--set", "training.epochs=2")


def _bit(place: Callable[[int], int]) -> Callable[[Path], None]:
    def harm(path: Path) -> None:
        text = bytearray(path.read_bytes())
        text[place(len(text))] ^= 1
        path.write_bytes(text)

    return harm


HARMS: dict[str, Callable[[Path], None]] = {
    "first byte": _bit(lambda size: 0),
    "middle byte": _bit(lambda size: size // 2),
    "last byte": _bit(lambda size: size - 1),
    "cut by one": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "emptied": lambda path: path.write_bytes(b""),
    "removed": lambda path: path.unlink(),
}


@dataclass(frozen=True)
class Specimen:
    """What is harmed, `HERE` standing for the folder of all, and `OUT` for a new path in HERE/held.

    Attributes:
        before: commands that make it.
        harmed: files and folders.
        commands: that are called.
    """

    before: tuple[tuple[str, ...], ...]
    harmed: tuple[str, ...]
    commands: tuple[tuple[str, ...], ...]


_RUN, _DATA = "HERE/held/run", "HERE/day_1.parquet"
_READ = (("resume", _RUN, *MORE), ("resume", _RUN), ("eval", _RUN), ("verify", _RUN),
         ("export", _RUN, "--format", "npy", "--out", "OUT"))  # fmt: skip
_ANSWER = ("predict", _RUN, "--head", "1", "--relation", "0", "--filtered")
_CLICKS = ("predict", _RUN, "--data", _DATA, "--out", "OUT.csv")


def _train(name: str, *more: str) -> tuple[str, ...]:
    return ("train", f"HERE/{name}.yaml", "--out", _RUN, *more)


SPECIMENS = {
    "memory": Specimen((_train("memory"),), ("held",), (*_READ, _ANSWER)),
    "disk": Specimen((_train("disk"),), ("held",), (*_READ, _ANSWER)),
    "clicks": Specimen((_train("clicks"),), ("held",), (*_READ, _CLICKS)),
    "arrival": Specimen(
        (_train("memory", "--set", "pipeline.order=arrival"),), ("held",), (_READ[1], *_READ[2:], _ANSWER)
    ),
    "nodes": Specimen((), ("held",), (*_READ[2:], _ANSWER)),
    "graph": Specimen((_train("memory"),), ("graph",), (_READ[0], _READ[2], _ANSWER, _train("memory")[:3] + ("OUT",))),
    "log": Specimen((_train("clicks"),), ("day_0.parquet", "day_1.parquet"), (_READ[0], _READ[2], _CLICKS)),
}
MAY_BE_ABSENT = ("summary.json", "best.json", "saved.json")
"""In a run that has not ended, that has not been evaluated, that has lost its record of what was saved."""
UNCHECKED_BY_VERIFY = (".lock", ".owner", "owner.json")


class _Made:
    """A specimen, and cases of it."""

    def __init__(self, name: str, here: Path, folder: Path):
        self.name, self.specimen, self.here, self.held = name, SPECIMENS[name], here, here / "held"
        shutil.rmtree(self.held)
        self.held.mkdir()
        for argv in self.specimen.before:
            must(*self._words(argv))
        if name == "nodes":
            _train_on_nodes(here)
        self._aside = folder / f"{name}-aside"
        for part in ("held", "graph"):
            shutil.copytree(here / part, self._aside / part)
        for day in here.glob("*.parquet"):
            shutil.copy2(day, self._aside / day.name)
        self._whole = {
            argv: self._result(argv, call(*self._words(argv)), self._renew) for argv in self.specimen.commands
        }
        for argv, (code, *_) in self._whole.items():
            if code:
                raise RuntimeError(f"{name}: {argv} ends in {code} without any harm")

    def _words(self, argv: Sequence[str]) -> list[str]:
        return [word.replace("HERE", str(self.here)).replace("OUT", str(self.held / "out")) for word in argv]

    def _renew(self) -> None:
        for part in ("held", "graph"):
            shutil.rmtree(self.here / part)
            shutil.copytree(self._aside / part, self.here / part)
        for day in self._aside.glob("*.parquet"):
            shutil.copy2(day, self.here / day.name)

    def _files(self) -> list[Path]:
        """Relative to the folder of all."""
        found = []
        for part in self.specimen.harmed:
            path = self._aside / part
            found += [path] if path.is_file() else sorted(each for each in path.rglob("*") if each.is_file())
        return [path.relative_to(self._aside) for path in found]

    def _result(self, argv: tuple[str, ...], said: Said, then: Callable[[], None] = lambda: None) -> tuple:
        """What a command has made and said; times left out."""
        out = [
            re.sub(r"[0-9.]+ s\b|seconds .*|[0-9,]+ bytes|[0-9,]+ files|[0-9,]+ [a-z]+/s", "", line)
            for line in said.out
        ]
        product = self.held / ("out.csv" if "OUT.csv" in argv else "out")
        made: object = None
        if argv[0] in ("train", "resume") and not said.code:
            made = outcome(product if argv[0] == "train" else self.held / "run")
        elif product.exists():
            made = contents(product) if product.is_dir() else product.read_bytes()
        then()
        return said.code, made if argv[0] in ("train", "resume") else (made, out)

    def cases(self, seed: int) -> list[Case]:
        found = []
        for path, harm, argv in itertools.product(self._files(), HARMS, self.specimen.commands):
            if (self._aside / path).stat().st_size or harm == "removed":
                change = f"{path}: {harm}; {' '.join(argv)}"
                found.append(Case(self.name, change, lambda given=(path, harm, argv): self.run(*given)))
        random.Random(f"{seed}/{self.name}").shuffle(found)
        return found

    def run(self, path: Path, harm: str, argv: tuple[str, ...]) -> tuple[list[Said], str | None]:
        self._renew()
        HARMS[harm](self.here / path)
        before = contents(self.held)
        said = call(*self._words(argv))
        return [said], said.fault or self._fault(path, argv, said, before)

    def _is_valid(self, path: Path) -> bool:
        """Whether a run may look like this, too."""
        harmed = self.here / path
        if not harmed.exists():
            return path.name in MAY_BE_ABSENT
        plain = path.name in ("pages.json", "config.yaml")  # the end of the last line says nothing
        return plain and harmed.read_bytes() == (self._aside / path).read_bytes().strip()

    def _fault(self, path: Path, argv: tuple[str, ...], said: Said, before: dict[str, str]) -> str | None:
        if said.code == 0:
            same = self._result(argv, said) == self._whole[argv]
            if argv[0] == "verify" and not path.name.endswith(UNCHECKED_BY_VERIFY) and not self._is_valid(path):
                return "wrong: `verify` has found nothing"
            return None if same else f"lost: exit code 0, and other results: {said.out} {said.err}"
        told = "\n".join((*said.out, *said.err))
        if not any(part in told for part in {str(self.here / path), *_names(path)}):
            return f"wrong: {path} is not named: {told}"
        checkpoints = {name: digest for name, digest in before.items() if "/checkpoints/" in name}
        gone = checkpoints.items() - contents(self.held).items()
        return f"lost: refused, but gone: {sorted(gone)}" if gone else None


def _names(path: Path) -> list[str]:
    """What stands for a file in a message: its own name, or the folder that is nothing without it."""
    return [path.name, str(path.parent)]


def _train_on_nodes(here: Path) -> None:
    """By processes of their own."""
    words = ["train", here / "memory.yaml", "--out", here / "held" / "run", "--local-nodes", 2]
    subprocess.run([sys.executable, "-m", "marius_oac", *map(str, words)], check=True, capture_output=True)


def cases(folder: Path, seed: int) -> list[Case]:
    """Those of all specimens, in turns and in an order that the seed gives."""
    here = folder / "here"
    for each in (here, *folder.glob("*-aside")):
        shutil.rmtree(each, ignore_errors=True)
    make_all(here)
    found = [_Made(name, here, folder).cases(seed) for name in SPECIMENS]
    return [case for turn in itertools.zip_longest(*found) for case in turn if case]
