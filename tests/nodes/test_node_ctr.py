"""Click logs over nodes: what is refused."""

from types import SimpleNamespace

import pytest

from marius_oac.errors import ConfigError
from marius_oac.node_ctr import CtrNodes
from marius_oac.nodes.shards import Placement


def check(num_nodes, **keys):
    config = SimpleNamespace(keys=SimpleNamespace(**({"drop_after": 0, "admit_after": 1} | keys)))
    CtrNodes._check(SimpleNamespace(config=config, placement=Placement.by_number(num_nodes)))


def test_rare_keys_share_a_row_on_one_node_alone():
    """Over several the saved keys would hold one more than once, which nobody can load."""
    check(2)
    check(1, admit_after=2)
    with pytest.raises(ConfigError, match="keys.admit_after"):
        check(2, admit_after=2)


def test_dropping_keys_is_refused():
    with pytest.raises(ConfigError, match="keys.drop_after"):
        check(1, drop_after=1)
