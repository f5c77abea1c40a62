"""A `Group` on torch.distributed: gloo for tensors in memory, NCCL for tensors on a GPU.

Guarantees:
- gloo reduces tensors of any size in a ring, part by part. One chain of members sums a part in one order, then it is
  copied. So all members hold the same bits, and the order depends only on size and members.
- A call waits as long as every member is alive, even through an evaluation on one of them. A member that is gone ends
  it (see `heartbeat`), also where gloo does not notice.
- `abort` closes this member's connections of that group; called on the group itself, those of its channels, too. NCCL
  is aborted, so that its work on the GPU ends. gloo has no way to end a waiting call except that a receive times out,
  which closes all its connections. The tensors of an aborted call are undefined.
- A channel is connected when all members have come, within `timeout` seconds. A member that dies meanwhile is found.

The members find each other by the store that torchrun's variables name. gloo and NCCL have no authentication and listen
on the given interface. They transfer tensors alone, and nothing is unpickled. Heartbeats listen there, too, and know
each other by a secret that is in the store.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup, Store, Work, distributed_c10d

from marius_oac.config.cluster import START_VARIABLE
from marius_oac.errors import InputError, NodeLost
from marius_oac.nodes.groups.contract import Group
from marius_oac.nodes.groups.heartbeat import Heartbeat
from marius_oac.nodes.groups.links import address_of
from marius_oac.runtime.channel import Closed
from marius_oac.types import present

_EVER = timedelta(days=3650)
"""How long a call waits by itself: practically for ever. The heartbeat ends the calls that wait for a lost member."""
_ALL = "all have come"
_SLICE = timedelta(seconds=1)  # that a call waits before it looks whether it waits in vain
_SEVERED = 4.0  # seconds in which connections are closed, and calls end, when the end of a member is known
_LOOK = timedelta(seconds=0.2)  # between two looks: signals are handled meanwhile
_NEVER_SENT = (1 << 20) + 1  # a tag
Result = TypeVar("Result")


class TorchGroup(Group):
    """A member that is a process. Made by `from_environment`, `channel` and `part` only.

    `ranks` are torch's, of the members by rank. `slot` is the number that all members know the group by; 0: the first.
    """

    def __init__(
        self,
        rank: int,
        names: Sequence[str],
        name: str,
        group: ProcessGroup,
        shared: _Shared,
        ranks: Sequence[int],
        slot: int = 0,
    ) -> None:
        super().__init__(rank, names)
        self._name, self._shared, self._ranks = name, shared, ranks
        self._process_group: ProcessGroup | None = group
        self._slot, self._root, self._children = slot, slot == 0, 0
        self._aborted = self._closed = False
        self._why: BaseException | None = None
        self._failure: RuntimeError | None = None
        shared.groups[slot] = self

    @classmethod
    def from_environment(
        cls, timeout: float, interface: str | None = None, names: Sequence[str] | None = None
    ) -> TorchGroup:
        """Connects the processes that torchrun started (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT); collective.

        Args:
            timeout: seconds after which a silent member is lost, also one that never comes.
            interface: name of the network interface to use; None: that of the host's name.
            names: of the members by rank; None: "rank 0", ...

        Raises:
            InputError: a variable is missing or not a number; there are more or fewer names than members.
            NodeLost: not all members came.
        """
        rank, size = (_number(name) for name in ("RANK", "WORLD_SIZE"))
        names = tuple(names) if names is not None else tuple(f"rank {each}" for each in range(size))
        if len(names) != size:
            raise InputError(f"{size} members were started, but {len(names)} are named", "WORLD_SIZE")
        if interface is not None:
            os.environ["GLOO_SOCKET_IFNAME"] = os.environ["NCCL_SOCKET_IFNAME"] = interface
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        # NCCL's own watchdog would end the process when a communicator is aborted.
        os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
        silence, shared = timedelta(seconds=timeout), _Shared(backend, timedelta(seconds=timeout))
        try:
            store, *_ = next(dist.rendezvous("env://", timeout=silence))
            store.set_timeout(silence)
            store = dist.PrefixStore(os.environ.get(START_VARIABLE, "only"), store)
            await_all(store, size, timeout)
            dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=silence)
            group = cls(rank, names, "", shared.connect(range(size), 1), shared, range(size))
            host = address_of(interface or os.environ.get("GLOO_SOCKET_IFNAME", "").partition(",")[0])
            meeting = dist.PrefixStore("heartbeats", store)
            shared.heartbeat = Heartbeat(meeting, host, rank, names, timeout, shared.sever)
        except (RuntimeError, OSError) as error:
            if dist.is_initialized():
                dist.destroy_process_group()
            address = ":".join(os.environ.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT"))
            first = str(error).partition("\n")[0]
            raise NodeLost(names[rank], f"has not found the others at {address}: {first}") from error
        return group

    def _all_reduce(self, tensor: torch.Tensor) -> None:
        self._collective(dist.all_reduce, tensor)

    def _broadcast(self, tensor: torch.Tensor, root: int) -> None:
        self._collective(dist.broadcast, tensor, self._ranks[root])

    def barrier(self) -> None:
        """See `Group.barrier`."""
        self._collective(dist.all_reduce, torch.zeros(1, dtype=torch.int32))

    def _all_to_all(self, sent: Sequence[torch.Tensor], received: Sequence[torch.Tensor]) -> None:
        outgoing, incoming = torch.cat([each.view(-1) for each in sent]), [each.numel() for each in received]
        found, sizes = torch.empty(sum(incoming)), [each.numel() for each in sent]
        self._collective(dist.all_to_all_single, found, outgoing, incoming, sizes)
        for tensor, part in zip(received, found.split(incoming), strict=True):
            tensor.view(-1).copy_(part)

    def _gather(self, text: bytes) -> list[bytes]:
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in self.names]
        mine = torch.tensor([len(text)], dtype=torch.int64)
        self._collective(dist.all_gather, lengths, mine)
        longest = max(int(length) for length in lengths)
        padded = torch.frombuffer(bytearray(text.ljust(longest)), dtype=torch.uint8)
        texts = [torch.empty(longest, dtype=torch.uint8) for _ in self.names]
        self._collective(dist.all_gather, texts, padded)
        return [each[: int(length)].numpy().tobytes() for each, length in zip(texts, lengths, strict=True)]

    def channel(self, name: str) -> TorchGroup:
        """See `Group.channel`."""
        return self._connected(name, range(self.size), self._next_slot())

    def part(self, ranks: Sequence[int]) -> TorchGroup | None:
        """See `Group.part`."""
        slot = self._next_slot()
        if self.rank in ranks:
            self._shared.heartbeat.excused.update(self._ranks[each] for each in range(self.size) if each not in ranks)
            return self._connected("part", ranks, slot)
        self.barrier()
        return None

    def _next_slot(self) -> int:
        """The number of the next channel or part. It follows from this group's alone, as not all members of the first
        group are in each part, and know how many groups that has."""
        self._children += 1
        return zlib.crc32(f"{self._slot}.{self._children}".encode())

    def _connected(self, name: str, ranks: Sequence[int], slot: int) -> TorchGroup:
        self.barrier()
        theirs, names = [self._ranks[each] for each in ranks], [self.names[each] for each in ranks]
        made = self._call(lambda: self._shared.connect(theirs, slot))
        found = TorchGroup(ranks.index(self.rank), names, name, made, self._shared, theirs, slot)
        if self._aborted:  # while it was connecting
            found.abort(self._why)
        return found

    def _collective(self, call: Callable[..., Work | None], *arguments: Any) -> None:
        on_gpu = any(isinstance(each, torch.Tensor) and each.is_cuda for each in arguments)
        self._call(lambda: self._finish(partial(call, *arguments, async_op=not on_gpu)))

    def _finish(self, start: Callable[..., Work | None]) -> None:
        """Starts a collective and waits until it is done.

        A send that gloo had to put off is not told that the connection is closed (`Pair::signalException` leaves out
        unbound buffers), and waits for ever. So it is for a process that was frozen until the others were gone. A
        call that has not ended soon after the end of a member is known is therefore given up.

        A request to stop may end the wait, too; the group is of no use then. To destroy a process group is to wait for
        its calls, so one with a call that has not ended is never destroyed.
        """
        group, work = self._process_group, None
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))
        try:
            work = start(group=group)
            self._await(work)
        except Exception:
            if work is None or work.is_completed():
                ctypes.pythonapi.Py_DecRef(ctypes.py_object(group))
            raise
        except BaseException:
            self._aborted = True
            raise
        ctypes.pythonapi.Py_DecRef(ctypes.py_object(group))

    def _await(self, work: Work | None) -> None:
        last, since = None, 0.0
        while work is not None and not _has_ended(work):
            over = self._aborted or self._closed
            patience = 0.0 if over else self._shared.heartbeat.patience(self._slot)
            if patience != last:
                last, since = patience, time.monotonic()
            if patience is not None and time.monotonic() - since > patience + _SEVERED:
                raise RuntimeError("gloo has forgotten a call of a connection that is closed")

    def _call(self, work: Callable[[], Result]) -> Result:
        if self._aborted or self._closed:
            raise self._why or Closed(self._name)
        if self._failure is not None:
            raise self._reason() or self._failure
        try:
            return work()
        except RuntimeError as error:
            self._failure = error
            if self._aborted:
                raise self._why or Closed(self._name) from error
            reason = self._reason()
            if reason is None:
                raise
            raise reason from error

    def _reason(self) -> NodeLost | None:
        """Returns the loss that made a call fail; None: the call itself was wrong."""
        verdict = self._shared.heartbeat.await_verdict(self._slot)
        return None if verdict is None else NodeLost(*verdict)

    def abort(self, why: BaseException | None = None) -> None:
        """See `Group.abort`."""
        for group in list(self._shared.groups.values()) if self._root else [self]:
            group._why, group._aborted = group._why or why, True
            self._shared.heartbeat.abort(group._slot)
            with self._shared.lock:
                group._sever()

    def _sever(self) -> None:
        """Closes the connections; of gloo's, one receive that times out closes all that are open."""
        if self._process_group is None:
            return
        with suppress(RuntimeError):  # there is no NCCL, or it has been aborted before
            self._process_group._get_backend(torch.device("cuda")).abort()
        for peer in range(self.size):
            if peer != self.rank:
                with suppress(RuntimeError):
                    receive = dist.irecv(torch.zeros(1), self._ranks[peer], self._process_group, _NEVER_SENT)
                    present(receive).wait(timedelta(milliseconds=1))

    def close(self) -> None:
        """See `Group.close`."""
        if self._root and not self._closed:
            self._shared.heartbeat.leave()
        with self._shared.lock:
            if self._closed:
                return
            for group in list(self._shared.groups.values()) if self._root else [self]:
                group._closed, mine, group._process_group = True, group._process_group, None
                if mine is not None:  # connections close with the last reference
                    dist.destroy_process_group(mine)
            if self._root:
                dist.destroy_process_group()


