"""Click logs over nodes: what is refused."""

import pytest

from marius_oac.errors import ConfigError
from marius_oac.nodes.shards.placement import Placement
from marius_oac.runs.spread.contract import Part
from marius_oac.tasks.ctr.task import start_ctr_task
from marius_oac.training.cluster import data_digest
from tests.click_logs import ctr_config, small_log


def test_rare_keys_share_a_row_on_one_node_alone(tmp_path):
    """Over several the saved keys would hold one more than once, which nobody can load."""

    def check(num_nodes, admit_after):
        config = ctr_config(small_log(tmp_path / "day.parquet"), f"keys.admit_after={admit_after}")
        start_ctr_task(config)[0].spread(Part(Placement.by_number(num_nodes), 0)).check()

    check(2, 1)
    check(1, 2)
    with pytest.raises(ConfigError, match="keys.admit_after"):
        check(2, 2)


def test_nodes_with_other_files_under_the_same_names_are_told_apart(tmp_path):
    def digest(**changed):
        config = ctr_config(small_log(tmp_path / "day.parquet", **changed))
        return data_digest(start_ctr_task(config)[0])

    assert digest() == digest() and len({digest(), digest(rows=301), digest(seed=1)}) == 3
