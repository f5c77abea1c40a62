"""A layer that trainers encode together: all have it, in one file of a machine or by messages, with the bits of one."""

import gc
import hashlib
import io
import os
import signal
import threading
from contextlib import closing

import numpy as np
import pytest

from marius_oac.errors import InputError
from marius_oac.evaluation import inference
from marius_oac.evaluation.inference import encode_nodes
from marius_oac.nodes.sharded import evaluation
from marius_oac.nodes.sharded.evaluation import SharedEvaluation
from marius_oac.runtime.machine.peer_files import Nonce, PeerFile
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


class Machines:
    """Says which trainer is on which machine: it sees the nonces of those of its own alone."""

    def __init__(self, monkeypatch, machines):
        self.machines, self.rank, self.shower = machines, {}, {}
        written_to, seen = Nonce.written_to, Nonce.seen

        def noted(file):
            nonce = written_to(file)
            self.shower[nonce.content] = self.here()
            return nonce

        monkeypatch.setattr(Nonce, "written_to", staticmethod(noted))
        monkeypatch.setattr(Nonce, "seen", lambda nonce: self.near(self.shower[nonce.content]) and seen(nonce))

    def here(self):
        return self.rank[threading.get_ident()]

    def near(self, other):
        return self.machines[self.here()] == self.machines[other]


def folder_of(path, among):
    """Each process's own."""
    folder = path / f"{among.rank}"
    folder.mkdir(exist_ok=True)
    return folder


WHOLE = np.arange(22, dtype=np.float32).reshape(11, 2)


@pytest.mark.parametrize("machines", ["aaaaa", "abcde", "abbac", "aabbb"])
@pytest.mark.parametrize("piece", [3, 1 << 20])
@pytest.mark.parametrize("trains", [[True], SERVER, [True] * 5])
def test_all_have_the_rows_that_each_has_made(monkeypatch, tmp_path, trains, piece, machines):
    """Those of one machine in one file; to other machines they are sent."""
    monkeypatch.setattr(evaluation, "PIECE_BYTES", piece)
    sent = calls_of(monkeypatch, SharedEvaluation, "_transfer")
    count, found, calls, places = sum(trains), [], [], Machines(monkeypatch, machines)
    firsts = {machines.index(each) for each in machines[:count]}

    def make(among):
        places.rank[threading.get_ident()] = among.rank
        starts = [*[0, 0, 4, 9, 10][:count], 11]
        own = slice(*starts[among.rank : among.rank + 2])
        for number in range(2):
            for _ in range(3 * among.rank):
                among.turn()
            path = folder_of(tmp_path, among) / f"{number}.npy"
            rows = among.mapped(path, WHOLE.shape)
            assert path.exists() == (among.rank in firsts)
            rows[own] = WHOLE[own]
            among.completed(rows, starts, lambda: calls.append(among.rank))
            found.append(rows)
            assert not among._lent._exit_callbacks  # a file that has no name any more is gone when nobody maps it
        return among.collected(io.BytesIO(b"a"), count).read().decode()  # all are still in step

    before = set(os.listdir("/proc/self/fd"))
    assert shared(trains, make) == ["a" * count] * len(trains)
    assert len(found) == 2 * count and all(np.array_equal(rows, WHOLE) for rows in found)
    assert len(places.shower) == count  # they look for each other once
    if len(firsts) == 1:
        assert not calls
    elif piece > WHOLE.nbytes:
        sizes = np.diff([*[0, 0, 4, 9, 10][:count], 11]).tolist()
        for rank in range(count):
            others = [sender for sender in range(count) if machines[sender] != machines[rank]]
            pieces = [rank, *others] if rank in firsts else [rank]
            assert calls.count(rank) == 2 * sum(sizes[each] > 0 for each in pieces)
    assert len(sent) == len(trains) * (1 + 2 * (len(firsts) > 1))  # the one of `collected`, and each array
    assert len({*os.listdir("/proc/self/fd")} - before) <= len(found)
    assert len([*tmp_path.rglob("*.npy")]) == 2 * len(firsts)


def test_where_not_all_see_each_other_each_has_a_file(monkeypatch, tmp_path):
    """As from a machine into its containers, but not back: here each sees the one before it alone."""
    places = Machines(monkeypatch, "aaa")
    places.near = lambda other: other == places.here() - 1

    def make(among):
        places.rank[threading.get_ident()] = among.rank
        rows = among.mapped(folder_of(tmp_path, among) / "rows", (3, 1))
        rows[among.rank] = among.rank
        among.completed(rows, [0, 1, 2, 3], lambda: None)
        return rows.ravel().tolist()

    assert shared([True] * 3, make) == [[0, 1, 2]] * 3 and len([*tmp_path.glob("*/rows")]) == 3


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("which", [0, 2])
def test_an_error_of_one_ends_all_and_leaves_no_descriptor(tmp_path, which, when):
    def make(among):
        if among.rank == which and when == "before":
            raise InputError("the disk is full", "there")
        rows = among.mapped(folder_of(tmp_path, among) / "rows", (3, 1))
        if among.rank == which:
            raise InputError("the disk is full", "there")
        among.completed(rows, [0, 1, 2, 3], lambda: None)

    gc.collect()
    before = {*os.listdir("/proc/self/fd")}
    assert len(errors_of(SERVER, make, InputError)) == 4
    gc.collect()
    assert {*os.listdir("/proc/self/fd")} <= before


@pytest.mark.parametrize("stopped", [False, True])
def test_who_can_not_open_the_shared_file_says_what_has_become_of_its_owner(monkeypatch, tmp_path, stopped):
    def refused(self):
        raise FileNotFoundError(2, "No such file or directory")

    real = PeerFile.open
    monkeypatch.setattr(PeerFile, "open", lambda self, mode, *name: refused(self) if name else real(self, mode))

    def make(among):
        among.mapped(folder_of(tmp_path, among) / "rows", (3, 1))
        if stopped:
            raise StopSignal(signal.SIGTERM)  # of the owner: the others have nothing to go on with
        among.turn()

    if stopped:
        assert [each.number for each in errors_of(SERVER, make, StopSignal)] == [signal.SIGTERM] * 4
    else:
        with pytest.raises(FileNotFoundError):
            shared([True] * 3, make)


def test_nobody_goes_on_before_all_rows_are_there(monkeypatch, tmp_path):
    """On another machine its first trainer still takes them in."""
    places, going_on, real = Machines(monkeypatch, "abb"), threading.Event(), SharedEvaluation._exchange

    def exchange(among, *about):
        real(among, *about)
        if among.rank == 1:
            assert not going_on.wait(0.1)

    monkeypatch.setattr(SharedEvaluation, "_exchange", exchange)

    def make(among):
        places.rank[threading.get_ident()] = among.rank
        among.completed(among.mapped(folder_of(tmp_path, among) / "rows", (3, 1)), [0, 1, 2, 3], lambda: None)
        going_on.set()

    shared([True] * 3, make, 60.0)
    assert going_on.is_set()


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
        assert [path.name for path in folder.iterdir()] == ["out"] * (among.rank == 0)
        assert not found.flags.writeable
        return hashlib.sha256(found.tobytes()).hexdigest()

    counted, same = Counted(), []
    one, (whole, made) = encode(counted), (made, {})
    assert counted.turns == len(whole[0]) > 10
    shared(trains, lambda among: same.append(encode(among)))
    assert same == [one] * sum(trains)
    assert sorted((each for every in made.values() for each in every), key=str) == sorted(whole[0], key=str)
    assert max(map(len, made.values())) <= len(whole[0]) // sum(trains) + 2
