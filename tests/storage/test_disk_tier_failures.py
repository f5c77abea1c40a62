"""The disk tier when the disk fails, a run is aborted, or it is closed: everybody is told, and nothing is left."""

import errno
import os
import threading
from contextlib import suppress
from functools import partial

import pytest

from marius_oac.errors import InputError
from marius_oac.runtime.channel import Closed
from marius_oac.storage.disk.tier import Claim
from tests.storage.tiers import BROKEN, ids, parked, read, write
from tests.threads import PATIENCE, in_thread, joined


def outcome_of(work):
    """What it returns, or the error that the tier made of the disk's."""
    try:
        return work()
    except InputError as error:
        return error


@pytest.mark.parametrize("what", ["read", "write"])
def test_a_disk_that_fails_fails_every_call_from_then_on(tiers, what):
    tier, (store,), disk = tiers(1)
    write(store, 0, 1)
    write(store, 1, 2)
    tier.flush()
    claim = tier.announce(0, [ids(0)])
    later = tier.announce(1, [ids(1)])
    if what == "write":
        write(store, 1, 3)
    disk.errors[what] = BROKEN
    tier.fetch(claim)
    calls = (
        lambda: tier.wait(Claim(ids(0), ticket=tier._tickets)) if what == "write" else tier.wait(claim),
        lambda: tier.fetch(later),
        lambda: tier.announce(2, [ids(0)]),
        lambda: read(store, 3),
        lambda: write(store, 3, 4),
        lambda: tier.flush(),
    )
    disk._threads.submit(int).result()
    disk._threads.shutdown()  # what has been asked for has failed
    for call in calls:
        with pytest.raises(InputError, match="/disk/0.pages: page file: Input/output error") as caught:
            call()
        assert isinstance(caught.value.__cause__, OSError)


def test_no_room_on_the_disk_fails_who_asked_and_everybody_later(tiers, monkeypatch):
    tier, (store,), disk = tiers(1)
    write(store, 0, 1)

    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    for call in (lambda: read(store, 1), lambda: tier.flush(), lambda: write(store, 0, 2)):
        with pytest.raises(InputError, match="page file: No space left on device") as caught:
            call()
        assert caught.value.where == str(disk.path_of(0))


@pytest.mark.parametrize("error", [None, BROKEN])
def test_everybody_who_waits_is_woken(tiers, error):
    """By `abort`, or by an I/O thread that fails."""
    tier, (store,), disk = tiers(2, look_ahead=1)
    for row in range(4):
        write(store, row, row)
    tier.flush()
    claims = [tier.announce(number, [rows]) for number, rows in enumerate((ids(0, 1), ids(1, 2)))]
    gate = disk.stop("read")
    tier.fetch(claims[0])
    assert disk.reached["read"].wait(PATIENCE)
    waiting = [
        in_thread(partial(outcome_of, work))
        for work in (
            lambda: tier.wait(claims[0]),
            lambda: tier.fetch(claims[1]),
            lambda: [tier.announce(number, [ids(5)]) for number in range(2, 9)],
            lambda: read(store, 7),
        )
    ]
    parked(tier, len(waiting))
    if error is None:
        tier.abort()
        found = [joined(*each) for each in waiting]
        assert [type(each) for each in found] == [Closed] * len(waiting)
        gate.set()
        with pytest.raises(Closed):
            tier.announce(9, [ids(0)])
        return
    disk.errors["read"] = error
    gate.set()
    assert [type(joined(*each)) for each in waiting] == [InputError] * len(waiting)
    with pytest.raises(InputError, match="Input/output error"):
        tier.wait(claims[0])


def test_whoever_flushes_is_woken_too(tiers):
    tier, (store,), disk = tiers(2)
    write(store, 0, 7)
    gate = disk.stop("write")
    thread, outcome = in_thread(tier.flush)
    parked(tier)
    tier.abort()
    assert isinstance(joined(thread, outcome), Closed)
    gate.set()


def open_pages():
    links = (os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd"))
    return [link for link in links if link.endswith(".pages")]


@pytest.mark.parametrize("how", ["in peace", "after an error", "while it writes"])
def test_nothing_is_left_when_it_is_closed(tiers, how):
    before = threading.active_count()
    tier, (store,), disk = tiers(1)
    write(store, 0, 1)
    if how == "after an error":
        disk.errors["write"] = BROKEN
    gate = disk.stop("write") if how == "while it writes" else None
    assert len(open_pages()) == 1
    with suppress(InputError):  # of the write, which begins when this row is there
        write(store, 1, 2)
    if gate:
        assert disk.reached["write"].wait(PATIENCE)
        thread, outcome = in_thread(tier.close)
        gate.set()
        assert joined(thread, outcome) is None
        assert disk.told[-1][:2] == ("write", "ends")
    tier.close()
    tier.close()
    assert threading.active_count() == before and open_pages() == []
    assert tier.nbytes == 0
