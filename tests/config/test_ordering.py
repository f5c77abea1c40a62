"""Orderings that can't be are refused with the key's name."""

import pytest

from marius_oac.config.link_prediction import Config
from marius_oac.errors import ConfigError

MINIMAL = {"data": {"path": "g"}}


@pytest.mark.parametrize(
    ("ordering", "expected"),
    [
        ("{kind: hilbert}", "kind: must be 'shuffle', 'beta' or 'comet', not 'hilbert'"),
        ("{partitions: 8}", "partitions: set, but ordering.kind is 'shuffle'"),
        ("{kind: shuffle, buffer: 8}", "buffer: set, but ordering.kind is 'shuffle'"),
        ("{logical: 8}", "logical: set, but ordering.kind is 'shuffle'"),
        ("{kind: beta}", "partitions: 'beta' needs this key"),
        ("{kind: comet, partitions: 8}", "buffer: 'comet' needs this key"),
        ("{kind: beta, partitions: 8, buffer: 4, logical: 4}", "logical: set, but ordering.kind is 'beta'"),
        ("{kind: beta, partitions: 2, buffer: 2}", "partitions: must be greater than or equal to 3, not 2"),
        ("{kind: beta, partitions: 1025, buffer: 2}", "partitions: must be less than or equal to 1024, not 1025"),
        ("{kind: beta, partitions: 8, buffer: 1}", "buffer: must be greater than or equal to 2, not 1"),
        ("{kind: beta, partitions: 8, buffer: 8}", "buffer: 8 of 8 partitions; must be fewer than all"),
        ("{kind: beta, partitions: 8, buffer: 9}", "buffer: 9 of 8 partitions; must be fewer than all"),
        ("{kind: beta, partitions: yes, buffer: 9}", "partitions: must be an integer, not true"),
        ("{kind: beta, partitions: 8.5, buffer: 4}", "partitions: must be an integer, not 8.5"),
        ("{kind: comet, partitions: 8, buffer: 3}", "logical: 2 x 8 / 3 does not divide 8; set this key"),
        ("{kind: comet, partitions: 9, buffer: 3}", "logical: 2 x 9 / 3 does not divide 9; set this key"),
        ("{kind: comet, partitions: 8, buffer: 4, logical: 3}", "logical: 3 groups do not divide 8 partitions"),
        ("{kind: comet, partitions: 12, buffer: 3, logical: 6}",
         "logical: groups of 2, of which 3 in the buffer must be two or more"),
        ("{kind: comet, partitions: 12, buffer: 4, logical: 3}",
         "logical: groups of 4, of which 4 in the buffer must be two or more"),
    ],
)  # fmt: skip
def test_one_line_names_the_key(ordering, expected):
    with pytest.raises(ConfigError) as error:
        Config.build(MINIMAL, [f"training.ordering={ordering}"])
    assert str(error.value) == f"--set training.ordering.{expected}"


def test_all_nodes_as_negatives_need_all_partitions():
    overrides = ["training.ordering={kind: beta, partitions: 8, buffer: 4}", "training.negatives.all=true"]
    with pytest.raises(ConfigError) as error:
        Config.build(MINIMAL, overrides)
    assert str(error.value).startswith("--set training.ordering.kind: 'beta' draws negatives from the partitions in")


@pytest.mark.parametrize(
    ("ordering", "groups", "held"),
    [
        ({"kind": "beta", "partitions": 9, "buffer": 4}, 9, 4),
        ({"kind": "comet", "partitions": 16, "buffer": 4}, 8, 2),
        ({"kind": "comet", "partitions": 9, "buffer": 6}, 3, 2),
        ({"kind": "comet", "partitions": 12, "buffer": 6, "logical": 4}, 4, 2),
        ({"kind": "comet", "partitions": 12, "buffer": 6, "logical": 12}, 12, 6),
    ],
)
def test_what_moves_as_one(ordering, groups, held):
    config = Config.build({**MINIMAL, "training": {"ordering": ordering}})
    assert (config.training.ordering.groups, config.training.ordering.groups_in_buffer) == (groups, held)
    assert config.replace("seed=1").training.ordering == config.training.ordering
