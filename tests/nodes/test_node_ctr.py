"""Click logs over nodes: what is refused."""

from types import SimpleNamespace

import pytest

from marius_oac.errors import ConfigError
from marius_oac.nodes.shards.placement import Placement
from marius_oac.tasks.ctr.sharded import ShardedCtrTask
from marius_oac.tasks.ctr.task import start_ctr_task
from marius_oac.training.cluster import data_digest
from tests.click_logs import ctr_config, small_log


def check(num_nodes, **keys):
    config = SimpleNamespace(keys=SimpleNamespace(**({"drop_after": 0, "admit_after": 1} | keys)))
    ShardedCtrTask._check(SimpleNamespace(config=config, placement=Placement.by_number(num_nodes)))


def test_rare_keys_share_a_row_on_one_node_alone():
    """Over several the saved keys would hold one more than once, which nobody can load."""
    check(2)
    check(1, admit_after=2)
    with pytest.raises(ConfigError, match="keys.admit_after"):
        check(2, admit_after=2)


def test_dropping_keys_is_refused():
    with pytest.raises(ConfigError, match="keys.drop_after"):
        check(1, drop_after=1)


def test_nodes_with_other_files_under_the_same_names_are_told_apart(tmp_path):
    def digest(**changed):
        config = ctr_config(small_log(tmp_path / "day.parquet", **changed))
        return data_digest(start_ctr_task(config)[0])

    assert digest() == digest() and len({digest(), digest(rows=301), digest(seed=1)}) == 3
