import numba
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from marius_oac.kernels.cpu.permutation import MAX_SIZE
from marius_oac.storage.keys.index import initial_keys
from marius_oac.storage.placement import (
    FEWEST_SHARDS,
    NUM_SHARDS,
    IdPlaces,
    Placement,
    route_keys,
    shard_of_keys,
    unique_keys,
)
from tests.data.test_random import chi_square_is_plausible, needs_jit
from tests.nodes import naive_shards as naive

SMALL = 40 if numba.config.DISABLE_JIT else 2000
ids_of_keys = st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 3)
keys_in_batch = st.lists(
    st.tuples(st.integers(0, 3) | st.just(65535), ids_of_keys, st.sampled_from([0, 7])), max_size=60
)


@st.composite
def placements(draw, most_shards=12, most_nodes=5):
    num_nodes = draw(st.integers(1, most_nodes))
    nodes = draw(st.lists(st.integers(0, num_nodes - 1), min_size=1, max_size=most_shards))
    return Placement(np.array(nodes), num_nodes)


def arrays(keys: list[tuple]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return tuple(np.array([key[i] for key in keys], dtype) for i, dtype in enumerate((np.uint16, np.int64, np.uint32)))


@settings(deadline=None, max_examples=60)
@given(keys_in_batch, st.integers(1, 1 << 16))
def test_a_keys_shard_is_the_naive_one(keys, num_shards):
    vocabularies, numbers, _ = arrays(keys)
    shards = shard_of_keys(vocabularies, numbers, num_shards)
    assert shards.dtype == np.int64
    assert shards.tolist() == [naive.shard_of_key(v, k, num_shards) for v, k, _ in keys]


def test_shards_stay_what_they_were():
    """Checkpoints refer to them."""
    vocabularies, keys = np.array([0, 1, 0, 65535], np.uint16), np.array([0, 0, -1, 2**62])
    assert shard_of_keys(vocabularies, keys, FEWEST_SHARDS).tolist() == [255, 118, 246, 180]
    assert (shard_of_keys(vocabularies, keys, NUM_SHARDS) >> 4).tolist() == [255, 118, 246, 180]
    ids, of_an_earlier_version = np.array([0, 1, 2, 999]), Placement.by_number(3, FEWEST_SHARDS)
    assert IdPlaces(1000, of_an_earlier_version).shard_of(ids).tolist() == [118, 73, 145, 63]
    assert IdPlaces(1000, Placement.by_number(3)).shard_of(ids).tolist() == [1892, 1183, 2322, 1015]


@needs_jit
@pytest.mark.parametrize("step", [1, 2**32, 0xD1342543DE82EF95], ids=["dense", "high bits", "spread"])
def test_shards_are_even_and_independent_of_the_index(step):
    keys = (np.arange(300_000, dtype=np.uint64) * np.uint64(step)).view(np.int64)
    for vocabulary in (0, 7):
        vocabularies = np.full(keys.size, vocabulary, np.uint16)
        shards = shard_of_keys(vocabularies, keys, NUM_SHARDS)
        assert chi_square_is_plausible(np.bincount(shards, minlength=NUM_SHARDS), keys.size / NUM_SHARDS)
        # The index of a node finds the keys of its shards spread over all its own shards: high word of another hash.
        of_index = initial_keys(vocabularies, keys).view(np.uint64) >> np.uint64(60)
        together = np.bincount((shards % 16) * 16 + of_index.astype(np.int64), minlength=256)
        assert chi_square_is_plausible(together, keys.size / 256)
    others = shard_of_keys(np.full(keys.size, 8, np.uint16), keys, NUM_SHARDS)
    assert chi_square_is_plausible(np.bincount((shards % 16) * 16 + others % 16, minlength=256), keys.size / 256)


@settings(deadline=None, max_examples=60)
@given(st.integers(1, SMALL), placements())
@example(1, Placement(np.array([1, 0, 1]), 2))
@example(2, Placement(np.array([2, 0]), 4))
@example(SMALL, Placement.by_number(3, 300))
def test_every_id_lies_in_one_row_and_every_row_has_one_id(size, placement):
    places, ids = IdPlaces(size, placement), np.arange(size)
    nodes, rows = places.find(ids)
    assert nodes.dtype == np.int32 and rows.dtype == np.int64
    expected = naive.rows_by_node(size, placement.nodes.tolist(), placement.num_nodes)
    shards = places.shard_of(ids)
    assert np.array_equal(placement.nodes[shards], nodes)
    for node in range(placement.num_nodes):
        assert places.num_rows(node) == len(expected[node])
        assert places.ids_on(node, np.arange(places.num_rows(node))).tolist() == expected[node]
        for row, each in enumerate(expected[node]):
            assert (nodes[each], rows[each]) == (node, row)
        inside = [row for shard in placement.shards_of(node).tolist() for row in places.rows_of(shard)]
        assert inside == list(range(len(expected[node])))
    for shard in range(placement.num_shards):
        mine = places.ids_of(shard)
        assert rows[mine].tolist() == list(places.rows_of(shard)) and (shards[mine] == shard).all()
        assert mine.size == places.shard_sizes[shard]


@settings(deadline=None, max_examples=60)
@given(st.integers(1, MAX_SIZE), placements(most_shards=300), st.data())
@example(MAX_SIZE, Placement.by_number(7, 1 << 16), None)
@example(2**39 + 1, Placement.by_number(5), None)
def test_ids_of_large_graphs_are_found_again(size, placement, data):
    ids = [0, size - 1] if data is None else data.draw(st.lists(st.integers(0, size - 1), max_size=20))
    places = IdPlaces(size, placement)
    nodes, rows = places.find(np.array(ids, np.int64))
    assert [int(places.ids_on(n, rows[i : i + 1])[0]) for i, n in enumerate(nodes)] == ids


def test_a_shards_ids_do_not_depend_on_where_it_lies():
    one, other = IdPlaces(999, Placement.by_number(1, 16)), IdPlaces(999, Placement(np.arange(16)[::-1] // 4, 4))
    for shard in range(16):
        assert np.array_equal(one.ids_of(shard), other.ids_of(shard))


@settings(deadline=None, max_examples=60)
@given(placements(), keys_in_batch)
def test_routes_of_keys_are_stable_and_complete(placement, keys):
    route = route_keys(placement, *arrays(keys))
    nodes = [int(placement.nodes[naive.shard_of_key(v, k, placement.num_shards)]) for v, k, _ in keys]
    for node, places in enumerate(naive.grouped(nodes, placement.num_nodes)):
        assert route.places(node).tolist() == places
        asked = route.asked_of(node)
        assert [each.dtype for each in asked] == [np.uint16, np.int64, np.uint32]
        assert list(zip(*(each.tolist() for each in asked), strict=True)) == [keys[place] for place in places]
    assert route.offsets.tolist()[-1] == len(keys) == route.order.size


@settings(deadline=None, max_examples=60)
@given(st.integers(1, SMALL), placements(), st.data())
def test_routes_of_ids_ask_for_each_nodes_rows(size, placement, data):
    ids = data.draw(st.lists(st.integers(0, size - 1), max_size=50))
    places = IdPlaces(size, placement)
    nodes, rows = places.find(np.array(ids, np.int64))
    route = places.route(np.array(ids, np.int64))
    for node, expected in enumerate(naive.grouped(nodes.tolist(), placement.num_nodes)):
        assert route.places(node).tolist() == expected
        assert route.asked_of(node)[0].tolist() == rows[expected].tolist()


@settings(deadline=None, max_examples=100)
@given(keys_in_batch)
@example([(0, 0, 0), (0, 0, 7), (0, 0, 0)])
def test_unique_keys_are_numbered_as_they_come(keys):
    local, firsts = unique_keys(*arrays(keys))
    assert local.dtype == firsts.dtype == np.int64
    assert (local.tolist(), firsts.tolist()) == naive.unique(keys)


@needs_jit
def test_unique_keys_of_a_large_batch():
    rng = np.random.default_rng(0)
    vocabularies, keys = rng.integers(0, 3, 50_000).astype(np.uint16), rng.integers(-5_000, 5_000, 50_000)
    local, firsts = unique_keys(vocabularies, keys, np.zeros(keys.size, np.uint32))
    pairs, first, of_pair = np.unique(keys * 3 + vocabularies, return_index=True, return_inverse=True)
    assert np.array_equal(np.sort(first), firsts)
    assert np.array_equal(pairs[of_pair], pairs[of_pair][firsts][local])


KEYS = (np.zeros(2, np.uint16), np.zeros(2, np.int64), np.zeros(2, np.uint32))


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: Placement(np.array([0, 2]), 2), "nodes must be 0 to 1, not 0 to 2"),
        (lambda: Placement(np.array([-1, 0]), 2), "nodes must be 0 to 1"),
        (lambda: Placement(np.empty(0), 2), "nodes must be"),
        (lambda: Placement.by_number(2, 65537), "nodes must be"),
        (lambda: IdPlaces(0, Placement.by_number(1)), "size must be"),
        (lambda: IdPlaces(MAX_SIZE + 1, Placement.by_number(1)), "size must be"),
        (lambda: IdPlaces(5, Placement.by_number(1)).find(np.array([5])), "ids must be 0 to 4"),
        (lambda: IdPlaces(5, Placement.by_number(1)).shard_of(np.array([-1])), "ids must be 0 to 4"),
        (lambda: IdPlaces(5, Placement.by_number(1)).route(np.array([1.0])), "ids must be int64"),
        (lambda: IdPlaces(5, Placement.by_number(1)).ids_on(0, np.array([5])), "rows must be 0 to 4"),
        (lambda: IdPlaces(5, Placement.by_number(1)).ids_on(0, np.array([-1])), "rows must be 0 to 4"),
        (lambda: shard_of_keys(KEYS[0], KEYS[1], 0), "num_shards must be"),
        (lambda: shard_of_keys(KEYS[0].astype(np.int64), KEYS[1], 9), "vocabularies must be uint16"),
        (lambda: unique_keys(KEYS[0], KEYS[1], KEYS[2][:1]), "checks must be uint32"),
        (lambda: route_keys(Placement.by_number(1), KEYS[0][:1], *KEYS[1:]), "vocabularies must be uint16"),
    ],
)
def test_what_is_out_of_range_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
