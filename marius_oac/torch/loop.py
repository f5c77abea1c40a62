"""One loop over a loader: draws its batches ahead, runs the pipeline beside it, and ends in every way there is.

The user's thread draws from the loader. It takes the first batches through the pipeline's stages itself (`alone`).
Where their steps, and what the engine does for a batch, turn out to take long enough, the pipeline runs on threads of
its own from then on (`beside`), started after the loader's iterator was made, since that may fork processes. However a
loop ends (the loader's last batch, `break`, an error, Ctrl-C, the interpreter's exit), it drains: batches that were
handed back are written, those that the user never got change no row. Only an error of a stage aborts, and with that the
engine is of no more use.

While gradients wait for a step (`unstepped`), one batch at a time is fed to the pipeline. What was fed ahead when they
were left passes without a change, and is fed again.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch

from marius_oac.config.sections import PipelineConfig
from marius_oac.errors import InputError, NodeLost
from marius_oac.pipeline.stages import BatchResult
from marius_oac.runtime.channel import Channel, Closed
from marius_oac.runtime.telemetry import NoTelemetry
from marius_oac.torch.alone import Alone
from marius_oac.torch.beside import Beside
from marius_oac.torch.drawing import Position
from marius_oac.torch.hand_over import HandOver
from marius_oac.torch.home import Home
from marius_oac.torch.pipeline import LoopPipeline, OpenBatch
from marius_oac.torch.planner import Fed
from marius_oac.torch.supply import Keys, Supply
from marius_oac.torch.unstepped import Unstepped

AHEAD = 2
"""Batches that the loader is ahead at least, beside those in flight, where there are threads. At most it is as many
more as are in flight: the change between the user's generators and the loader's takes longer than much else, so some
batches are drawn at once."""
SAMPLE, WORTH = 4, 5e-4
"""Threads take over after so many batches of which each one's step, and each one's stages, took so many seconds: below,
handing them from thread to thread takes longer than doing both at once saves."""
_NO_LAST = 1 << 40


class Loop:
    """A loop in the user's thread.

    Args:
        config: mode and batches in flight.
        unstepped: gradients that batches leave.
        home, first, fed, loader, accumulate, resumed, pad: of `Supply`.

    Attributes:
        handed_back: how many batches of the pipeline the user has handed back.
        lost: rows of other batches that a batch has overwritten without having read them; see `Engine.lost`.
    """

    def __init__(
        self, home: Home, config: PipelineConfig, first: int, fed: Keys, unstepped: Unstepped, loader: Iterable[Any],
        accumulate: int = 1, resumed: Position | None = None, pad: bool = False,
    ):  # fmt: skip
        self._home, self._config, self._unstepped, self._pid = home, config, unstepped, os.getpid()
        self._in_flight, self._first = config.room, first
        self._supply = Supply(home, first, fed, loader, accumulate, resumed, pad)
        self._held: deque[Fed] = deque()  # batches that were drawn and not fed
        self._ahead: deque[Fed] = deque()  # those that were fed and are not with the user yet
        self._one_by_one = unstepped.waits
        self._back = self._trained = self._supply.drawn  # batches of the pass, all and those before any that waits
        self._at_hand: OpenBatch | None = None
        self.handed_back, self.lost = 0, 0
        self._always = self._lay(first) or home.waits or config.mode == "async"
        self._threads = True if self._always else None if config.mode == "oac" else False  # None: not known yet
        self._seconds: deque[float] = deque(maxlen=SAMPLE)
        self._owner = threading.current_thread()

    def _lay(self, first: int) -> bool:
        """Makes the pipeline of the batches from `first` on. Returns whether it needs threads."""
        feed: Channel[Fed] = Channel("feed", 2 * self._in_flight + AHEAD)
        hand_over: HandOver[OpenBatch] = HandOver()
        source, step = self._home.source(self._config.mode, self._stop), self._home.step(hand_over)
        self._pipeline = LoopPipeline(
            self._home.planner(feed), source, step, self._config, torch.device("cpu"), NoTelemetry(), self._on_result
        )
        self._feed, self._hand_over = feed, hand_over
        self._way: Alone | Beside = Alone(self._pipeline, step, first, _NO_LAST)
        return bool(source.look_ahead)

    @property
    def next_batch(self) -> int:
        """The number after that of the last batch that was drawn."""
        return self._supply.next

    @property
    def first_untrained(self) -> int:
        """The number after that of the last batch that was handed back."""
        return self._first + self.handed_back

    def position(self, waiting: bool) -> Position:
        """Where the pass over the loader is after the batches that were handed back; without the last ones, whose
        gradients were left, if they are still `waiting` for a step."""
        return self._supply.position(self._trained if waiting else self._back, self.first_untrained)

    def _start_threads(self) -> None:
        """Starts the pipeline's threads, if it is time for them. No batch may be with the user."""
        way = self._way
        if isinstance(way, Alone) and way.error is None and self._pay():
            self._way = beside = Beside(self._pipeline, self._feed, self._hand_over, way.next, _NO_LAST)
            beside.start()

    def _pay(self) -> bool:
        """Whether threads gain more than they cost."""
        if self._one_by_one and not self._always:
            return False
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
            batch = self._take()
            if batch is None:
                break
            given = time.perf_counter()
            yield batch
            back = time.perf_counter()
            self.give_back()
            self._seconds.append(min(back - given, time.perf_counter() - back + given - begun))
        try:
            self.end()
        except NodeLost:
            if self._supply.error is None:
                raise  # else all processes have been told of the end, and another one was the first to leave
        if self._supply.error is not None:
            raise self._supply.error

    def _take(self) -> OpenBatch | None:
        batch = self._way.take()
        if batch is not None:
            self._at_hand = batch
            self._ahead.popleft()
        return batch

    def give_back(self) -> None:
        """Hands the batch that the user has back, if there is one."""
        batch = self._at_hand
        if batch is not None:
            for rows in batch.rows:
                rows.close()
            self._count(batch)
            self._supply.done(self._trained)
            self._way.give_back()
            self._at_hand = None
            self._hold_back(any(rows.added_up for rows in batch.rows))

    def _count(self, batch: OpenBatch) -> None:
        # Right also where Ctrl-C has it called twice.
        self.handed_back = batch.fed.batch_index + 1 - self._first
        self._back = batch.fed.until
        if not self._unstepped.waits:
            self._trained = self._back

    def _hold_back(self, added_up: bool) -> None:
        """Feeds one batch at a time from now on, if the last one has left gradients that wait for a step. `added_up`:
        it has used such gradients, so others will be left."""
        self._one_by_one = self._unstepped.waits or (self._one_by_one and added_up)
        if self._one_by_one and self._ahead:
            self._way.end()
            self._lay(self.first_untrained)
            self._held.extendleft(reversed(self._ahead))
            self._ahead.clear()

    def _draw(self) -> None:
        """Draws batches until the loader is far enough ahead, or at its end, and feeds them to the pipeline."""
        given, supply = self.first_untrained, self._supply
        least = given + 1 if isinstance(self._way, Alone) else given + self._in_flight + AHEAD
        while not supply.over and supply.next < least:
            self._held += supply.draw(given + 2 * self._in_flight + AHEAD - supply.next)
        one = self._one_by_one or isinstance(self._way, Alone)
        try:
            while self._held and not (one and self._ahead):
                self._put(self._held.popleft())
        except Closed:  # the pipeline has failed, and says why when it is joined
            return
        if supply.over and not self._held:
            self._feed.close()

    def _put(self, unit: Fed) -> None:
        self._feed.put(self._unstepped.with_rows(unit))
        self._ahead.append(unit)

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
                self._feed.close()
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

    def __init__(self, home: Home, config: PipelineConfig, first: int, fed: Keys, unstepped: Unstepped):
        super().__init__(home, config, first, fed, unstepped, ())
        self._supply.draw(1)  # which finds that there are none
        self._threads = bool(self._threads)  # nothing is ahead of a batch that they could work on meanwhile

    def position(self, waiting: bool) -> Position:
        """That of a pass that is at its end."""
        return replace(super().position(waiting), finished=True)

    def exchange(self, batch: Any) -> OpenBatch | None:
        """The batch with its rows, which is to be given back; None: the pipeline has failed."""
        self._owner = threading.current_thread()
        self._start_threads()
        try:
            self._put(self._supply.given(batch))
        except Closed:
            return None
        return self._take()
