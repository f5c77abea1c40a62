"""Compiled operations on whole pages: moving them between memory and files, copying them, their checksums.

Guarantees:
- `copy_page` copies every row as it was at one moment (reading rows as `kernels.read` does) and no lock bit.
- A checksum is of the page's bytes and its number within its table. A change within any one aligned word of 8 bytes
  always changes it; the bytes of another moment, or of another page, have it with a probability of about 2**-64.
  It is no defence against deliberate changes: bit 63 of a word and bit 30 of the fourth word after it cancel out.
- Nothing is checked: addresses and slots are the caller's.
"""

import numpy as np

from marius_oac.kernels.cpu import atomics
from marius_oac.kernels.cpu.async_io import VECTORS, prepare, submit_and_wait
from marius_oac.kernels.cpu.jit import compiled, inlined
from marius_oac.kernels.cpu.system_calls import preadv, pwritev

SLOTS_PER_SEGMENT = 256
"""Number of consecutive slots in one file; the next segment is in the next file."""
MOST_PAGES_AT_ONCE = 64
SHORT_READ = 1 << 20  # no errno: the file ends before the page does

_LOCKED = 1
_SPINS_BEFORE_YIELD = 64
_INTERRUPTED = 4  # EINTR
_EXPONENT_16, _EXPONENT_32 = np.uint16(0x7F80), np.uint32(0x7F800000)
# Multipliers of xxHash64.
_PRIME_1, _PRIME_2 = np.uint64(0x9E3779B185EBCA87), np.uint64(0xC2B2AE3D27D4EB4F)
_PRIME_3 = np.uint64(0x165667B19E3779F9)


@inlined
def _rotated(value):
    return (value << np.uint64(31)) | (value >> np.uint64(33))