def _has_ended(work: Work) -> bool:
    """Waits for `_SLICE` at most; returns whether a call has ended. Raises RuntimeError if it has failed."""
    try:
        work.wait(_SLICE)
    except RuntimeError:
        if not work.is_completed():
            return False
        work.wait()  # it has failed, or has ended just after the time was over
    return True


def await_all(store: Store, size: int, timeout: float) -> None:
    """Waits until each of `size` members has called this, once, with the same store.

    torch's own wait would go on after a signal that asks to stop, for up to `timeout` seconds.

    Raises:
        RuntimeError: not all have come within `timeout` seconds.
    """
    if store.add("come", 1) == size:
        store.set(_ALL, "")
    deadline = time.monotonic() + timeout
    while not store.check([_ALL]):
        if time.monotonic() > deadline:
            raise RuntimeError(f"not all have come within {timeout:g} s")
        with suppress(dist.DistStoreError):
            store.wait([_ALL], _LOOK)


class _Shared:
    """What a group and its channels share. The lock keeps connections from being closed while `_sever` uses them."""

    heartbeat: Heartbeat

    def __init__(self, backend: str, silence: timedelta) -> None:
        self.backend, self.silence = backend, silence
        self.groups: dict[int, TorchGroup] = {}
        self.lock = threading.Lock()

    def connect(self, ranks: Sequence[int], slot: int) -> ProcessGroup:
        """Connects these members, who call it together. Calls of the process group then wait for ever."""
        # torch names a group by a count of those that this process has made, which includes parts since 2.14.
        distributed_c10d._world.group_count = slot
        alone = len(ranks) < dist.get_world_size()  # the others may have left
        silence, backend = self.silence, self.backend
        made: ProcessGroup = dist.new_group(list(ranks), silence, backend, use_local_synchronization=alone)
        distributed_c10d._set_pg_timeout(_EVER, made)
        return made

    def sever(self, slot: int | None) -> None:
        """Closes the connections of the group with this number; None: of all."""
        with self.lock:
            for number, group in list(self.groups.items()):  # another thread may add one
                if slot in (None, number):
                    group._sever()


def _number(name: str) -> int:
    text = os.environ.get(name)
    if text is None:
        raise InputError("not set: several nodes are started by torchrun", name)
    if not text.isdecimal():
        raise InputError(f"'{text}' is not a number", name)
    return int(text)
