"""Which dense states an update takes over as they are, and which it converts."""

import pytest
import torch

from marius_oac.config.sections import OptimizerConfig
from marius_oac.models.compute.dense_moments import MERGED
from marius_oac.models.compute.update import Update

PLAIN, MOMENTS = {"a": torch.zeros(2)}, {"a": torch.zeros(2), f"a.{MERGED}": torch.ones(2)}


class Group:
    """Says what it is asked to convert."""

    def __init__(self):
        self.parameters, self.asked = (torch.zeros(2),), []

    def to_kstep(self, state, epsilon, batches):
        self.asked.append(("to", state, epsilon, batches))
        return MOMENTS

    def from_kstep(self, state, batches):
        self.asked.append(("from", state, batches))
        return PLAIN


@pytest.fixture
def update():
    made = Update.here(OptimizerConfig())
    for _ in range(2):
        made.own(Group())
    return made


@pytest.mark.parametrize(("state", "kstep"), [(PLAIN, False), (MOMENTS, True), ({}, False), ({}, True)])
def test_a_state_that_is_as_it_must_be_is_taken_as_it_is(update, state, kstep):
    assert update.adapted(state, kstep, 0.1, 7) is state
    assert not any(group.asked for group in update._groups)


def test_every_group_converts_what_the_one_before_it_made(update):
    assert update.adapted(PLAIN, True, 0.1, 7) is MOMENTS
    assert [group.asked for group in update._groups] == [[("to", PLAIN, 0.1, 7)], [("to", MOMENTS, 0.1, 7)]]
    for group in update._groups:
        group.asked.clear()
    assert update.adapted(MOMENTS, False, 0.1, 7) is PLAIN
    assert [group.asked for group in update._groups] == [[("from", MOMENTS, 7)], [("from", PLAIN, 7)]]