@compiled
def checksum(address, num_bytes, page):
    """Four lanes of `h = rotl((h ^ word) * odd)`, each step of which is a bijection of h and of the word."""
    seed = np.uint64(page) * _PRIME_3
    a, b, c, d = seed ^ _PRIME_1, seed ^ _PRIME_2, seed + _PRIME_1, seed + _PRIME_2
    for i in range(0, num_bytes // 8, 4):
        a = _rotated((a ^ atomics.get_uint64(address, i)) * _PRIME_1)
        b = _rotated((b ^ atomics.get_uint64(address, i + 1)) * _PRIME_1)
        c = _rotated((c ^ atomics.get_uint64(address, i + 2)) * _PRIME_1)
        d = _rotated((d ^ atomics.get_uint64(address, i + 3)) * _PRIME_1)
    total = _rotated((a ^ seed) * _PRIME_2) ^ b
    total = _rotated(total * _PRIME_2) ^ c
    total = _rotated(total * _PRIME_2) ^ d
    total = _rotated(total * _PRIME_2)
    return total ^ (total >> np.uint64(29))


@compiled
def first_damaged(addresses, num_bytes, pages, checksums):
    """Index of the first page in memory whose checksum differs; -1 if all agree."""
    for i in range(pages.size):
        if checksum(addresses[i], num_bytes, pages[i]) != checksums[i]:
            return i
    return -1


@compiled
def first_locked(addresses, pages, shapes):
    """Index of the first page in memory that has a row with its lock bit set, or a word that is none; -1 if there is
    none. `copy_page` writes no such page, and a reader of such a row waits forever. `shapes` as of `copy_pages`."""
    for i in range(pages.size):
        table = shapes.shape[0] - 1
        while shapes[table, 0] > pages[i]:
            table -= 1
        for row in range(shapes[table, 1]):
            word = atomics.load(addresses[i] + row * shapes[table, 2])
            if word & _LOCKED or word < 0:
                return i
    return -1


@compiled
def copy_page(source, target, rows, row_bytes, page_bytes):
    """Copies a page of rows that others may be writing to; what lies behind its last row becomes zero."""
    for i in range(rows):
        at, to = source + i * row_bytes, target + i * row_bytes
        spins = 0
        while True:
            word = atomics.load(at)
            if word & _LOCKED == 0:
                atomics.copy_bytes(to, at, row_bytes)
                atomics.acquire_fence()
                if atomics.load(at) == word:
                    break
            spins += 1
            if spins % _SPINS_BEFORE_YIELD == 0:
                atomics.yield_thread()
        atomics.store(to, word)
    for i in range(rows * row_bytes // 8, page_bytes // 8):
        atomics.set_uint64(target, i, np.uint64(0))


@compiled
def _all_finite(address, rows, row_bytes, dimension, narrow, state_offset, state_width):
    """Whether no number of a page is NaN or infinite: the bits of their exponents are not all set."""
    wrong = 0  # counted to the end of a row: loops without an early exit are vectorised
    for i in range(rows):
        at = address + i * row_bytes
        if narrow:
            for j in range(dimension):
                wrong += (atomics.get_uint16(at + 8, j) & _EXPONENT_16) == _EXPONENT_16
        else:
            for j in range(dimension):
                wrong += (atomics.get_uint32(at + 8, j) & _EXPONENT_32) == _EXPONENT_32
        for j in range(state_width):
            wrong += (atomics.get_uint32(at + state_offset, j) & _EXPONENT_32) == _EXPONENT_32
    return wrong == 0


@compiled
def copy_pages(sources, target, page_bytes, pages, shapes, checksums):
    """Copies pages one behind the other to `target` and fills in their checksums.

    `shapes`, int64 [tables, 7], has for each table its first page, rows of a page, row bytes, dimension, whether values
    are bfloat16, and offset and width of the state, by ascending first page.

    Returns:
        The first page that holds a number that is NaN or infinite, or -1.
    """
    found = -1
    for i in range(pages.size):
        table = shapes.shape[0] - 1
        while shapes[table, 0] > pages[i]:
            table -= 1
        rows, row_bytes, to = shapes[table, 1], shapes[table, 2], target + i * page_bytes
        copy_page(sources[i], to, rows, row_bytes, page_bytes)
        checksums[i] = checksum(to, page_bytes, pages[i] - shapes[table, 0])
        if found < 0 and not _all_finite(
            to, rows, row_bytes, shapes[table, 3], shapes[table, 4] != 0, shapes[table, 5], shapes[table, 6]
        ):
            found = pages[i]
    return found


@compiled
def locate(rows, rows_per_page, first_page, frame_of, page_bytes, row_bytes, offsets):
    """The place of each row in the memory of the frames, in bytes; all of their pages are held."""
    for i in range(rows.size):
        page = rows[i] // rows_per_page
        within = rows[i] - page * rows_per_page
        offsets[i] = (frame_of[first_page + page] - 1) * page_bytes + within * row_bytes


@compiled
def mark(rows, rows_per_page, first_page, frame_of, dirty):
    """The rows have been written to: their pages differ from what is on the disk."""
    for i in range(rows.size):
        dirty[frame_of[first_page + rows[i] // rows_per_page] - 1] = 1


@compiled
def pages_of(rows, rows_per_page, first_page, pages):
    """The pages of ascending rows, without repetition, into `pages`; returns how many."""
    count, last = 0, -1
    for i in range(rows.size):
        page = first_page + rows[i] // rows_per_page
        if page != last:
            pages[count], last = page, page
            count += 1
    return count


@compiled
def _place(slot, descriptors, page_bytes, header_bytes):
    """(file descriptor, offset) of a slot."""
    segment = slot // SLOTS_PER_SEGMENT
    within = segment // descriptors.size * SLOTS_PER_SEGMENT + slot % SLOTS_PER_SEGMENT
    return descriptors[segment % descriptors.size], header_bytes + within * page_bytes


@compiled
def _run_from(slots, at):
    """How many slots from `at` on follow each other in one file, as far as they are moved in one request."""
    run = 1
    while (
        at + run < slots.size
        and run < MOST_PAGES_AT_ONCE
        and slots[at + run] == slots[at] + run
        and slots[at + run] % SLOTS_PER_SEGMENT != 0
    ):
        run += 1
    return run


@compiled
def transfer(write, descriptors, slots, addresses, page_bytes, header_bytes, vectors, counts):
    """Moves pages between memory and files, slots that follow each other in one call.

    Args:
        slots: int64 [n]; ascending where calls are to be merged.
        addresses: int64 [n] of the pages in memory.
        vectors: int64 [2 * MOST_PAGES_AT_ONCE], a work array.
        counts: int64 [1], raised by the number of calls.

    Returns:
        (-1, 0), or the index of the page that failed and its errno, or `SHORT_READ`.

    Where a page was written in part, the rest follows: the system then says why, or does it.
    """
    at = done = 0  # bytes of the page at `at`
    vector_address = atomics.address_of(vectors)
    while at < slots.size:
        run = 1 if done else _run_from(slots, at)
        for i in range(run):
            vectors[2 * i], vectors[2 * i + 1] = addresses[at + i], page_bytes
        vectors[0], vectors[1] = addresses[at] + done, page_bytes - done
        descriptor, offset = _place(slots[at], descriptors, page_bytes, header_bytes)
        if write:
            moved = pwritev(descriptor, vector_address, run, offset + done)
        else:
            moved = preadv(descriptor, vector_address, run, offset)
        counts[0] += 1
        if moved == -_INTERRUPTED:
            continue
        if moved < 0:
            return at, -moved
        if moved == 0 or (moved < page_bytes and not write):  # the file ends here
            return at, SHORT_READ
        at, done = at + (done + moved) // page_bytes, (done + moved) % page_bytes
        if not write:
            done = 0  # a part of a run: the next call begins with a page
    return -1, 0


@compiled
def transfer_async(write, handle, window, descriptors, slots, addresses, page_bytes, header_bytes, room, counts):
    """`transfer` of at most `MOST_REQUESTS` pages, up to `window` requests at once (see `async_io`).

    Args:
        room: int64 [ROOM], of the queue with this handle.
    """
    at, requests = 0, 0
    while at < slots.size:
        run = _run_from(slots, at)
        for i in range(at, at + run):
            room[VECTORS + 2 * i], room[VECTORS + 2 * i + 1] = addresses[i], page_bytes
        descriptor, offset = _place(slots[at], descriptors, page_bytes, header_bytes)
        prepare(room, requests, write, descriptor, at, run, offset, at * (MOST_PAGES_AT_ONCE + 1) + run)
        requests += 1
        at += run
    counts[0] += requests
    tags, results = np.empty(requests, np.int64), np.empty(requests, np.int64)
    failed = submit_and_wait(handle, room, requests, window, tags, results)
    if failed:
        return 0, failed
    for i in range(requests):
        at, run = tags[i] // (MOST_PAGES_AT_ONCE + 1), tags[i] % (MOST_PAGES_AT_ONCE + 1)
        if results[i] < 0:
            return at, -results[i]
        if results[i] < run * page_bytes:
            return at + results[i] // page_bytes, SHORT_READ  # of a write, too: see `PageFiles`
    return -1, 0
