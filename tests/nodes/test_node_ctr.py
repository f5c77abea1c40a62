"""Click logs over nodes: where rows of rare keys lie, and data that differ."""

from collections import Counter
from contextlib import ExitStack

import numpy as np

from marius_oac.data.batches.rank_slice import RankSlice, with_share
from marius_oac.nodes.shards.placement import FEWEST_SHARDS, NUM_SHARDS, Placement, shard_of_keys
from marius_oac.runs.spread.contract import Part
from marius_oac.runs.spread.key_move import shard_of_rows
from marius_oac.runs.spread.keyed import shared_by_shard
from marius_oac.storage.keys.table import LAST_SHARED, NO_KEY, is_shared
from marius_oac.tasks.ctr.task import start_ctr_task
from marius_oac.training.cluster import data_digest
from tests.click_logs import ctr_config, small_log


def test_rare_keys_share_a_row_for_each_shard_that_lies_where_the_shard_does():
    """So the keys that share one are the same on any number of nodes, and its row moves with them."""
    keys = np.random.default_rng(1).integers(-(2**62), 2**62, 2000)
    vocabularies = np.arange(2000).astype(np.uint16) % 3
    every = set()
    for number, first in ((FEWEST_SHARDS, NO_KEY + 1), (NUM_SHARDS, NO_KEY + 3841)):
        shared, shards = shared_by_shard(number)(vocabularies, keys), shard_of_keys(vocabularies, keys, number)
        assert is_shared(shared).all() and not is_shared(keys).any()
        assert {*zip(shared.tolist(), shards.tolist(), strict=True)} == {(first + each, each) for each in {*shards}}
        assert np.array_equal(shard_of_rows(vocabularies, shared, number), shards)
        assert every.isdisjoint(range(first, first + number))  # a look-up tries both
        every.update(range(first, first + number))
    assert max(every) == LAST_SHARED and not is_shared(np.array([LAST_SHARED + 1, NO_KEY - 1])).any()


def test_nodes_with_other_files_under_the_same_names_are_told_apart(tmp_path):
    def digest(**changed):
        config = ctr_config(small_log(tmp_path / "day.parquet", **changed))
        return data_digest(start_ctr_task(config)[0])

    assert digest() == digest() and len({digest(), digest(rows=301), digest(seed=1)}) == 3


def test_a_pull_says_how_often_each_key_was_seen(tmp_path):
    config = ctr_config(small_log(tmp_path / "day.parquet"), "keys.admit_after=2")
    rows = start_ctr_task(config)[0].spread(Part(Placement.by_number(2), 0))
    with ExitStack() as stack:
        planner = rows.planner(stack)
        plan = planner.plan(3)
        routed = rows.routed(plan)
        for keys, route in zip(plan.keys, routed.routes, strict=True):
            vocabularies, numbers, _, counts = route.asked
            seen = Counter(zip(keys.vocabularies.tolist(), keys.keys.tolist(), strict=True))
            asked = zip(vocabularies.tolist(), numbers.tolist(), strict=True)
            assert dict(zip(asked, counts.tolist(), strict=True)) == seen and max(seen.values()) > 1
        lent = with_share(planner, RankSlice(0, 100)).plan(0)  # it has no example of its own, and is lent another's
        assert not lent.data.share and not rows.routed(lent).routes[0].asked[3].any()
