"""The trainers of a group share an evaluation (`evaluation.sharing`), in *rounds*.

In a round every member says what it is doing. Trainers come to one once a second, between two pieces of work, and again
and again when they wait for the others. Members that only serve rows come to each round, and do nothing else.

Guarantees:
- All members take part in the same collective calls, however long each works. `evaluate` ends in the same round for
  all.
- A signal on any trainer stops its work at once. In the next round all members hear of it and raise StopSignal.
- An InputError or another error of the user's model on one trainer is raised on all, in the next round.
- Signals wait while a round or a transfer is under way, so that no collective call is left half done.
- Trainers of one machine fill one file together, and have all of it once all have filled their parts.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

from marius_oac.errors import InputError, MariusOacError, NodeLost
from marius_oac.evaluation.sharing import Sharing
from marius_oac.nodes.groups.contract import Group
from marius_oac.runtime.files.npy import mapped_again, mapped_npy
from marius_oac.runtime.machine.peer_files import Nonce, PeerFile
from marius_oac.runtime.signals import StopSignal, put_off, signal_heard, stop_asked, stopped_at_once
from marius_oac.types import present

ROUND_SECONDS = 1.0
PIECE_BYTES = 4 << 20  # that are sent at once
Read = Callable[[int, np.ndarray], object]
"""Fills an array, uint8 [n], with the bytes from a place on."""
Write = Callable[[int, int, np.ndarray], object]
"""Takes bytes, uint8 [n]: of which trainer, and from which place of its bytes on."""
_WORKS, _SERVES, _GIVES, _DONE = "works", "serves", "gives", "done"
_SHOWS, _SEES, _LENDS, _MADE, _HAS = "shows", "sees", "lends", "made", "has"
_STOPPED, _WRONG, _FAILED = "stopped", "wrong", "failed"


class SharedEvaluation(Sharing):
    """One evaluation by all trainers of a group.

    Args:
        group: has all processes. trains: which of them train, by rank; the first does.
        round_seconds: between two rounds while a trainer works.
    """

    def __init__(self, group: Group, trains: Sequence[bool], round_seconds: float = ROUND_SECONDS):
        self._group, self._round_seconds = group, round_seconds
        self._trainers = [rank for rank, each in enumerate(trains) if each]
        self._trains = trains[group.rank]
        self.rank, self.count = sum(trains[: group.rank]), len(self._trainers)
        self._next = time.monotonic() + round_seconds
        self._all_know = False
        """Whether an error was heard in a round."""
        self._firsts: list[int] = []
        self._lent = ExitStack()
        """Closes the files that others open."""

    def evaluate(self, make: Callable[[Sharing], Any]) -> Any:
        """Returns what `make` returns on the leading process, a plain value. Collective.

        Raises:
            StopSignal, MariusOacError: see the module.
        """
        if not self._trains:
            return self._serve()
        try:
            with stopped_at_once():
                made = make(self)
            return self._until_all(_DONE, made if self.rank == 0 else None)[0]
        except BaseException as error:
            self._tell(error)
            raise
        finally:
            self._lent.close()

    def turn(self) -> None:
        """See `Sharing.turn`."""
        if time.monotonic() >= self._next:
            with put_off():
                self._round(_WORKS)

    def collected(self, mine: BinaryIO, size: int) -> BinaryIO:
        """See `Sharing.collected`."""
        with put_off():
            sizes = self._until_all(_GIVES, mine.seek(0, 2))
            if self.rank:
                self._transfer([*enumerate(sizes)][1:], lambda first, piece: _read(mine, first, piece), None)
            else:
                mine.seek(0, 2)
                self._transfer([*enumerate(sizes)][1:], None, lambda sender, first, piece: mine.write(piece))
            if sum(sizes) != size:  # members that only serve do not know it
                raise MariusOacError(f"the processes have found {sum(sizes):,} bytes to evaluate, not {size:,}")
            mine.seek(0)
        return mine

    def mapped(self, path: Path, shape: tuple[int, int]) -> np.ndarray:
        """See `Sharing.mapped`."""
        self._firsts = self._firsts or self._first_of_each_machine(path.parent)
        first, own, mine = self._firsts[self.rank], None, None
        if first == self.rank:
            own = mapped_npy(path, shape, np.float32)
            mine = asdict(PeerFile.of(self._lent.enter_context(open(path, "rb"))))  # noqa: SIM115
        with put_off():
            shared = self._until_all(_LENDS, mine)[first]
        if own is not None:
            return own
        try:
            with PeerFile(**shared).open("r+b", path.name) as file:
                return mapped_again(file, shape, np.float32)
        except OSError:
            with put_off():
                self._round(_WORKS)  # raises what has become of its owner
            raise

    def _first_of_each_machine(self, folder: Path) -> list[int]:
        """The first trainer of each one's machine: of those whose files it can open. If not all trainers of a machine
        find the same one, as where a container can see into another, each counts as a machine."""
        with tempfile.TemporaryFile(buffering=0, dir=folder) as file, put_off():
            shown = [Nonce(**each) for each in self._until_all(_SHOWS, asdict(Nonce.written_to(file)))]
            first = next(rank for rank, each in enumerate(shown) if rank == self.rank or each.seen())
            firsts = self._until_all(_SEES, first)
        return firsts if all(firsts[first] == first for first in firsts) else [*range(self.count)]

    def completed(self, rows: np.ndarray, starts: list[int], dropped: Callable[[], object]) -> None:
        """See `Sharing.completed`."""
        every = [rows[first:end].reshape(-1).view(np.uint8) for first, end in pairwise(starts)]
        with put_off():
            said = self._until_all(_MADE, [len(every[self.rank]), self._firsts[self.rank]])
            self._lent.close()  # all have what they share
            if _is_sent(said):
                self._exchange(every, [size for size, _ in said], dropped)
                self._until_all(_HAS, None)

    def _exchange(self, every: Sequence[np.ndarray], sizes: Sequence[int], dropped: Callable[[], object]) -> None:
        """Sends each trainer's rows to all machines; the first trainer of a machine takes them in."""

        def read(first: int, piece: np.ndarray) -> None:
            piece[:] = every[self.rank][first : first + len(piece)]
            dropped()

        def write(sender: int, first: int, piece: np.ndarray) -> None:
            if self._firsts[sender] != self.rank:
                every[sender][first : first + len(piece)] = piece
                dropped()

        self._transfer([*enumerate(sizes)], read, write if self._firsts[self.rank] == self.rank else None)

    def _serve(self) -> Any:
        while True:
            said = self._round(_SERVES)
            kinds = {said[rank][0] for rank in self._trainers}
            if kinds == {_DONE}:
                return said[0][1]
            values = [said[rank][1] for rank in self._trainers]
            if kinds == {_GIVES}:
                self._transfer([*enumerate(values)][1:], None, None)
            elif kinds == {_MADE} and _is_sent(values):
                self._transfer([*enumerate(size for size, _ in values)], None, None)

    def _until_all(self, kind: str, value: Any) -> list[Any]:
        """Returns each trainer's value once all of them say this kind."""
        while True:
            said = [each for rank, each in enumerate(self._round(kind, value)) if rank in self._trainers]
            if all(each == kind for each, _ in said):
                return [value for _, value in said]
            if (signal := stop_asked()) is not None:
                raise StopSignal(signal)

    def _round(self, kind: str, value: Any = None) -> list[tuple[str, Any]]:
        every = [(kind, value) for kind, value in self._group.gather([kind, value])]
        self._next = time.monotonic() + self._round_seconds
        for name, (kind, value) in zip(self._group.names, every, strict=True):
            if kind in (_STOPPED, _WRONG, _FAILED):
                self._all_know = True
                raise StopSignal(value) if kind == _STOPPED else _error(kind, value, name)
        return every

    def _tell(self, error: BaseException) -> None:
        """Tells the others that this trainer can't go on, unless all know or are gone."""
        if self._all_know:
            return
        signal = signal_heard(error)
        if signal is not None:
            self._round(_STOPPED, signal)
        if isinstance(error, MariusOacError) and not isinstance(error, NodeLost):
            kind = _WRONG if isinstance(error, InputError) else _FAILED
            try:
                self._round(kind, str(error))
            except MariusOacError:
                raise error from None

    def _transfer(self, senders: Sequence[tuple[int, int]], read: Read | None, write: Write | None) -> None:
        """Sends the bytes of each sender to all processes. An error of the disk is raised when all are sent.

        Args:
            senders: numbers of trainers, and how many bytes each sends.
            read: gives this process's own bytes. write: takes those of others; None: they are not needed here.
        """
        problems: list[OSError] = []
        for sender, size in senders:
            mine = self._trains and sender == self.rank
            for first in range(0, size, PIECE_BYTES):
                piece = torch.zeros(min(PIECE_BYTES, size - first), dtype=torch.uint8)
                with _noted(problems):
                    if mine:
                        present(read)(first, piece.numpy())
                self._group.broadcast(piece, self._trainers[sender])
                with _noted(problems):
                    if write is not None and not mine:
                        write(sender, first, piece.numpy())
        if problems:
            raise problems[0]


def _read(file: BinaryIO, first: int, piece: np.ndarray) -> None:
    """Fills `piece`, uint8 [n], from the place `first` of a file, as far as it goes."""
    file.seek(first)
    found = file.read(len(piece))
    piece[: len(found)] = np.frombuffer(found, np.uint8)


def _is_sent(made: Sequence[tuple[int, int]]) -> bool:
    """Whether rows go to other machines; of each trainer: bytes, and the first trainer of its machine."""
    return len({first for _, first in made}) > 1


@contextmanager
def _noted(problems: list[OSError]) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        problems.append(error)


def _error(kind: str, said: str, name: str) -> MariusOacError:
    return InputError(said, f"node {name}") if kind == _WRONG else MariusOacError(f"node {name}: {said}")
