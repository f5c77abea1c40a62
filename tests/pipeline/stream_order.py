"""Streams for tests, on CPU tensors: they see every operation and report each pair that nothing orders.

`OrderedStreams` takes the place of a GPU's streams. Operations happen at once, so results are right whatever is
missing; what counts is the *happens-before* relation that the calls make, kept as vector clocks (Mattern, 1989):

- Agents are the threads of the host, the three streams, and "default" for what is put on the device outside of them.
- An operation on a stream happens after what its thread did before it, and after what the stream held before.
- An operation that gives a number to the host (`WAITS`) makes its thread wait for the stream; these are counted.
- An event carries the clock of its stream; `wait` gives it to another stream, `synchronize` to a thread.
- A channel's item, a pool's buffers and the ledger carry the clock of who hands over to who takes.

What a step computes with, and was not made on a stream, is a parameter. Two accesses to one storage, at least one of
them a write, must be ordered. A tensor that a stream has made is used on no other one: its room could be given away too
soon.

Accesses are seen by a dispatch mode of torch, so those of any code that computes with torch, and where kernels of
Triton are launched. The host's own, by NumPy, are booked where a batch borrows its staging buffers (written) and where
it hands them back (read).
"""

import os
import sys
import threading
from collections import Counter, defaultdict
from contextlib import contextmanager

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from marius_oac.kernels.gpu import jit
from marius_oac.pipeline.batch import Pool
from marius_oac.pipeline.device import TorchDevice
from marius_oac.pipeline.ledger import Ledger
from marius_oac.pipeline.streams import Streams
from marius_oac.runtime.channel import Channel

WAITS = {torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default}
"""Operations whose caller needs a number that is on the device, so waits for the stream."""


WRITTEN = {
    "queries": {"into", "positives"},
    "query_gradients": {"by_queries", "by_positives", "losses", "firsts", "seconds"},
    "candidate_gradients": {"by_candidates"},
    "end_gradients": {"parts", "relation_parts", "losses"},
    "block_sums": {"sums"},
    "update_rows": {"rows", "told"},
    "replace_older": {"timestamps", "values", "replaced"},
    "look": {"sound"},
}
"""What kernels of Triton write; that they write nothing else is looked at."""


class Order:
    """Clocks of agents, accesses to storages, and what was found wrong."""

    def __init__(self):
        self.lock = threading.RLock()
        self.clocks = defaultdict(Counter)
        self.names, self.alive, self.maker = {}, {}, {}
        self.writes, self.reads = {}, defaultdict(dict)
        self.carried, self.kept = {}, []
        self.found, self.waits, self.accesses, self.orders = Counter(), Counter(), 0, 0
        self.current = None
        self.unfinished = 0
        """Times that were asked for between events that the thread did not know to have happened."""

    @staticmethod
    def thread():
        return f"thread {threading.get_ident()}"

    def join(self, agent, clock):
        """The agent goes on after what the clock has seen."""
        with self.lock:
            self.orders += 1
            self.clocks[agent] |= clock

    def now(self, agent):
        with self.lock:
            self.clocks[agent][agent] += 1
            return Counter(self.clocks[agent])

    def hand_over(self, key, item=None):
        """`item` is kept, so that no other gets its address."""
        with self.lock:
            self.kept.append(item)
            self.carried[key] = self.carried.get(key, Counter()) | self.now(self.thread())

    def take_over(self, key):
        with self.lock:
            self.join(self.thread(), self.carried.get(key, Counter()))

    def name(self, tensor, name):
        """Makes a storage one of the device's, or the host's ("staging"); keeps it: no other gets its address."""
        storage = tensor.untyped_storage()
        with self.lock:
            self.names[storage.data_ptr()], self.alive[storage.data_ptr()] = name, storage

    def is_known(self, tensor):
        return tensor.untyped_storage().data_ptr() in self.names

    def is_on_device(self, tensor):
        return self.is_known(tensor) and not self.names[tensor.untyped_storage().data_ptr()].startswith("staging")

    def access(self, tensor, agent, write):
        key = tensor.untyped_storage().data_ptr()
        with self.lock:
            self.accesses += 1
            clock, name = self.now(agent), self.names[key]
            others = [self.writes[key]] if key in self.writes else []
            others += self.reads[key].items() if write else []
            for other, tick in others:
                if clock[other] < tick:
                    self.report(name, other, agent)
            if key in self.maker and agent in ("up", "compute", "down") and agent != self.maker[key]:
                self.found[f"{name}: made on {self.maker[key]}, but used on {agent}"] += 1
            if write:
                self.writes[key], self.reads[key] = (agent, clock[agent]), {}
            else:
                self.reads[key][agent] = clock[agent]

    def report(self, name, *agents):
        self.found[f"{name}: no order between {' and '.join('a thread' if 'thread' in a else a for a in agents)}"] += 1


