"""Which numbers the processes of a run have to shards."""

import pytest

from marius_oac.nodes.groups.trainers import Crowd


@pytest.mark.parametrize(
    "trains, outside, peers, counts",
    [
        ([True, True], {}, [0, 1], (2, 2, 2, [])),
        ([True, False, True, False], {"outside": 2}, [0, 2, 1, 3], (2, 4, 6, [1, 3])),
        ([False, True], {"outside": 1}, [1, 0], (1, 2, 3, [0])),
    ],
)
def test_trainers_come_before_those_that_only_serve(trains, outside, peers, counts):
    crowd = Crowd(trains, **outside)
    assert [crowd.peer(rank) for rank in range(len(trains))] == peers
    assert (crowd.within, crowd.trainers, crowd.own, crowd.serving) == counts
