"""Bags that are pooled where their rows lie: what a trainer asks for, what a shard answers, and what both refuse."""

import functools
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marius_oac.data.logs.tables import FeatureTable, TableKeys
from marius_oac.nodes.shards.bags import Bags, Picks
from marius_oac.nodes.shards.pooling import pool_table
from marius_oac.nodes.shards.shard import Shard
from marius_oac.nodes.shards.table import KeyedTable
from marius_oac.nodes.transport.messages import Kind, Malformed, Push, array
from marius_oac.storage.keys.table import KeyTable
from marius_oac.storage.placement import unique_keys
from tests.nodes import naive_pooling as naive
from tests.nodes.naive_shards import shard_of_key
from tests.nodes.test_protocol_simulation import (
    DIMENSION,
    EPSILON,
    OPTIMIZER,
    RATE,
    Trainer,
    ask,
    bits,
    gradient,
    simulate,
    store,
)
from tests.nodes.test_shards import placements
from tests.nodes.wire import framed, tell

FEATURES = ("one", "two", "tags", "words", "parts", "seen")
VOCABULARY = {"one": 0, "two": 1, "tags": 0, "words": 2, "parts": 2, "seen": 1}
TABLE = FeatureTable("rows", DIMENSION, FEATURES[:2], FEATURES[2:5], FEATURES[5:], VOCABULARY, 50)


def integers(rng, *shape):
    """Float32 whose sums have no rounding."""
    return rng.integers(-8, 9, shape).astype(np.float32)


def batch(rng, examples, most, different):
    """Keys of each example, by feature: one, or a list of up to `most`."""
    lengths = {name: [1] * examples if name in TABLE.singles else rng.integers(0, most + 1, examples).tolist()
               for name in FEATURES}  # fmt: skip
    return {name: [rng.integers(0, different, length).tolist() for length in lengths[name]] for name in FEATURES}


def table_keys(examples):
    """As the planner lays the keys of a batch end to end."""
    keys = [key for name in FEATURES for each in examples[name] for key in each]
    vocabularies = [VOCABULARY[name] for name in FEATURES for each in examples[name] for _ in each]
    offsets = {name: np.cumsum([0, *map(len, examples[name])]) for name in FEATURES[2:]}
    return TableKeys(
        np.array(vocabularies, np.uint16), np.array(keys, np.int64), np.zeros(len(keys), np.uint32), offsets,
        len(examples["one"]),
    )  # fmt: skip


@settings(deadline=None, max_examples=80)
@given(
    placements(), st.integers(1, 6), st.integers(0, 5), st.integers(1, 12),
    st.sets(st.sampled_from(TABLE.bags), min_size=1), st.integers(0, 2**32),
)  # fmt: skip
def test_a_batch_has_the_sums_of_its_bags_and_its_keys_their_gradients(
    placement, examples, most, different, pooled, seed
):
    rng = np.random.default_rng(seed)
    asked = batch(rng, examples, most, different)
    keys = table_keys(asked)
    ids, firsts = unique_keys(*keys.asked)
    chosen = [name for name in TABLE.bags if name in pooled]
    route, indices = pool_table(TABLE, chosen, keys, ids, [part[firsts] for part in keys.asked], placement)
    rows = {(v, key): integers(rng, DIMENSION).tolist() for v in range(3) for key in range(different)}

    values, gradients = np.full((route.order.size, DIMENSION), np.nan), np.zeros((route.order.size, DIMENSION))
    told = [route.asked_of(node) for node in range(placement.num_nodes)]
    names = [list(zip(each[0].tolist(), each[1].tolist(), strict=True)) for each in told]
    sums = [naive.sums_of(each[4].tolist(), each[5].tolist()) for each in told]
    for node, (vocabularies, numbers, checks, singles, index, offsets) in enumerate(told):
        types = [each.dtype for each in (vocabularies, numbers, checks, singles, index, offsets)]
        assert types == [np.uint16, np.int64, np.uint32, np.int32, np.int32, np.int32]
        assert naive.fits(len(names[node]), singles.tolist(), index.tolist(), offsets.tolist())
        assert {int(placement.nodes[shard_of_key(*key, placement.num_shards)]) for key in names[node]} <= {node}
        own = naive.answered([rows[key] for key in names[node]], int(singles[0]), sums[node])
        values[route.places(node)] = np.reshape(own, (-1, DIMENSION))
    assert not np.isnan(values).any()

    expected = {key: np.zeros(DIMENSION) for key in rows}
    jagged = dict(zip((*TABLE.bags, *TABLE.sequences), (*indices.bags, *indices.sequences), strict=True))
    for name in FEATURES:
        if name in TABLE.singles:
            local = [[place] for place in indices.singles[TABLE.singles.index(name)].tolist()]
        else:
            local = naive.sums_of(jagged[name].values.tolist(), jagged[name].offsets.tolist())
        for bag, places in zip(asked[name], local, strict=True):
            own = [(VOCABULARY[name], key) for key in bag]
            total = sum((np.array(rows[key]) for key in own), np.zeros(DIMENSION))
            assert np.array_equal(values[places].sum(0), total)
            nodes = {int(placement.nodes[shard_of_key(*key, placement.num_shards)]) for key in own}
            assert len(places) == (len(nodes) if name in chosen else len(own))
            by_sum = integers(rng, DIMENSION)
            for key in own:
                expected[key] += by_sum
            for place in places:
                gradients[place] += by_sum
        if name in chosen:
            assert jagged[name].counts.tolist() == [len(bag) for bag in asked[name]]
    found = {key: np.zeros(DIMENSION) for key in rows}
    for node in range(placement.num_nodes):
        own = naive.spread(gradients[route.places(node)].tolist(), len(names[node]), int(told[node][3][0]), sums[node])
        for key, by_key in zip(names[node], own, strict=True):
            found[key] += by_key
    assert all(np.array_equal(found[key], expected[key]) for key in rows)


