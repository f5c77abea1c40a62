"""How batches reach the trainers of a run over nodes: all trainers compute parts of the same batch in lockstep, or the
shards dispatch parts of batches, by the rules of a mode (`nodes.gba.modes`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from marius_oac.config.modes import ModeName, NodesConfig
from marius_oac.data.batches.rank_slice import RankSlice, SlicedPlanner, with_share
from marius_oac.nodes.dense.allreduce import AllReduce, bounds_of
from marius_oac.nodes.dense.contract import DenseAgreement
from marius_oac.nodes.gba.modes import make_mode
from marius_oac.nodes.groups.contract import Group
from marius_oac.nodes.groups.trainers import Crowd
from marius_oac.nodes.sharded.dense import share_dense
from marius_oac.nodes.sharded.peers import ClusterPeers
from marius_oac.nodes.sharded.speed_monitor import SpeedMonitor
from marius_oac.nodes.shards.dispatched_rows import DispatchedRows, Dispatching
from marius_oac.nodes.shards.exchange import RemoteSource
from marius_oac.nodes.shards.routed import RoutedPlanner
from marius_oac.runs.segments import Segments
from marius_oac.types import ServedDense, Step


class ShardedSegments(Segments):
    """Switches one trainer between lockstep and modes that dispatch batches.

    Args:
        config: the section.
        group, peers: the processes of the run.
        crowd: which of them train. carriers: ranks of those that carry rows.
        planner: of this trainer's batches. routed: the same with routes, which the pipeline uses.
        source: of the rows.
        dense: synchronises dense parameters; they are dispatched as well if it is `AllReduce`.
        served: the dense parameters; None: there are none.
        step: has them.
        speed_monitor: of this trainer.
    """

    def __init__(
        self,
        config: NodesConfig,
        group: Group,
        peers: ClusterPeers,
        crowd: Crowd,
        carriers: list[int],
        planner: SlicedPlanner,
        routed: RoutedPlanner,
        source: RemoteSource,
        dense: DenseAgreement,
        served: ServedDense | None,
        step: Step,
        speed_monitor: SpeedMonitor,
    ):
        self._config, self._group, self._peers, self._crowd, self._carriers = config, group, peers, crowd, carriers
        self._routed, self._source, self._dense, self._served = routed, source, dense, served
        self._step, self._speed_monitor = step, speed_monitor
        count = self._num_parts
        self._parts = [with_share(planner, RankSlice(each, count, dispatched=True)) for each in range(count)]
        self._outside = 0, 0.0

    @property
    def _num_parts(self) -> int:
        """M: the parts that a global batch is cut into where batches are dispatched."""
        return self._config.mode_options.parts or self._crowd.trainers

    @property
    def stop_requested(self) -> bool:
        """See `Segments.stop_requested`: whether a trainer outside the group was asked to stop."""
        return self._source.counts().get("stopped_max", 0) > 0

    def next_pause(self, batch: int) -> int | None:
        """See `Segments.next_pause`: the next switch of modes, or the next decision on one."""
        ends = [self._config.mode_ends(batch), self._speed_monitor.rests(batch)]
        return min((each for each in ends if each is not None), default=None)

    def begin(self, first: int) -> None:
        """See `Segments.begin`: starts the mode in which batches from `first` on are trained."""
        self._speed_monitor.begin(first)
        self.start(cast(ModeName, self._speed_monitor.mode or self._config.mode_at(first)))
        if self._source.dispatching and self._crowd.serving and self._step.dense_state():
            share_dense(self._peers, self._group, self._step)

    def start(self, mode: ModeName, elastic_worker: bool = False) -> None:
        """Trains the batches that follow in this mode. `elastic_worker`: this trainer may leave at any time."""
        source = self._source
        source.dispatching = None if mode == "sync" else self._dispatching(mode, elastic_worker)
        parts = self._parts if source.dispatching else []
        self._routed.dispatch(parts, lambda: cast(DispatchedRows, source.exchange).reserve())
        if isinstance(self._dense, AllReduce):
            self._dense.dispatched = source.dispatching is not None
        self._dense.start()

    def _dispatching(self, kind: ModeName, elastic_worker: bool) -> Dispatching:
        mode_options, parts, crowd = self._config.mode_options, self._num_parts, self._crowd
        mode = make_mode(kind, crowd.trainers, parts, 1, **mode_options.rules())
        bounds, carriers = bounds_of(self._served, len(self._carriers)), [crowd.peer(rank) for rank in self._carriers]
        return Dispatching(
            mode, parts, bounds, carriers, cast(AllReduce, self._dense), self._served, mode_options.window, crowd.own,
            elastic_worker,
        )  # fmt: skip

    def reached(self, planned: int) -> int:
        """See `Segments.reached`; processes that only serve rows do not know it themselves."""
        if not self._crowd.serving:
            return planned
        return int(max(self._peers.gather(planned if self._crowd.trains[self._group.rank] else 0)))

    def end(self, of_run: bool) -> None:
        """See `Segments.end`: brings dense parameters back from the shards; replicas agree once training has ended."""
        dispatching = self._source.dispatching
        if dispatching and self._served:
            self._served.take(self._source.dense_states(), dispatching.bounds)
        if of_run:
            self._dense.finish()
        else:
            self._dense.pause()

    def trained_outside(self) -> tuple[int, float]:
        """See `Segments.trained_outside`; known where batches are dispatched."""
        counts: Mapping[str, float] = self._source.counts()
        now = int(counts.get("outside_examples", 0)), counts.get("outside_loss", 0.0)
        (examples, loss), self._outside = self._outside, now
        return now[0] - examples, now[1] - loss

    def mode_changes(self, reached: int) -> list[dict[str, Any]]:
        """See `Segments.mode_changes`: what the speed monitor decides."""
        return self._speed_monitor.end(reached, self._peers)
