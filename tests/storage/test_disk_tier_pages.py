"""Pages of the disk tier in their files: damage is found, a checkpoint's stay, what was never written takes no disk."""

import numpy as np
import pytest

from marius_oac.errors import InputError
from marius_oac.storage.disk.files import HEADER_BYTES
from tests.storage.tiers import LAYOUT, PAGE, ROWS, read, write


def saved_and_forgotten(tier, names=("rows",)):
    """As a run does that goes on from a checkpoint."""
    tier.flush(sync=True)
    saved = {name: tier.saved(name, ROWS) for name in names}
    tier.forget()
    assert not tier.slot_of.any() and not tier.checksum_of.any()
    for name in names:
        tier.restore(name, saved[name]["slots"], saved[name]["checksums"])
    return saved


def overwrite(disk, slot, content, offset=0):
    with open(disk.path_of(slot), "r+b") as file:
        file.seek(HEADER_BYTES + slot * PAGE + offset)
        file.write(content)


def bytes_in_use(tier):
    return tier.metrics()["disk.bytes_in_use"]


def content_of(disk, slot):
    return disk.path_of(slot).read_bytes()[HEADER_BYTES + slot * PAGE :][:PAGE]


@pytest.mark.parametrize("damage", ["a bit", "torn", "stale", "misplaced", "zeros"])
def test_a_page_that_is_not_what_was_written_is_named(tiers, damage):
    tier, stores, disk = tiers(4, tables=("one", "two"))
    for number, store in enumerate(stores):
        for row in range(ROWS):
            write(store, row, 100 * number + row + 1)
    old = saved_and_forgotten(tier, ("one", "two"))
    before = content_of(disk, int(old["two"]["slots"][5]))
    write(stores[1], 5, 300)
    slots = saved_and_forgotten(tier, ("one", "two"))["two"]["slots"]
    slot = int(slots[5])
    good = content_of(disk, slot)
    content = {
        "a bit": good[:77] + bytes([good[77] ^ 2]) + good[78:],
        "torn": good[:2048] + before[2048:],
        "stale": before,
        "misplaced": content_of(disk, int(slots[6])),
        "zeros": bytes(PAGE),
    }[damage]
    assert content != good
    overwrite(disk, slot, content)
    assert read(stores[0], 5) == 6 and read(stores[1], 6) == 107
    with pytest.raises(InputError) as caught:
        read(stores[1], 5)
    named = f"{disk.path_of(slot)}: slot {slot} is damaged or stale: rows 5 to 5 of table 'two'"
    assert str(caught.value) == f"{named} are not what was written there"
    with pytest.raises(InputError, match="is damaged or stale"):
        read(stores[0], 0)


def test_what_a_checkpoint_refers_to_stays_until_it_is_let_go(tiers):
    tier, (store,), disk = tiers(3)
    for row in range(ROWS):
        write(store, row, row + 1)
    tier.flush()
    kept = tier.saved("rows", ROWS)
    tier.keep(kept["slots"])
    contents = [content_of(disk, int(slot)) for slot in kept["slots"]]
    for number in range(200):
        write(store, number % ROWS, 100 + number)
    tier.flush()
    assert [content_of(disk, int(slot)) for slot in kept["slots"]] == contents
    assert set(tier.saved("rows", ROWS)["slots"].tolist()).isdisjoint(kept["slots"].tolist())
    assert bytes_in_use(tier) == 2 * ROWS * PAGE
    tier.let_go(kept["slots"])
    assert bytes_in_use(tier) == ROWS * PAGE


def test_rows_that_were_never_written_take_no_disk(tiers):
    tier, (store,), disk = tiers(2)
    expected = np.empty((ROWS, LAYOUT.width), np.float32)
    store.initial.fill(np.arange(ROWS), expected, LAYOUT.dimension)
    into, timestamps = np.empty_like(expected), np.zeros(ROWS, np.int64)
    for _ in range(2):
        store.read(np.arange(ROWS), into, timestamps)
        np.testing.assert_array_equal(into, expected)
    assert (disk.told, bytes_in_use(tier)) == ([], 0)
    assert ROWS < tier.metrics()["disk.pages_computed"] <= 2 * ROWS
    assert (tier.saved("rows", ROWS)["slots"] == -1).all()
