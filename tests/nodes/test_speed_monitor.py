"""Mode auto in a run: when it rests, what trainers tell each other, and that all decide alike."""

import math

import numpy as np
import pytest

from marius_oac.config.link_prediction import Config
from marius_oac.config.modes import NodesConfig
from marius_oac.errors import ConfigError
from marius_oac.nodes.sharded.speed_monitor import SpeedMonitor
from marius_oac.runs.peers import Peers
from marius_oac.types import BatchData

EVERY, SIZE = 8, 10


class World:
    """A trainer of two: its step takes seconds of its own clock, and the other says what it is told to say."""

    def __init__(self, **auto):
        self.now, self.seconds, self.other, self.told = 0.0, 1.0, (0.0, []), []
        config = NodesConfig(mode="auto", auto={"every": EVERY, **auto})
        self.speed_monitor = SpeedMonitor(config, 2, SIZE, lambda: self.now)
        self.peers, self.step = Peers(), self.speed_monitor.watch(self, lambda: 0.0)
        self.step._clock = lambda: self.now
        self.peers.gather = lambda value: self.told.append(value) or [value, list(self.other)]

    def compute(self, rows, data, timestamp):
        self.now += self.seconds
        return 0.0

    def train(self, first, end):
        """Half of each batch, as long as the other needs."""
        self.speed_monitor.begin(first)
        for number in range(first, end):
            self.step.compute([], BatchData(share=0.5), number)
        return self.speed_monitor.end(end, self.peers)


def test_a_decision_is_due_after_so_many_batches_wherever_the_pipeline_rests_meanwhile():
    world = World()
    assert world.speed_monitor.mode == "sync" and world.speed_monitor.rests(0) == EVERY
    assert world.train(0, 5) == [] and world.speed_monitor.rests(5) == EVERY
    world.now += 100  # an evaluation is none of the modes' business
    world.other = (16.0, [0.1] * 8)
    (line,) = world.train(5, EVERY)
    assert world.speed_monitor.rests(EVERY) == 2 * EVERY
    assert world.told == [[8.0, [1 / (0.5 * SIZE)] * 8]]  # seconds, and seconds per example of each batch
    assert (line["was"], line["mode"], line["examples_per_second"]) == ("sync", "sync", EVERY * SIZE / 16)
    assert line["reason"].startswith("trial") and not line["switches"]


def test_the_mode_that_was_decided_holds_for_the_next_batches():
    every, modes, first, rests = 200, [], 0, []
    world = World(every=every)
    for stretch in range(12):
        slow = 4.0 if 6 <= stretch < 9 else 1.0
        world.other = (every * max(1.0, slow), [slow / (0.5 * SIZE)] * every)
        end = world.speed_monitor.rests(first)
        (line,) = world.train(first, end)
        assert line["was"] == (modes[-1] if modes else "sync") and line["mode"] == world.speed_monitor.mode
        modes.append(line["mode"])
        rests.append(end - first)
        first = end
    assert modes[:4] == ["sync", "gba", "gba", "sync"]  # the trial
    assert "gba" in modes[6:9] and rests[7] == every // 4  # in a hurry to know whether it is slow indeed
    assert set(rests) == {every, every // 4}


@pytest.mark.parametrize("every, length", [(8, 32), (100, 125)])
def test_in_gba_all_rest_for_a_fiftieth_of_their_time_but_not_too_seldom(every, length):
    world, first, lengths = World(every=every), 0, []
    for _ in range(4):
        end = world.speed_monitor.rests(first)
        seconds = 4.0 if world.speed_monitor.mode == "sync" else 1.6
        world.other = (seconds * (end - first), [4.0 / (0.5 * SIZE)] * (end - first))
        world.train(first, end)
        lengths.append((world.speed_monitor.mode, world.speed_monitor.rests(end) - end))
        first = end
    # The slowest one's batch takes 4 s, fifty of them 200 s; in these all do (1 + 1 / 4) * 200 parts of two.
    assert lengths == [("sync", every), ("gba", every), ("gba", every), ("gba", length)]


def test_many_batches_are_told_in_few_numbers():
    world = World(every=1000)
    assert world.speed_monitor.rests(0) == 1000
    for number in range(1000):
        world.seconds = 1.0 + number / 1000
        world.train(number, number + 1)
    ((seconds, times),) = world.told
    assert (
        len(times) == 256
        and times == sorted(times)
        and math.isclose(np.mean(times), seconds / 1000 / (0.5 * SIZE), rel_tol=2e-3)
    )


def test_other_modes_decide_nothing():
    speed_monitor = SpeedMonitor(NodesConfig(mode="gba"), 2, SIZE)
    assert (speed_monitor.mode, speed_monitor.rests(7)) == (None, None)
    speed_monitor.begin(0)
    assert speed_monitor.end(EVERY, Peers()) == []


@pytest.mark.parametrize(
    "nodes, message",
    [
        ({"mode": "auto", "switch": [{"at": 5, "mode": "gba"}]}, "nodes.switch: with mode auto the run itself"),
        ({"switch": [{"at": 5, "mode": "auto"}]}, "'gba'"),
        ({"mode": "auto", "dense": {"kind": "kstep"}}, "nodes.dense.kind: 'kstep' is for mode sync"),
        ({"auto": {"margin": -0.1}}, "greater than or equal to 0"),
        ({"auto": {"every": 0}}, "greater than 0"),
    ],
)
def test_what_can_not_be_is_refused(nodes, message):
    with pytest.raises(ConfigError) as caught:
        Config.build({"data": {"path": "x"}, "nodes": nodes})
    assert message in str(caught.value) and "\n" not in str(caught.value)
