"""Another number of trainers in the middle of a run on one machine (`marius-oac scale`), with the bits of a run that
never changed.

The first process watches the run's folder for a request. It starts the processes that are to join, which import
everything while the run goes on. When they are ready, or some are to leave, it has all trainers pause at a batch
boundary, as a request to stop does (`Shard`). There the present trainers hold a checkpoint in their memory
(`runs.sharded.in_memory`), or save it where it can't lie there. Those that stay and those that join go on from it as a
group of the new size; those that leave end when it has been read.

Guarantees:
- The others are told of a change at a boundary that all reach, so all make it or none.
- While processes hold what the others are to read, a request to stop waits until these have read it; a second one does
  not. The new group then stops, and saves a checkpoint.
- A process that can't start changes nothing: the run goes on as it was, and the request is answered with the reason.
- One thread, in the first process alone, from the first `serve` to `__exit__`. Processes that have joined end with it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from marius_oac.config.cluster import START_VARIABLE
from marius_oac.errors import InputError
from marius_oac.nodes.groups.torch_group import await_release, release
from marius_oac.nodes.launch.cluster import Place
from marius_oac.nodes.launch.frozen import frozen_end
from marius_oac.nodes.launch.joining import Joining, started_as
from marius_oac.nodes.launch.launch import local_cluster
from marius_oac.nodes.launch.parent import PARENT
from marius_oac.runs.loop import TrainingLoop
from marius_oac.runs.sharded.in_memory import Held
from marius_oac.runs.sharded.scaling import (
    Change,
    Request,
    TrainersChange,
    read_request,
    remove_files,
    remove_request,
    write_state,
)
from marius_oac.runs.task import Peers
from marius_oac.runtime.console import logger
from marius_oac.runtime.machine.peer_memory import readable
from marius_oac.runtime.signals import stop_on_interrupt
from marius_oac.runtime.workers import join
from marius_oac.types import present

Result = TypeVar("Result")
_LOOK = 0.2  # seconds between two looks at the folder


class Scaling:
    """A process's part in changes of the number of trainers.

    Args:
        place: this process's.

    Attributes:
        place: as it is since the last change.
        held: this process's part of what the run goes on from; None: that lies on disk, or nothing was changed.
    """

    def __init__(self, place: Place):
        self.place = place
        local = PARENT in os.environ and START_VARIABLE in os.environ and place.cluster == local_cluster(place.size)
        self._possible, self._began, self._changes = local, os.environ.get(START_VARIABLE, ""), 0
        self._run: Path | None = None
        self._most, self._against = 0, ""
        self._request: Request | None = None  # that is being made true
        self._decided: Change | None = None
        self.held: Held | None = None
        self._signals, self._stop_asked = ExitStack(), False
        self._pause: Callable[[], object] = lambda: None
        self._changed = threading.Condition()
        self._over = False
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None

    def serve(self, run: Path, loop: TrainingLoop) -> None:
        """Called by every process before its loop runs, from where its position says, when it has read what it goes on
        from. Collective."""
        parts = loop.config.nodes.parts
        if not self._possible or parts is None:
            return
        loop.change = partial(self._wanted, loop.peers)
        self._release(loop)
        if self.place.rank:
            return
        count, batch = self.place.size, loop.position.batch_index
        answered = self._request
        said = f"{count} trainer{'s' * (count > 1)} from batch {batch:,} on"
        if self._thread is None:
            remove_files(run)  # those of a run that was killed
        if loop.config.training.early_stopping:
            self._against = "a run with training.early_stopping keeps its trainers: what was best is theirs"
        with self._changed:
            self._run, self._most, self._pause = run, parts, loop.session.pipeline.request_pause
            self._request = self._decided = None
            write_state(run, count, parts, answered.token if answered else "", said)
            if answered:
                remove_request(run, answered.token)
            self._changed.notify_all()
        if answered:
            logger.info(said)
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="scaling")
            self._thread.start()

    def _wanted(self, peers: Peers) -> Change | None:
        """See `TrainingLoop.change`."""
        if self._error is not None:
            raise self._error
        with self._changed:
            decided = self._decided
        said = peers.gather(decided and asdict(decided))[0]
        return said and Change(**said)

    def changed(self, change: Change, held: Held | None) -> bool:
        """Makes this process one of the new group; returns whether it stays. One that leaves waits until the others
        have read what it holds."""
        leaves = self.place.rank >= change.trainers
        if held is not None:
            self._signals.enter_context(stop_on_interrupt(self._note_stop))
            if leaves:
                await_release(change.start, self.place.cluster.timeout)
        if leaves:
            return False
        self.held = held
        os.environ.update(started_as(change.trainers, change.start))
        cluster = local_cluster(change.trainers)
        self.place = replace(self.place, cluster=cluster, node=cluster.nodes[self.place.rank])
        return True

    def _note_stop(self) -> None:
        self._stop_asked = True

    def _release(self, loop: TrainingLoop) -> None:
        """Frees what this process holds, and lets those that leave end, when all have read it."""
        held, self.held = self.held, None
        if loop.peers.any(held is not None):  # all have come here, and so have read
            if held is not None:
                held.close()
            if loop.peers.leads:
                release(os.environ[START_VARIABLE], self.place.cluster.timeout)
        self._signals.close()
        if self._stop_asked:
            loop.session.pipeline.request_stop()

    def _watch(self) -> None:
        joining = Joining(present(self._run))
        try:
            while not self._wait(lambda: False):
                request = read_request(present(self._run))
                if request is not None:
                    self._make_true(request, joining)
        except BaseException as error:  # raised by the loop
            self._error = error
            self._pause()
        finally:
            joining.close(self.place.size)

    def _make_true(self, request: Request, joining: Joining) -> None:
        count, before = request.trainers, self.place.size
        if self._against or not 1 <= count <= self._most:
            self._refuse(request, self._against or f"1 to {self._most} trainers, as nodes.parts says, not {count}")
            return
        if count == before:
            self._refuse(request, f"{count} are training", failed=False)
            return
        self._changes += 1
        start = f"{self._began}, change {self._changes}"
        try:
            with readable():
                joining.start(range(before, count), count, start)
                with frozen_end(joining.late, self.place.cluster.timeout):  # one that is killed is found by `wait`
                    while not joining.wait(_LOOK):
                        if self._over:
                            return
        except (OSError, InputError) as error:
            self._refuse(request, str(error))
            return
        with self._changed:
            self._request, self._decided = request, Change(count, start, max(0, count - before), joining.reads)
        self._pause()
        self._wait(lambda: self._request is None, None)
        joining.left(count)

    def _refuse(self, request: Request, said: str, failed: bool = True) -> None:
        write_state(present(self._run), self.place.size, self._most, request.token, said, failed)
        remove_request(present(self._run), request.token)

    def _wait(self, done: Callable[[], bool], seconds: float | None = _LOOK) -> bool:
        """Waits until something is done, or the run over, or so long; returns whether the run is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._over or done(), seconds)
            return self._over

    def __enter__(self) -> Scaling:
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._over = True
            self._changed.notify_all()
        self._signals.close()
        if self._thread is not None:
            join(self._thread)
            remove_files(present(self._run))


def with_changes(
    place: Place, first: Callable[[Place, Scaling], Result | None], again: Callable[[Place, Scaling], Result | None]
) -> Result | None:
    """Trains by `first`, and after each change by `again`; returns what the last of them does, or None if this process
    has left."""
    with Scaling(place) as scaling:
        work = first
        while True:
            try:
                return work(scaling.place, scaling)
            except TrainersChange as said:
                if not scaling.changed(said.change, said.held):
                    return None
                work = again
