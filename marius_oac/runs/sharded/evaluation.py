"""The trainers of a group share an evaluation (`evaluation.sharing`), in *rounds*.

In a round every member says what it is doing. Trainers come to one once a second, between two pieces of work, and again
and again when they wait for the others. Members that only serve rows come to each round, and do nothing else.

Guarantees:
- All members take part in the same collective calls, however long each works. `evaluate` ends in the same round for
  all.
- A signal on any trainer stops its work at once. In the next round all members hear of it and raise StopSignal.
- An InputError or another error of the user's model on one trainer is raised on all, in the next round.
- Signals wait while a round or a transfer is under way, so that no collective call is left half done.
- Memory that the others copy stays unchanged until all have copied it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from itertools import pairwise
from typing import Any, BinaryIO

import numpy as np
import torch

from marius_oac.errors import InputError, MariusOacError, NodeLost
from marius_oac.evaluation.sharing import Sharing
from marius_oac.nodes.groups.contract import Group
from marius_oac.runtime.machine.peer_memory import Nonce, PeerMemory, readable
from marius_oac.runtime.signals import StopSignal, put_off, signal_heard, stop_asked, stopped_at_once
from marius_oac.types import present

ROUND_SECONDS = 1.0
PIECE_BYTES = 4 << 20  # that are sent at once
_NONCE_BYTES = 16
Read = Callable[[int, np.ndarray], object]
"""Fills an array, uint8 [n], with the bytes from a place on."""
Write = Callable[[int, int, np.ndarray], object]
"""Takes bytes, uint8 [n]: of which trainer, and from which place of its bytes on."""
_WORKS, _SERVES, _GIVES, _DONE = "works", "serves", "gives", "done"
_SHOWS, _COPIES, _COPIED = "shows", "copies", "copied"
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

    def completed(self, rows: np.ndarray, starts: list[int], copied: Callable[[], object]) -> None:
        """See `Sharing.completed`. Trainers of one machine copy the rows from each other's memory, if they may."""
        every = [rows[first:end].reshape(-1).view(np.uint8) for first, end in pairwise(starts)]
        with readable():
            with put_off():
                content = np.frombuffer(os.urandom(_NONCE_BYTES), np.uint8)
                shown = self._until_all(_SHOWS, [asdict(Nonce.of(content)), asdict(PeerMemory.of(every[self.rank]))])
                near = all(Nonce(**nonce).seen() for nonce, _ in shown)
                said = self._until_all(_COPIES, [len(every[self.rank]), near])
                if not all(near for _, near in said):
                    self._exchange(every, [size for size, _ in said], copied)
                    return
            for sender, (_, memory) in enumerate(shown):
                if sender != self.rank:
                    self._copy(PeerMemory(**memory), every[sender], copied)
            with put_off():
                self._until_all(_COPIED, None)  # until then all keep what the others copy

    def _copy(self, memory: PeerMemory, into: np.ndarray, copied: Callable[[], object]) -> None:
        for first in range(0, len(into), PIECE_BYTES):
            try:
                memory.read(first, into[first : first + PIECE_BYTES])
            except (OSError, NodeLost):
                with put_off():
                    self._round(_WORKS)  # raises what has become of the other trainer
                raise
            copied()
            self.turn()

    def _exchange(self, every: Sequence[np.ndarray], sizes: Sequence[int], copied: Callable[[], object]) -> None:
        """Sends each trainer's rows to all others."""

        def read(first: int, piece: np.ndarray) -> None:
            piece[:] = every[self.rank][first : first + len(piece)]
            copied()

        def write(sender: int, first: int, piece: np.ndarray) -> None:
            every[sender][first : first + len(piece)] = piece
            copied()

        self._transfer([*enumerate(sizes)], read, write)

    def _serve(self) -> Any:
        while True:
            said = self._round(_SERVES)
            kinds = {said[rank][0] for rank in self._trainers}
            if kinds == {_DONE}:
                return said[0][1]
            values = [said[rank][1] for rank in self._trainers]
            if kinds == {_GIVES}:
                self._transfer([*enumerate(values)][1:], None, None)
            elif kinds == {_COPIES} and not all(near for _, near in values):
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


@contextmanager
def _noted(problems: list[OSError]) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        problems.append(error)


def _error(kind: str, said: str, name: str) -> MariusOacError:
    return InputError(said, f"node {name}") if kind == _WRONG else MariusOacError(f"node {name}: {said}")
