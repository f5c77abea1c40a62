"""A layer that trainers encode together: all have it, from each other's memory or by messages, with the bits of one."""

import hashlib
import io
import itertools
import signal
import threading
from contextlib import closing, contextmanager

import numpy as np
import pytest

from marius_oac.errors import NodeLost
from marius_oac.evaluation import inference
from marius_oac.evaluation.inference import encode_nodes
from marius_oac.runs.sharded import evaluation
from marius_oac.runs.sharded.evaluation import SharedEvaluation
from marius_oac.runtime.machine.peer_memory import PeerMemory
from marius_oac.runtime.signals import StopSignal
from marius_oac.runtime.thread_pool import ThreadPool
from tests.evaluation.test_inference import CPU, INPUTS, LAYERS, large, make, values_of  # noqa: F401 - fixtures
from tests.nodes.test_shared_evaluation import SERVER, Counted, errors_of, shared


def calls_of(monkeypatch, owner, name):
    """The list of a method's calls from now on."""
    found, real = [], getattr(owner, name)

    def noted(*about):
        found.append(about)
        return real(*about)

    monkeypatch.setattr(owner, name, noted)
    return found


@pytest.mark.parametrize("near", ["all", "none", "all but once"])
@pytest.mark.parametrize("piece", [3, 1 << 20])
@pytest.mark.parametrize("trains", [[True], SERVER, [True] * 5])
def test_all_have_the_rows_that_each_has_made(monkeypatch, trains, piece, near):
    """From memory if all can read that of all, else they are sent."""
    monkeypatch.setattr(evaluation, "PIECE_BYTES", piece)
    read, sent = calls_of(monkeypatch, PeerMemory, "read"), calls_of(monkeypatch, SharedEvaluation, "_exchange")
    turns = calls_of(monkeypatch, SharedEvaluation, "turn")
    asked = itertools.count()
    if near != "all":
        monkeypatch.setattr(evaluation.Nonce, "seen", lambda nonce: next(asked) > 0 and near != "none")
    whole, count, found, calls = np.arange(22, dtype=np.float32).reshape(11, 2), sum(trains), {}, []

    def make(among):
        starts = [*[0, 0, 4, 9, 10][:count], 11]
        own, rows = slice(*starts[among.rank : among.rank + 2]), np.full_like(whole, -1)
        rows[own] = whole[own]
        for _ in range(3 * among.rank):
            among.turn()
        among.completed(rows, starts, lambda: calls.append(among.rank))
        found[among.rank] = rows
        return among.collected(io.BytesIO(b"a"), count).read().decode()  # all are still in step

    assert shared(trains, make) == ["a" * count] * len(trains)
    assert all(np.array_equal(found[rank], whole) for rank in range(count))
    direct = near == "all"
    assert len(turns) == sum(3 * rank for rank in range(count)) + len(read)
    assert len(sent) == (0 if direct else count) and bool(read) == (direct and count > 1)
    assert sorted(set(calls)) == [*range(count)] * (count > 1 or not direct)


@pytest.mark.parametrize("error", [PermissionError(1, "not permitted"), NodeLost("of process 7", "has ended")])
@pytest.mark.parametrize("stopped", [False, True])
def test_what_can_not_be_copied_is_said_by_who_was_stopped(monkeypatch, error, stopped):
    """Who stops keeps its memory no longer."""

    def read(memory, first, into):
        if threading.current_thread() in stopping:
            raise StopSignal(signal.SIGTERM)
        raise error

    stopping = set()
    monkeypatch.setattr(PeerMemory, "read", read)

    def make(among):
        if stopped and among.rank == 1:
            stopping.add(threading.current_thread())
        among.completed(np.zeros((3, 1), np.float32), [0, 1, 2, 3], lambda: None)

    if stopped:
        assert [each.number for each in errors_of(SERVER, make, StopSignal)] == [signal.SIGTERM] * 4
    else:
        with pytest.raises(type(error)):
            shared([True] * 3, make)


def test_what_others_copy_is_kept_until_all_have(monkeypatch):
    """One of them is slow; meanwhile the others do not go on, and may be read."""
    going_on, open_, slow, real = threading.Event(), [], [], PeerMemory.read

    def slowly(memory, first, into):
        assert len(open_) == 3
        if threading.current_thread() in slow:
            assert not going_on.wait(0.1)
        real(memory, first, into)

    @contextmanager
    def noted():
        open_.append(True)
        yield
        open_.pop()

    monkeypatch.setattr(PeerMemory, "read", slowly)
    monkeypatch.setattr(evaluation, "readable", noted)

    def make(among):
        if among.rank == 2:
            slow.append(threading.current_thread())
        among.completed(np.zeros((3, 1), np.float32), [0, 1, 2, 3], lambda: None)
        going_on.set()

    shared([True] * 3, make, 60.0)
    assert going_on.is_set() and not open_


@pytest.mark.parametrize("stack", [(LAYERS[0], LAYERS[1]), (LAYERS[3], LAYERS[4])], ids=["sage", "gat"])
@pytest.mark.parametrize("trains", [[True, True], SERVER, [True] * 30])
def test_nodes_are_encoded_with_the_bits_of_one_process(tmp_path, large, monkeypatch, stack, trains):  # noqa: F811
    """Thirty are more than there are chunks."""
    encoder, values, made = make(*stack).float(), values_of(large.num_nodes), {}
    real = inference._LayerPass._block

    def block(self, begin, end):
        made.setdefault(self._among.rank, []).append(range(begin, end))
        return real(self, begin, end)

    monkeypatch.setattr(inference._LayerPass, "_block", block)

    def encode(among):
        folder = tmp_path / f"{among.count}-{among.rank}"
        folder.mkdir()
        with closing(ThreadPool(1)) as thread_pool:
            about = (values.__getitem__, INPUTS, large, folder / "out", thread_pool, CPU, 1 << 19, among)
            found = encode_nodes(encoder, *about)
        assert [path.name for path in folder.iterdir()] == ["out"]
        return hashlib.sha256(found.tobytes()).hexdigest()

    counted, same = Counted(), []
    one, (whole, made) = encode(counted), (made, {})
    assert counted.turns == len(whole[0]) > 10
    shared(trains, lambda among: same.append(encode(among)))
    assert same == [one] * sum(trains)
    assert sorted((each for every in made.values() for each in every), key=str) == sorted(whole[0], key=str)
    assert max(map(len, made.values())) <= len(whole[0]) // sum(trains) + 2