class Seen(TorchDispatchMode):
    """Books operations on tensors of the device or of its staging buffers at the stream that the thread has entered."""

    def __init__(self, order, current):
        super().__init__()
        self.order, self.current = order, current

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        written, read = [], []
        for argument, value in [*zip(function._schema.arguments, args, strict=False), *self._named(function, kwargs)]:
            values = value if isinstance(value, list | tuple) else [value]
            changed = argument.alias_info is not None and argument.alias_info.is_write
            (written if changed else read).extend(each for each in values if isinstance(each, torch.Tensor))
        on_device = any(self.order.is_on_device(each) for each in written + read)
        for tensor in written + read if on_device else ():
            if not self.order.is_known(tensor):
                self.order.name(tensor, "a parameter")
        written, read = ([each for each in tensors if self.order.is_known(each)] for tensors in (written, read))
        result = function(*args, **kwargs)
        if not (written or read) or self._only_views(function):
            return result
        agent = (self.current.stream or "default") if on_device else self.order.thread()
        with self.order.lock:
            self.order.join(agent, self.order.now(self.order.thread()))
            for tensor in read:
                self.order.access(tensor, agent, write=False)
            for tensor in written:
                self.order.access(tensor, agent, write=True)
            if on_device:
                self._book_results(result, agent)
            if on_device and function in WAITS:
                self.order.join(self.order.thread(), self.order.now(agent))
                self.order.waits[agent, self._asking()] += 1
        return result

    @staticmethod
    def _asking():
        """The package's innermost file that waits."""
        frame = sys._getframe()
        while frame and f"{os.sep}marius_oac{os.sep}" not in frame.f_code.co_filename:
            frame = frame.f_back
        return frame and os.path.basename(frame.f_code.co_filename)

    @staticmethod
    def _named(function, kwargs):
        by_name = {argument.name: argument for argument in function._schema.arguments}
        return [(by_name[name], value) for name, value in kwargs.items()]

    @staticmethod
    def _only_views(function):
        """Of operations that neither read nor write what lies in the storage."""
        returns = function._schema.returns
        return bool(returns) and all(r.alias_info is not None and not r.alias_info.is_write for r in returns)

    def _book_results(self, result, agent):
        for tensor in result if isinstance(result, list | tuple) else [result]:
            if isinstance(tensor, torch.Tensor) and not self.order.is_known(tensor):
                self.order.name(tensor, "a result")
                key = tensor.untyped_storage().data_ptr()
                if agent in ("up", "compute", "down"):
                    self.order.maker[key] = agent
                self.order.access(tensor, agent, write=True)


class Current(threading.local):
    """The stream that each thread has entered."""

    stream = None


