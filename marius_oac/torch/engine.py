"""The engine in a user's own training loop."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from marius_oac.config.sections import PipelineConfig, WorkersConfig
from marius_oac.errors import DivergedError, InputError, NodeLost, shown
from marius_oac.runtime.closing import Closable
from marius_oac.torch.arguments import check_model, check_whole, folder_of, listed
from marius_oac.torch.at_hand import Rows
from marius_oac.torch.checkpoints import HalfLoaded, Moment, Parts, check_stateful
from marius_oac.torch.dense import Dense
from marius_oac.torch.drawing import Batches, Position
from marius_oac.torch.exits import end_at_exit
from marius_oac.torch.feeding import KeysOfModules, feedings
from marius_oac.torch.home import Home
from marius_oac.torch.loop import CallLoop, Loop
from marius_oac.torch.placing import Placing
from marius_oac.torch.sharing import share_of
from marius_oac.torch.unstepped import Unstepped

_MODES = ("oac", "sync", "async")
_UNEVEN = ("error", "pad")
_ONE = WorkersConfig(plan=1, read=1, upload=1, download=1, write=1)


class Engine(Closable):
    """Brings the rows of a loop's batches to its modules, and back.

    Args:
        model: with modules of `Embedding` and `EmbeddingBag` in it.
        keys: for each of these modules, or for its name in the model, which part of a batch has its keys: the name or
            place of a field, or a function of the batch.
        optimizers: those of the loop; each module is in a group of one that is of this package.
        stateful: what else a checkpoint holds: anything with `state_dict` and `load_state_dict`, such as schedulers.
        in_flight: batches between the reading of their rows and the end of their writing. Results don't depend on it.
        mode: oac; sync, one batch at a time; or async: many in flight, whose rows may be stale, as Marius had it.
        group: of torch.distributed, such as `torch.distributed.group.WORLD`: its processes share the rows, and each
            draws batches of its own. A group of one process, or None: all is in this one.

    Attributes:
        weight: that the loss of the batch at hand counts with: 1, or 0 where the batch is padding.
        model: that was given.
        tables: of the modules.
        lost: updates that the mode async has lost: rows overwritten that another batch had changed since their reading.

    Raises:
        InputError: something is missing or does not fit.
    """

    def __init__(
        self, model: nn.Module, keys: KeysOfModules, optimizers: Sequence[torch.optim.Optimizer],
        stateful: Sequence[Any] = (), in_flight: int = 8, mode: str = "oac", group: Any = None,
    ):  # fmt: skip
        if mode not in _MODES:
            raise InputError(f"mode must be one of {', '.join(_MODES)}, not {shown(mode)}", "Engine")
        check_model(model, "Engine")
        optimizers = listed(optimizers, "optimizers", "Engine")
        if isinstance(in_flight, bool) or not isinstance(in_flight, int) or not 1 <= in_flight <= 1024:
            raise InputError(f"in_flight must be a number from 1 to 1024, not {shown(in_flight)}", "Engine")
        self._config = PipelineConfig(mode=mode, in_flight=in_flight, workers=_ONE)
        share = share_of(group)
        stateful = listed(stateful, "stateful", "Engine")
        check_stateful(optimizers, "optimizers")
        check_stateful(stateful, "stateful")
        found = feedings(model, keys, optimizers, share)
        self.model, self.tables, self._dense = model, tuple(each.table for each in found), Dense(model, optimizers)
        self._placing = Placing(found, optimizers, self._dense)
        self._parts = Parts(self.tables, model, optimizers, stateful)
        self._loop: Loop | None = None
        self._position: Position | None = None  # of a pass that is not at its end
        self._waiting: Position | None = None  # without the batches whose gradients it has left, if they still wait
        self._resumed: Position | None = None  # where the next pass begins
        self._failed: BaseException | None = None
        self._closed, self._pid, self.lost, self.weight = False, os.getpid(), 0, 1.0
        self._next = max(table.next_timestamp for table in self.tables)
        self._unstepped, self._begun = Unstepped(self._placing.served), self._next
        self._home = Home(self.tables)
        if share.size > 1:
            if mode == "async":
                raise InputError("async is for one process: several train in lockstep", "Engine: mode")
            from marius_oac.torch.processes.home import Processes  # it takes long, and few need it

            self._home = Processes(group, share, found, in_flight, mode, self._next, self._fail)
        for served, table in zip(self._placing.served, self.tables, strict=True):
            served.table, served.engine, served.first_rows = table, self, None
        self._dense.watch()

    def batches(self, loader: Iterable[Any], accumulate: int = 1, uneven: str = "error") -> Batches:
        """The batches of `loader`, each with its rows in the modules. Asking for the next one hands the last one back.
        They have a length if the loader has one and none is padding; a pass that goes on from a checkpoint ends before.

        Args:
            accumulate: so many batches have their rows together, and are handed back together: `step` once for all.
            uneven: what happens where other processes have more batches: error; or pad: the last one is there again as
                often, with a `weight` of 0.

        Raises:
            InputError: an argument is wrong, the engine is of no more use, or a batch has no such keys.
            DivergedError: rows are NaN, infinite or too large.
        """
        self._check_usable()
        self._end_loop()
        self._check_usable()
        check_whole(accumulate, "accumulate", "Engine.batches")
        if not isinstance(loader, Iterable):
            raise InputError(f"a loader is needed, not {shown(loader)}", "Engine.batches")
        if uneven not in _UNEVEN:
            raise InputError(f"uneven must be one of {', '.join(_UNEVEN)}, not {shown(uneven)}", "Engine.batches")
        return Batches(self._iterate(loader, accumulate, uneven), loader if uneven == "error" else None)

    def _iterate(self, loader: Iterable[Any], accumulate: int, uneven: str) -> Generator[Any, None, None]:
        self._end_loop()  # another one may have begun since `batches` was called
        self._check_usable()
        resumed, self._resumed, self._position = self._resumed, None, None
        self._home.begin(self._next, accumulate, uneven)
        self._begun = self._next
        self._dense.begin_loop()
        self._loop = loop = Loop(self._home, self._config, self._next, self._placing.fed, self._unstepped, loader,
                                 accumulate, resumed, uneven == "pad")  # fmt: skip
        end_at_exit(loop)
        try:
            for opened in loop.batches():
                self._placing.place(opened)
                own = len(opened.fed.batches) - opened.fed.padding
                for place, batch in enumerate(opened.fed.batches):
                    self.weight = float(place < own)
                    yield batch
                    self._check_under_way(loop)
                self._placing.displace()
            self._check_under_way(loop)  # the loader may have begun another one
        finally:
            if self._loop is loop:
                self._end_loop()
        if self._failed is not None:
            raise self._failed

    def _check_under_way(self, loop: Loop) -> None:
        if self._loop is not loop:
            raise InputError("this loop was ended by another one, or because the engine was closed", "Engine.batches")

    @contextmanager
    def at_hand(self, batch: Any) -> Iterator[Sequence[Rows]]:
        """Gives the rows of one batch, of each table, to modules and optimizers, and hands it back at the end.

        Raises:
            InputError: a loop over a loader is under way, the engine is of no more use, or the batch has no such keys.
            DivergedError: rows of a batch before are NaN, infinite or too large.
        """
        self._check_usable()
        if self._loop is None:
            self._resumed = self._position = None
            self._loop = CallLoop(self._home, self._config, self._next, self._placing.fed, self._unstepped)
            end_at_exit(self._loop)
        loop = self._loop
        if not isinstance(loop, CallLoop):
            raise InputError("a loop over a loader is under way", "Engine")
        opened = loop.exchange(batch)
        if opened is None:
            self._end_loop()
            self._check_usable()
            raise InputError("the loop was ended", "Engine")
        self._placing.place(opened)
        try:
            yield opened.rows
        finally:
            for served in self._placing.served:
                served.clear()
            self._placing.displace()
            loop.give_back()

    @contextmanager
    def peek(self, batch: Any) -> Iterator[None]:
        """Within it modules give a batch's rows without gradients, in training mode, too: rows as of all steps so far,
        and initial ones for unseen keys. The batch at hand, if there is one, is there again afterwards.

        Raises:
            InputError: the batch has no such keys, or the engine is of no more use.
        """
        self._check_usable()
        self.wait_until_written()
        with self._placing.peeked(batch):
            yield

    def _end_loop(self) -> None:
        """Drains the loop that is under way, if there is one; keeps its error."""
        loop = self._loop
        if loop is None:
            return
        self._placing.displace()
        try:
            loop.end()
        except Exception as error:
            self._fail(error)
        finally:
            self._loop = None
            self.lost += loop.lost
            position, self._next = loop.position(waiting=False), loop.next_batch
            self._position, self._waiting = position.ended(), loop.position(waiting=True)
            self._begun = self._next if position.finished else self._begun
            for table in self.tables:
                table.next_timestamp = self._next

    def save(self, folder: str | os.PathLike[str], keep: int = 2) -> None:
        """Writes a checkpoint: rows with their state, parameters, optimizers, `stateful`, generators, and where the
        loader is.

        Within the loop it is of the batches that were handed back and, once an optimizer has changed its rows, the one
        at hand, which is handed back with this. All but the `keep` newest checkpoints in the folder are removed.

        Raises:
            DivergedError: parameters or rows are not finite.
            InputError: a state holds what is no plain data, an optimizer was not named, gradients of a pass that is at
                its end wait for a step, or the folder can't be written.
        """
        check_whole(keep, "keep", "Engine.save")
        path = folder_of(folder, "Engine.save")
        self._check_usable()
        self._dense.check_known()
        loop = self._loop
        if loop is not None and self._placing.stepped:
            self._placing.displace()
            loop.give_back()
        self.wait_until_written()
        loop, oldest = self._loop, self._unstepped.oldest
        if oldest is not None and oldest < self._begun:
            raise InputError(f"gradients of batch {oldest}, of a pass before, wait for a step, and no checkpoint has "
                             "gradients: save after the step, or call zero_grad", "Engine.save")  # fmt: skip
        if loop is not None:
            moment = Moment(loop.first_untrained, loop.position(waiting=oldest is not None))
        else:
            position = self._position if oldest is None else self._waiting
            moment = Moment(self._next, position or self._resumed)
        self._home.save(path, self._parts, moment, keep)

    def load(self, folder: str | os.PathLike[str]) -> bool:
        """Sets everything to the newest checkpoint of the folder, and ends the loop that is under way. The next
        `batches` goes on where the loader was.

        Returns:
            Whether there is a checkpoint.

        Raises:
            CheckpointError: it is damaged or belongs to something else.
        """
        path = folder_of(folder, "Engine.load")
        self._check_usable()
        self._end_loop()
        self._check_usable()
        try:
            moment = self._home.load(path, self._parts)
        except HalfLoaded as error:
            self._fail(error)
            raise
        if moment is None:
            return False
        self._unstepped.forget()
        self._resumed, self._position = moment.position, None
        self._next = moment.next_batch
        for table in self.tables:
            table.next_timestamp = self._next
        return True

    def _fail(self, error: BaseException) -> None:
        self._failed = self._failed or error
        for table in self.tables:
            table.broken = str(self._failed)

    def wait_until_written(self) -> None:
        """Waits until all batches that were handed back are in the store. Raises what the pipeline raised."""
        self._check_process()
        loop = self._loop
        try:
            if loop is None:
                self._home.wait_until_written()
            elif not loop.wait_until_written():
                self._end_loop()
        except NodeLost as error:
            self._fail(error)
            raise
        if self._failed is not None:
            self._check_usable()

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise InputError("a forked process has none of the engine's threads: make an engine there, or spawn it",
                             "Engine")  # fmt: skip

    def _check_usable(self) -> None:
        self._check_process()
        if self._closed:
            raise InputError("the engine is closed: make a new one", "Engine")
        if self._failed is not None:
            if isinstance(self._failed, DivergedError):
                raise self._failed
            raise InputError(f"the engine has failed and can't be used again: {self._failed}", "Engine")

    def close(self) -> None:
        """Ends the loop that is under way: batches handed back are written. Rows can still be read in eval mode."""
        self._closed = True
        self._end_loop()  # again where Ctrl-C came between
        for served in self._placing.served:
            served.engine = None
        self._dense.close()
        self._home.close()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        known = self._failed
        if error is not None:
            self._home.abort(error)
        self.close()
        if error is None and self._failed is not None and self._failed is not known:
            raise self._failed
