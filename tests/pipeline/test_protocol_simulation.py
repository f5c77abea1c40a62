"""The protocol, simulated over random interleavings, with no threads: one list entry is one atomic event.

Each batch goes enter -> read row by row -> validate+compute -> write row by row -> finish. A row's value is the tuple
of the batches that updated it, in order, so a lost or misplaced update is visible.
"""

import random

import pytest

ROWS = 6


def simulate(seed, in_flight, batches, *, arrival=False, stalled=None, note_late=False, rows_per_batch=3):
    """Returns (store, expected store, computation order, greatest age of a cached row, greatest number cached)."""
    rng = random.Random(seed)
    touched = [sorted(rng.sample(range(ROWS), rows_per_batch)) for _ in range(batches)]
    store = {row: (-1, ()) for row in range(ROWS)}
    cache, noted, state = {}, {}, {}
    mft, finished, order, oldest_age, peak = -1, set(), [], 0, 0
    entered = 0
    while len(finished) < batches or mft < batches - 1:
        moves = []
        if entered < batches and mft >= entered - in_flight:
            moves.append(("enter", entered))
        for n, (phase, *_) in state.items():
            if phase == "read":
                moves.append(("read", n))
            elif phase == "ready":
                oldest = min(m for m in range(batches) if m not in order)
                starved = len(order) - oldest >= in_flight - 1
                if n == (oldest if not arrival or starved else n):
                    moves.append(("compute", n))
            elif phase == "write" and not (n == stalled and len(moves) and rng.random() < 0.98):
                moves.append(("write", n))
        event, n = rng.choice(moves)
        if event == "enter":
            entered += 1
            noted[n] = mft
            state[n] = ["read", {}, list(touched[n])]
        elif event == "read":
            row = state[n][2].pop(0)
            state[n][1][row] = store[row]
            if note_late and len(state[n][1]) == 2:  # some other event may lie between it and the first row
                noted[n] = mft
            if not state[n][2]:
                state[n][0] = "ready"
        elif event == "compute":
            safe, mine = min(noted.values()), noted.pop(n)
            timestamp = len(order)
            ages = [timestamp - t for t in cache]
            oldest_age = max([oldest_age, *ages])
            cache = {t: rows for t, rows in cache.items() if t > safe}
            peak = max(peak, len(cache))
            values = state[n][1]
            for t in sorted(t for t in cache if t > mine):
                for row in values:
                    if row in cache[t] and values[row][0] < t:
                        values[row] = (t, cache[t][row])
            new = {row: value + (n,) for row, (_, value) in values.items()}
            cache[timestamp] = new
            order.append(n)
            state[n] = ["write", (timestamp, new), list(touched[n])]
        else:
            timestamp, new = state[n][1]
            row = state[n][2].pop(0)
            if store[row][0] < timestamp:
                store[row] = (timestamp, new[row])
            if not state[n][2]:
                del state[n]
                finished.add(timestamp)
                while mft + 1 in finished:
                    mft += 1
    expected = {row: () for row in range(ROWS)}
    for n in order:
        for row in touched[n]:
            expected[row] += (n,)
    return {row: value for row, (_, value) in store.items()}, expected, order, oldest_age, peak


@pytest.mark.parametrize("in_flight", [1, 2, 5, 9])
@pytest.mark.parametrize("stalled", [None, 3])
def test_plan_order_equals_the_synchronous_run_within_the_bound(in_flight, stalled):
    for seed in range(60):
        store, expected, order, age, peak = simulate(seed, in_flight, 40, stalled=stalled)
        assert order == list(range(40))
        assert store == expected
        assert age <= in_flight  # S + 1; the papers' bound is 2S + 1
        assert peak <= in_flight - 1


@pytest.mark.parametrize("in_flight", [2, 5, 9])
@pytest.mark.parametrize("stalled", [None, 3])
def test_arrival_order_equals_the_replay_of_its_order_within_the_bound(in_flight, stalled):
    orders = set()
    for seed in range(60):
        store, expected, order, age, _ = simulate(seed, in_flight, 40, arrival=True, stalled=stalled)
        assert store == expected
        assert age <= 2 * in_flight - 1  # 2S + 1
        orders.add(tuple(order))
    assert len(orders) > 1


def test_noting_the_mft_after_the_first_row_breaks_the_guarantee():
    wrong = 0
    for seed in range(200):
        store, expected, *_ = simulate(seed, 5, 40, note_late=True)
        wrong += store != expected
    assert wrong > 0