@settings(deadline=None, max_examples=80)
@given(st.integers(1, 8), st.integers(0, 8), st.lists(st.integers(1, 5), max_size=6), st.integers(0, 2**32))
def test_what_is_picked_of_rows(num_rows, singles, lengths, seed):
    """Keys may share a row, a bag may name a key twice."""
    rng = np.random.default_rng(seed)
    offsets = np.cumsum([0, *lengths])
    in_bags = rng.integers(0, num_rows, offsets[-1])
    index = np.concatenate((rng.integers(0, num_rows, singles), in_bags))
    rows = np.unique(index)
    local = np.searchsorted(rows, index)
    bags = Bags(singles, np.arange(singles, index.size, dtype=np.int32), offsets.astype(np.int32))
    picks, sums = Picks.of(local, bags), naive.sums_of(list(range(singles, index.size)), offsets.tolist())
    values = integers(rng, rows.size, DIMENSION)
    by_key = values[local].tolist()
    assert picks.values(values).tolist() == naive.answered(by_key, singles, sums)

    gradients = integers(rng, picks.size, DIMENSION)
    expected = np.zeros((rows.size, DIMENSION))
    np.add.at(expected, local, np.reshape(naive.spread(gradients.tolist(), index.size, singles, sums), (-1, DIMENSION)))
    assert np.array_equal(picks.by_row(gradients, rows.size), expected)

    marked = rng.random(rows.size) < 0.4
    places = picks.holding(marked)
    parts = [[number] for number in range(singles)] + sums
    assert places.tolist() == [at for at, part in enumerate(parts) if any(marked[local[n]] for n in part)]
    needed, fewer = picks.take(places).compact(rows.size)
    assert fewer.size == places.size and np.array_equal(np.unique(needed), needed)
    assert set(needed.tolist()) == {local[n] for at in places for n in parts[at]}
    assert np.array_equal(fewer.values(values[needed]), picks.values(values)[places])


def keyed(node=0):
    return KeyedTable(KeyTable(store(node, 0, 1000)), OPTIMIZER, pools=True)


class Pooler(Trainer):
    """Asks for (keys, bags)."""

    def asked(self, part):
        return [*ask(part[0]), *part[1].arrays()]

    def size(self, part):
        return part[1].singles + part[1].offsets.size - 1


def pull_of(rng, different=6):
    """Keys in any order, of which the last ones are in bags alone; sometimes nothing."""
    keys = rng.permutation(different)[: rng.integers(0, different + 1)].tolist()
    singles = int(rng.integers(0, len(keys) + 1))
    rest = list(range(singles, len(keys)))
    more = rng.integers(0, len(keys), rng.integers(0, 8)).tolist() if keys else []
    index = rng.permutation(np.array(rest + more, np.int32))
    inner = np.flatnonzero(rng.random(max(index.size - 1, 0)) < 0.5) + 1
    offsets = np.array([0, *inner, index.size] if index.size else [0], np.int32)
    return keys, Bags(singles, index, offsets)


