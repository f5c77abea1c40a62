"""Where a pass over a loader is, by what was drawn of it and what was trained."""

from types import SimpleNamespace

import pytest

from marius_oac.torch.planner import Fed
from marius_oac.torch.supply import Supply


@pytest.mark.parametrize("pad", [False, True])
def test_a_pass_is_finished_once_its_last_batch_is_trained_not_once_it_is_drawn(pad):
    home = SimpleNamespace(most=lambda drawn: drawn, drawn=lambda units, until, error: (units, error))
    supply = Supply(home, 7, lambda number, until, unit: Fed(number, until, unit, []), "abc", 1, None, pad)
    while not supply.over:
        supply.draw(2)
    assert supply.next == 10
    assert [supply.position(trained, 7 + trained).finished for trained in range(4)] == [False, False, False, True]
