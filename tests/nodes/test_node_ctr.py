"""Click logs over nodes: where rows of rare keys lie, and data that differ."""

from collections import Counter
from contextlib import ExitStack, nullcontext

import numpy as np
import pytest

from marius_oac.data.batches.rank_slice import RankSlice, with_share
from marius_oac.nodes.spread.contract import Part
from marius_oac.nodes.spread.key_move import shard_of_rows
from marius_oac.nodes.spread.spread import num_shards, spread
from marius_oac.nodes.training.agreed import data_digest
from marius_oac.runtime.machine.binding import UNBOUND
from marius_oac.storage.key_tables import shared_by_shard
from marius_oac.storage.keys.table import LAST_SHARED, NO_KEY, is_shared
from marius_oac.storage.placement import FEWEST_SHARDS, NUM_SHARDS, Placement, shard_of_keys
from marius_oac.tasks.ctr.task import start_ctr_task
from tests.click_logs import ctr_config, small_log


def test_rare_keys_share_a_row_for_each_shard_that_lies_where_the_shard_does():
    """So the keys that share one are the same on any number of nodes, and its row moves with them."""
    keys = np.random.default_rng(1).integers(-(2**62), 2**62, 2000)
    vocabularies = np.arange(2000).astype(np.uint16) % 3
    shared, shards = shared_by_shard(vocabularies, keys), shard_of_keys(vocabularies, keys, FEWEST_SHARDS)
    assert is_shared(shared).all() and not is_shared(keys).any() and LAST_SHARED - NO_KEY == FEWEST_SHARDS
    assert {*zip(shared.tolist(), shards.tolist(), strict=True)} == {(NO_KEY + 1 + each, each) for each in {*shards}}
    assert np.array_equal(shard_of_rows(vocabularies, shared, FEWEST_SHARDS), shards)


@pytest.mark.parametrize("after, number", [(1, NUM_SHARDS), (2, FEWEST_SHARDS)])
def test_a_run_whose_keys_wait_has_few_shards(tmp_path, after, number):
    """Else the rows that they share would fill a small table, or lie on another node than the keys do."""
    task, _ = start_ctr_task(ctr_config(small_log(tmp_path / "day.parquet"), f"keys.admit_after={after}"))
    assert num_shards(task.tables()) == number
    rows = spread(task.tables(), Part(Placement.by_number(2, NUM_SHARDS), 0))
    with ExitStack() as stack, pytest.raises(ValueError, match="lie on several nodes") if after > 1 else nullcontext():
        rows.make_tables(stack, tmp_path, UNBOUND)


def test_nodes_with_other_files_under_the_same_names_are_told_apart(tmp_path):
    def digest(**changed):
        config = ctr_config(small_log(tmp_path / "day.parquet", **changed))
        return data_digest(start_ctr_task(config)[0])

    assert digest() == digest() and len({digest(), digest(rows=301), digest(seed=1)}) == 3


def test_a_pull_says_how_often_each_key_was_seen(tmp_path):
    config = ctr_config(small_log(tmp_path / "day.parquet"), "keys.admit_after=2")
    rows = spread(start_ctr_task(config)[0].tables(), Part(Placement.by_number(2), 0))
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