def one_after_the_other(batches, shards, shares):
    """Rows float64 of each shard by key, by hand."""
    tables = [{} for _ in range(shards)]
    for number in range(len(batches[0])):
        for shard, rows in enumerate(tables):
            total = {}
            for mine in batches:
                for key in mine[number][shard][0]:
                    rows.setdefault(key, [initial(shard, key), np.zeros(DIMENSION)])
            for rank, mine in enumerate(batches):
                keys, bags = mine[number][shard]
                sums = naive.sums_of(bags.index.tolist(), bags.offsets.tolist())
                sent = naive.answered([rows[key][0] for key in keys], bags.singles, sums)
                sent = gradient(np.reshape(sent, (-1, DIMENSION)).astype(np.float32), number, rank)
                for key, by_key in zip(keys, naive.spread(sent.tolist(), len(keys), bags.singles, sums), strict=True):
                    total[key] = total.get(key, 0) + shares[rank] * np.array(by_key)
            for key, by_key in total.items():
                rows[key][1] += by_key**2
                rows[key][0] = rows[key][0] - RATE * by_key / (np.sqrt(rows[key][1]) + EPSILON)
    return tables


@functools.cache
def initial(node, key):
    return keyed(node).look_up(ask([key]))[0][0].astype(np.float64)


def tables_of(batches, *how):
    """What was trained, by table."""
    tables = [keyed(node) for node in range(len(batches[0][0]))]
    simulate(batches, len(tables), *how, make_trainer=Pooler, tables=tables)
    return tables


@given(st.data())
@settings(deadline=None, max_examples=40)
def test_any_interleaving_has_the_rows_of_one_batch_after_the_other(data):
    trainers, shards = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    ahead, count = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 8))
    seed = data.draw(st.integers(0, 2**32))
    rng = np.random.default_rng(seed)
    batches = [[[pull_of(rng) for _ in range(shards)] for _ in range(count)] for _ in range(trainers)]
    shares = [1 / trainers] * trainers
    found = tables_of(batches, shares, ahead, random.Random(seed).choice)
    plain = tables_of(batches, shares, 1, lambda events: events[0])
    assert [each.keys.fingerprint() for each in found] == [each.keys.fingerprint() for each in plain]
    assert bits([each.store for each in found]) == bits([each.store for each in plain])
    for table, rows in zip(found, one_after_the_other(batches, shards, shares), strict=True):
        values, known = table.look_up(ask(sorted(rows)))
        assert known.all()
        assert np.allclose(values, np.reshape([rows[key][0] for key in sorted(rows)], (-1, DIMENSION)), atol=1e-5)


def test_the_simulation_would_find_sums_that_were_not_patched(monkeypatch):
    rng = np.random.default_rng(1)
    batches = [[[pull_of(rng)] for _ in range(8)] for _ in range(2)]
    how = [0.5, 0.5], 3, random.Random(1).choice
    right = bits([each.store for each in tables_of(batches, *how)])
    monkeypatch.setattr(Picks, "holding", lambda self, rows: np.flatnonzero(rows[self.singles]))
    assert bits([each.store for each in tables_of(batches, *how)]) != right


KEYS = ask([5, 9, 7])


def pull(singles, index, offsets, keys=KEYS, kind=Kind.PULL):
    arrays = [np.array(each, np.int32) for each in (np.atleast_1d(singles), index, offsets)]
    return framed(kind, 0, [*keys, *arrays])


