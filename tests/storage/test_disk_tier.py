"""The disk tier in forced schedules: who waits for whom, and that nothing is lost meanwhile."""

from queue import Queue

import pytest

from marius_oac.errors import ConfigError
from marius_oac.storage.disk.tier import Claim
from tests.storage.tiers import ROWS, ids, parked, read, write
from tests.threads import PATIENCE, in_thread, joined


def test_a_page_on_its_way_to_the_disk_is_not_read_before_it_is_there(tiers):
    tier, (store,), disk = tiers(1)
    write(store, 0, 7)
    gate = disk.stop("write")
    write(store, 1, 8)  # page 0 leaves; somebody is served before it is written
    assert disk.reached["write"].wait(PATIENCE)
    (slot,) = disk.told[-1][2]
    thread, outcome = in_thread(lambda: read(store, 0))
    parked(tier)
    assert not [told for told in disk.told if told[0] == "read"]
    gate.set()
    assert joined(thread, outcome) == 7
    assert disk.told.index(("write", "ends", [slot])) < disk.told.index(("read", "begins", [slot]))


def test_who_comes_is_served_before_who_leaves_is_written(tiers):
    tier, (store,), disk = tiers(1)
    write(store, 0, 7)
    gate = disk.stop("write")
    write(store, 1, 8)
    assert disk.reached["write"].wait(PATIENCE) and read(store, 1) == 8
    gate.set()
    tier.flush()
    assert (read(store, 0), read(store, 1)) == (7, 8)


def test_what_is_written_while_it_is_flushed_is_not_lost(tiers):
    tier, (store,), disk = tiers(2)
    write(store, 0, 7)
    gate = disk.stop("write")
    thread, outcome = in_thread(tier.flush)
    assert disk.reached["write"].wait(PATIENCE)
    write(store, 0, 9)
    gate.set()
    assert joined(thread, outcome) is None
    for row in range(1, 6):
        read(store, row)
    assert read(store, 0) == 9


def test_a_claim_gets_all_its_frames_or_none(tiers):
    tier, _, _ = tiers(4)
    first, second = (tier.announce(n, [rows]) for n, rows in enumerate((ids(0, 1, 2), ids(3, 4, 5))))
    tier.fetch(first)
    tier.wait(first)
    thread, outcome = in_thread(lambda: tier.fetch(second))
    parked(tier)
    assert not tier.directory.arrays.frame_of[3:6].any()
    other = Claim(ids(11))  # there is a frame for one page
    tier.fetch(other)
    tier.release(other)
    assert not outcome
    tier.release(first)
    assert joined(thread, outcome) is None
    assert tier.directory.arrays.frame_of[3:6].all()
    tier.wait(second)
    tier.release(second)


def test_who_announces_too_much_waits_for_who_fetches(tiers):
    tier, _, _ = tiers(2, look_ahead=1)
    claims = Queue()

    def announce():
        for batch_index in range(20):
            claims.put(tier.announce(batch_index, [ids(batch_index % ROWS)]))

    thread, outcome = in_thread(announce)
    parked(tier)
    assert 1 <= claims.qsize() <= 2
    for _ in range(20):
        claim = claims.get(timeout=PATIENCE)
        tier.fetch(claim)
        tier.wait(claim)
        tier.release(claim)
    assert joined(thread, outcome) is None


def test_a_batch_that_the_memory_can_not_hold_is_refused_with_what_it_takes(tiers):
    tier, _, _ = tiers(3)
    with pytest.raises(ConfigError, match=r"storage.memory: batch 5 uses 4 pages .* 3: 1 MiB are needed at least"):
        tier.announce(5, [ids(0, 1, 2, 3)])
    tier.announce(5, [ids(0, 1, 2)])


def test_pages_that_are_only_read_go_before_those_that_are_trained(tiers):
    """An evaluation, or a checkpoint, goes through the whole table."""
    tier, (store,), disk = tiers(4)
    write(store, 0, 7), write(store, 1, 8)
    for row in range(2, ROWS):
        read(store, row)
    disk.told.clear()
    assert (read(store, 0), read(store, 1)) == (7, 8) and disk.told == []
