"""One loop over a loader: draws its batches ahead, runs the pipeline beside it, and ends in every way there is.

The user's thread draws from the loader. It takes the first batches through the pipeline's stages itself (`alone`).
Where their steps, and what the engine does for a batch, turn out to take long enough, the pipeline runs on threads of
its own from then on (`beside`), started after the loader's iterator was made, since that may fork processes. However a
loop ends (the loader's last batch, `break`, an error, Ctrl-C, the interpreter's exit), it drains: batches that were
handed back are written, those that the user never got change no row. Only an error of a stage aborts, and with that the
engine is of no more use.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from marius_oac.config.sections import PipelineConfig
from marius_oac.errors import InputError, NodeLost
from marius_oac.pipeline.stages import BatchResult
from marius_oac.runtime.channel import Channel, Closed
from marius_oac.runtime.telemetry import NoTelemetry
from marius_oac.training.own_loop.alone import Alone
from marius_oac.training.own_loop.beside import Beside
from marius_oac.training.own_loop.drawing import Pass, Position
from marius_oac.training.own_loop.hand_over import HandOver
from marius_oac.training.own_loop.home import Home
from marius_oac.training.own_loop.pipeline import LoopPipeline, OpenBatch
from marius_oac.training.own_loop.planner import Fed

AHEAD = 2
"""Batches that the loader is ahead at least, beside those in flight, where there are threads. At most it is as many
more as are in flight: the change between the user's generators and the loader's takes longer than much else, so some
batches are drawn at once."""
SAMPLE, WORTH = 4, 5e-4
"""Threads take over after so many batches of which each one's step, and each one's stages, took so many seconds: below,
handing them from thread to thread takes longer than doing both at once saves."""
_NO_LAST = 1 << 40

Keys = Callable[[int, int, Sequence[Any]], Fed]
"""Batches of the loader with their keys; by number, and by how many of the pass there are up to the last of them."""


class Loop:
    """A loop in the user's thread.

    Args:
        home: where the rows are that it trains.
        config: mode and batches in flight.
        first: number of the first batch.
        fed: finds the keys of some batches; its errors are raised when the first one's turn comes.
        accumulate: batches of the loader that are one of the pipeline, whose rows are handed back together.
        resumed: where the pass over the loader begins, if not at its first batch.
        pad: where other processes have more batches, this one's last one is there again as often.

    Attributes:
        handed_back: how many batches of the pipeline the user has handed back.
        lost: rows of other batches that a batch has overwritten without having read them; see `Engine.lost`.
    """

    def __init__(
        self, home: Home, config: PipelineConfig, first: int, fed: Keys, loader: Iterable[Any],
        accumulate: int = 1, resumed: Position | None = None, pad: bool = False,
    ):  # fmt: skip
        self._home = home
        self._fed, self._in_flight, self._first, self._pid = fed, config.room, first, os.getpid()
        self._pass, self._pad, self._ended = Pass(loader, resumed, pad), pad, False
        self._padding = home.most(self._pass.drawn) - self._pass.drawn if pad else 0  # batches of the pass
        self._padded = 0  # of those in `_drawn`, the last ones
        self._accumulate, self._drawn = accumulate, []  # type: int, list[Any]
        self._fed_until = self._trained = self._pass.drawn  # batches of the pass
        self._at_hand: OpenBatch | None = None
        self._feed: Channel[Fed] = Channel("feed", 2 * self._in_flight + AHEAD)
        self._hand_over: HandOver[OpenBatch] = HandOver()
        self._next, self.handed_back, self._closed, self.lost = first, 0, False, 0
        self._error: Exception | None = None
        source, step = home.source(config.mode, self._stop), home.step(self._hand_over)
        self._pipeline = LoopPipeline(
            home.planner(self._feed), source, step, config, torch.device("cpu"), NoTelemetry(), self._on_result
        )
        self._way: Alone | Beside = Alone(self._pipeline, step, first, _NO_LAST)
        always = source.look_ahead or home.waits or config.mode == "async"
        self._threads = True if always else None if config.mode == "oac" else False  # None: not known yet
        self._seconds: deque[float] = deque(maxlen=SAMPLE)
        self._owner = threading.current_thread()

    @property
    def next_batch(self) -> int:
        """The number after that of the last batch that was drawn."""
        return self._next

    @property
    def first_untrained(self) -> int:
        """The number after that of the last batch that was handed back."""
        return self._first + self.handed_back

    def position(self) -> Position:
        """Where the pass over the loader is after the batches that were handed back."""
        position = self._pass.position(self._trained)
        if self._pad:  # all processes' passes end together
            return replace(position, finished=self._ended and self.first_untrained == self._next)
        return position

    def _start_threads(self) -> None:
        """Starts the pipeline's threads, if it is time for them. No batch may be with the user."""
        way = self._way
        if isinstance(way, Alone) and way.error is None and self._pay():
            self._way = beside = Beside(self._pipeline, self._feed, self._hand_over, way.next, _NO_LAST)
            beside.start()

    def _pay(self) -> bool:
        """Whether threads gain more than they cost."""
        if self._threads is not None:
            return self._threads
        return len(self._seconds) == SAMPLE and min(self._seconds, default=1.0) > WORTH

    def _stop(self) -> None:
        self._feed.abort()
        self._hand_over.abort()

    def _on_result(self, result: BatchResult) -> None:
        self.lost += result.lost
        if isinstance(self._way, Beside):
            self._way.written(result)

    def wait_until_written(self) -> bool:
        """Waits until every batch that was handed back is in the store. Returns whether they are."""
        if not self._way.wait_until_written(self.first_untrained):
            return False
        self._home.wait_until_written(self.first_untrained - 1)
        return True

    def batches(self) -> Iterator[OpenBatch]:
        """Each batch in turn; asking for the next one hands the last one back. Must be followed by `end`.

        Raises:
            Exception: what the loader raised, after the batches before; or what the pipeline raised.
        """
        while True:
            if os.getpid() != self._pid:
                raise InputError("a forked process can't go on with a loop that another one has begun", "Engine")
            self._owner = threading.current_thread()
            self._start_threads()
            self._draw()
            begun = time.perf_counter()
            batch = self._way.take()
            if batch is None:
                break
            self._at_hand, given = batch, time.perf_counter()
            yield batch
            back = time.perf_counter()
            self.give_back()
            self._seconds.append(min(back - given, time.perf_counter() - back + given - begun))
        try:
            self.end()
        except NodeLost:
            if self._error is None:
                raise  # else all processes have been told of the end, and another one was the first to leave
        if self._error is not None:
            raise self._error

    def give_back(self) -> None:
        """Hands the batch that the user has back, if there is one."""
        batch = self._at_hand
        if batch is not None:
            for rows in batch.rows:
                rows.close()
            self._count(batch)
            self._pass.done(self._trained)
            self._way.give_back()
            self._at_hand = None

    def _count(self, batch: OpenBatch) -> None:
        # Right also where Ctrl-C has it called twice.
        self.handed_back, self._trained = batch.fed.batch_index + 1 - self._first, batch.fed.until

    def _draw(self) -> None:
        """Draws batches until the loader is far enough ahead, or at its end."""
        given = self._first + self.handed_back
        least = given + 1 if isinstance(self._way, Alone) else given + self._in_flight + AHEAD
        while not self._closed and self._next < least:
            try:
                batches = self._pass.draw(self._accumulate * (given + 2 * self._in_flight + AHEAD - self._next))
            except Exception as error:  # its turn comes after the batches before it
                batches, self._error = [], error
            self._error = self._error or self._pass.error
            self._drawn += batches
            padding = self._pad_drawn()
            units, ended = self._units(not (batches or padding) or self._error is not None)
            units, self._error = self._home.drawn(units, self._pass.drawn + self._padding, self._error)
            self._ended = ended and self._error is None
            try:
                for unit in units:
                    self._put(unit)
            except Closed:  # the pipeline has failed, and says why when it is joined
                return
            if ended or self._error is not None:
                self._close_feed()

    def _pad_drawn(self) -> int:
        """Repeats the last batch as often as other processes have drawn more. Returns how often."""
        if not self._pad:
            return 0
        drawn = self._pass.drawn + self._padding
        padding = self._home.most(drawn) - drawn
        if not padding or self._error is not None:
            return 0
        if not self._pass.last:
            self._error = InputError("there is no batch that could be there again as padding: the loader gave none",
                                     "Engine.batches")  # fmt: skip
            return 0
        self._drawn += self._pass.last * padding
        self._padding, self._padded = self._padding + padding, self._padded + padding
        return padding

    def _units(self, ended: bool) -> tuple[list[Fed], bool]:
        """What was drawn, as batches of the pipeline, without what is too little for one unless the loader is at its
        end; and whether that, or an error, is the end."""
        units: list[Fed] = []
        number, until = self._next, self._fed_until
        while len(self._drawn) >= self._accumulate or (self._drawn and ended):
            unit, self._drawn = self._drawn[: self._accumulate], self._drawn[self._accumulate :]
            padding = max(0, self._padded - len(self._drawn))
            self._padded -= padding
            number, until = number + 1, until + len(unit) - padding
            try:
                fed = self._fed(number - 1, until, unit)
                units.append(replace(fed, padding=padding) if padding else fed)
            except Exception as error:
                self._error = error
                return units, True
        return units, ended

    def _put(self, unit: Fed) -> None:
        self._feed.put(unit)
        self._next, self._fed_until = unit.batch_index + 1, unit.until

    def _close_feed(self) -> None:
        self._closed = True
        self._feed.close()

    def end(self) -> None:
        """Drains, and waits for the threads. May be called again.

        Raises:
            Exception: the first error of the pipeline.
            KeyboardInterrupt: it came meanwhile; the threads have ended all the same.
        """
        if os.getpid() != self._pid:
            return  # a forked child has none of the threads
        interrupt: KeyboardInterrupt | None = None
        while True:
            try:
                if self._at_hand is not None and self._at_hand.trained:
                    self._count(self._at_hand)
                self._close_feed()
                self._home.cut(self.first_untrained)
                self._way.end()
                break
            except KeyboardInterrupt as error:
                interrupt = error
        if interrupt is not None:
            raise interrupt

    def end_quietly(self) -> None:
        """`end`, without its errors: the interpreter exits. A loop in another thread goes on to its own end before."""
        owner = self._owner
        if os.getpid() != self._pid:
            return
        try:
            if owner not in (threading.main_thread(), threading.current_thread()) and not owner.daemon:
                owner.join()
            self.end()
        except BaseException:  # noqa: BLE001 - nobody is left to be told
            return


class CallLoop(Loop):
    """A loop whose batches come one at a time by calls of `exchange`, without a loader."""

    def __init__(self, home: Home, config: PipelineConfig, first: int, fed: Keys):
        super().__init__(home, config, first, fed, ())
        self._pass.draw(1)  # which finds that it has none
        self._threads = bool(self._threads)  # nothing is ahead of a batch that they could work on meanwhile

    def position(self) -> Position:
        """That of a pass that is at its end."""
        return replace(super().position(), finished=True)

    def exchange(self, batch: Any) -> OpenBatch | None:
        """The batch with its rows, which is to be given back; None: the pipeline has failed."""
        self._owner = threading.current_thread()
        self._start_threads()
        try:
            self._put(self._fed(self._next, self._fed_until + 1, [batch]))
        except Closed:
            return None
        self._at_hand = self._way.take()
        return self._at_hand