class OrderedStreams(Streams):
    """Streams whose operations have happened at once and whose order is kept by `order`."""

    def __init__(self, order):
        self.order, self.current = order, Current()
        order.current = self.current

    def begin(self):
        self.order.join(self.order.thread(), self.order.now("default"))
        self.order.hand_over("begin")

    def enter_thread(self):
        """Called by each thread that was started after `begin`: from now on its operations are seen."""
        self.order.take_over("begin")
        Seen(self.order, self.current).__enter__()

    @contextmanager
    def on(self, stream):
        before, self.current.stream = self.current.stream, stream
        try:
            yield
        finally:
            self.current.stream = before

    def record(self, stream):
        self.order.join(stream, self.order.now(self.order.thread()))
        return self.order.now(stream)

    def wait(self, stream, event):
        self.order.join(stream, self.order.now(self.order.thread()) | event)

    def synchronize(self, event):
        self.order.join(self.order.thread(), event)

    def seconds(self, first, second):
        with self.order.lock:
            seen = self.order.clocks[self.order.thread()]
            self.order.unfinished += any(event - seen for event in (first, second))
        return 0.0

    def empty(self, shape, dtype):
        return self._named(torch.full(shape, 77, dtype=dtype), "resident")

    def staging(self, shape, dtype):
        return self._named(torch.full(shape, 77, dtype=dtype), "staging")

    def _named(self, tensor, name):
        self.order.name(tensor, name)
        return tensor


class OrderedDevice(TorchDevice):
    """Books what the host does with staging buffers by NumPy: who borrows them writes, who hands them back has read."""

    def __init__(self, order, pipeline):
        layouts, caching = pipeline.source.layouts, pipeline.source.caching
        shape = (pipeline.planner.tables, layouts, pipeline.in_flight, caching)
        super().__init__(torch.device("cpu"), *shape, streams=OrderedStreams(order))
        self.order = order

    def borrow(self, batch):
        super().borrow(batch)
        for tensor in (*batch.staging.values, *batch.staging.timestamps, *batch.staging.rows):
            self.order.access(tensor, self.order.thread(), write=True)

    def written(self, batch, cached):
        for tensor in batch.staging.values:
            self.order.access(tensor, self.order.thread(), write=False)
        super().written(batch, cached)


def is_tensor(argument):
    return isinstance(argument, torch.Tensor)


def same(one, other):
    return bool((one.reshape(-1).view(torch.uint8) == other.reshape(-1).view(torch.uint8)).all())


def watch(monkeypatch, order):
    """From now on channels, pools and ledgers carry clocks."""

    def around(cls, name, before=None, after=None):
        original = getattr(cls, name)

        def watched(self, *args):
            if before:
                order.hand_over(before(self, *args), args)
            result = original(self, *args)
            if after:
                order.take_over(after(self, result))
            return result

        monkeypatch.setattr(cls, name, watched)

    real = jit.launch

    def launch(kernel, grid, *arguments, **constants):
        if current := order.current:
            tensors = {name: each for name, each in zip(kernel.arg_names, arguments, strict=False) if is_tensor(each)}
            written = WRITTEN[kernel.__name__]
            with _disable_current_modes():
                before = {name: each.clone() for name, each in tensors.items() if name not in written}
                for name, tensor in tensors.items():
                    if order.is_known(tensor):
                        order.access(tensor, current.stream or "default", write=name in written)
                real(kernel, grid, *arguments, **constants)
                assert all(same(tensors[name], each) for name, each in before.items()), kernel.__name__
        else:
            real(kernel, grid, *arguments, **constants)

    monkeypatch.setattr(jit, "launch", launch)
    around(Channel, "put", before=lambda channel, item: (id(channel), id(item)))
    around(Channel, "get", after=lambda channel, item: (id(channel), id(item)))
    around(Pool, "give_back", before=lambda pool, buffers: id(buffers))
    around(Pool, "take", after=lambda pool, buffers: id(buffers))
    around(Ledger, "finish", before=lambda ledger, timestamp: id(ledger))
    around(Ledger, "enter", after=lambda ledger, result: id(ledger))