GOOD = pull(1, [1, 2, 0], [0, 2, 3])
BAD = {
    "no sums": framed(Kind.PULL, 0, KEYS),
    "a frame too few": GOOD[:-1],
    "a frame too many": [*GOOD, b""],
    "no number of single keys": pull([], [1, 2, 0], [0, 2, 3]),
    "two of them": pull([1, 1], [1, 2, 0], [0, 2, 3]),
    "fewer than none": pull(-1, [1, 2, 0], [0, 2, 3]),
    "more than all": pull(4, [1, 2, 0], [0, 2, 3]),
    "a key below 0": pull(1, [1, 2, -1], [0, 2, 3]),
    "no such key": pull(1, [1, 2, 3], [0, 2, 3]),
    "no offsets": pull(1, [1, 2, 0], []),
    "no first one": pull(1, [1, 2, 0], [1, 2, 3]),
    "a last one beyond the end": pull(1, [1, 2, 0], [0, 2, 4]),
    "a last one before the end": pull(1, [1, 2, 0], [0, 2]),
    "a sum of nothing": pull(1, [1, 2, 0], [0, 2, 2, 3]),
    "one that goes back": pull(1, [1, 2, 0], [0, 2, 1, 3]),
    "one that goes around": pull(1, [1, 2, 0], [0, 2**31 - 1, -2, 3]),
    "half an offset": [*GOOD[:-1], bytes(GOOD[-1])[:-2]],
    "half a key": [*GOOD[:-2], bytes(GOOD[-2])[:-2], GOOD[-1]],
    "a key that nothing is asked of": pull(0, [1, 2], [0, 2]),
    "keys that differ in number": pull(1, [1, 2, 0], [0, 2, 3], [KEYS[0][:2], *KEYS[1:]]),
    "sums to look at": pull(1, [1, 2, 0], [0, 2, 3], kind=Kind.LOOK_UP),
    "gradients before a pull": framed(Kind.PUSH, 0, [np.zeros((3, DIMENSION), np.float32)]),
}


@pytest.mark.parametrize("lockstep", [True, False], ids=["lockstep", "freely"])
@pytest.mark.parametrize("name", BAD)
def test_what_nobody_sends_is_refused_and_changes_nothing(name, lockstep):
    table = keyed()
    shard = Shard([table], 1, lockstep)
    with pytest.raises(Malformed):
        tell(shard, 0, BAD[name])
    assert not len(table.keys)
    assert tell(shard, 0, GOOD)[0][1].values[0].shape == (3, DIMENSION)
    before = table.keys.fingerprint()
    for count in (2, 4):
        with pytest.raises(Malformed):
            tell(shard, 0, framed(Kind.PUSH, 0, [np.ones((count, DIMENSION), np.float32)]))
    assert table.keys.fingerprint() == before
    push = Push(0, [np.ones((3, DIMENSION), np.float32)])
    assert [message.kind for _, message in tell(shard, 0, push.frames())] == [Kind.APPLIED]
    assert table.keys.fingerprint() != before


def mutated(chance, frames):
    """Of an honest pull: some bytes of its keys' numbers and sums, some lengths."""
    frames = [bytes(frame) for frame in frames]
    for _ in range(chance.randint(1, 3)):
        at = chance.choice([4, 5, 6, 6, 6])
        data = bytearray(frames[at])
        what = chance.randrange(4)
        if what == 0 and len(data) >= 4:
            data[4 * chance.randrange(len(data) // 4)] = chance.randrange(6)
        elif what == 1 and data:
            data[chance.randrange(len(data))] = chance.randrange(256)
        elif what == 2:
            data += chance.randrange(6).to_bytes(4, "little")
        else:
            del data[: chance.choice([4, 4, 1])]
        frames[at] = bytes(data)
    return frames


def test_a_fuzzed_pull_is_refused_or_gets_what_it_asks_for():
    chance, table = random.Random(5), keyed()
    shard, outcomes = Shard([table], 1, lockstep=False), {True: 0, False: 0}
    values = table.look_up(ask([5, 9, 7]))[0].tolist()
    for _ in range(3000):
        frames = mutated(chance, GOOD)
        shard.begin(0)
        try:
            numbers = [np.frombuffer(frame, np.int32).tolist() for frame in frames[4:]]
            good = naive.fits(3, *numbers)
        except ValueError:
            good = False
        outcomes[good] += 1
        if not good:
            with pytest.raises(Malformed):
                tell(shard, 0, frames)
            continue
        ((_, answer),) = tell(shard, 0, frames)
        expected = naive.answered(values, numbers[0][0], naive.sums_of(*numbers[1:]))
        assert np.allclose(answer.values[0], np.reshape(expected, (-1, DIMENSION)), atol=1e-6)
    assert min(outcomes.values()) > 100, outcomes


def test_rows_travel_as_int32_and_float32():
    """What the figures of benchmarks/nodes/pooling.py rest on."""
    sizes = [memoryview(frame).nbytes for frame in GOOD[1:]]
    assert sizes == [6, 24, 12, 4, 12, 12]
    ((_, answer),) = tell(Shard([keyed()], 1), 0, GOOD)
    assert array(answer.frames()[1], np.float32, 3, DIMENSION).size == 3 * DIMENSION
