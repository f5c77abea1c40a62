"""How batches reach the trainers of a run over nodes: all trainers compute parts of the same batch in lockstep, or the
shards dispatch parts of batches, by the rules of a mode (`nodes.gba.modes`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from marius_oac.config.modes import ModeName, NodesConfig
from marius_oac.data.batches.rank_slice import RankSlice, SlicedPlanner, with_share
from marius_oac.nodes.dense.contract import DenseAgreement
from marius_oac.nodes.dense.served import Served, bounds_of
from marius_oac.nodes.gba.modes import make_mode
from marius_oac.nodes.groups.trainers import Crowd
from marius_oac.nodes.shards.dispatched_rows import DispatchedRows, Dispatching
from marius_oac.nodes.shards.exchange import RemoteSource
from marius_oac.nodes.shards.routed import RoutedPlanner
from marius_oac.types import ServedDense


class BatchDispatch:
    """Switches one trainer between lockstep and modes that dispatch batches.

    Args:
        config: the section.
        crowd: which processes train.
        weights: of each process, by rank; 0: it carries no rows.
        planner: of this trainer's batches. routed: the same with routes, which the pipeline uses.
        source: of the rows.
        dense: synchronises dense parameters; they are dispatched as well if it is `Served`.
        served: the dense parameters; None: there are none.
    """

    def __init__(
        self,
        config: NodesConfig,
        crowd: Crowd,
        weights: Sequence[float],
        planner: SlicedPlanner,
        routed: RoutedPlanner,
        source: RemoteSource,
        dense: DenseAgreement,
        served: ServedDense | None,
    ):
        self._config, self._crowd, self._weights = config, crowd, weights
        self._routed, self._source, self._dense, self._served = routed, source, dense, served
        count = self._num_parts
        self._parts = [with_share(planner, RankSlice(each, count, dispatched=True)) for each in range(count)]
        self._outside = 0, 0.0

    @property
    def _num_parts(self) -> int:
        """M: the parts that a global batch is cut into where batches are dispatched."""
        return self._config.mode_options.parts or self._crowd.trainers

    @property
    def active(self) -> bool:
        """Whether batches are dispatched now."""
        return self._source.dispatching is not None

    def start(self, mode: ModeName, elastic_worker: bool = False) -> None:
        """Trains the batches that follow in this mode. `elastic_worker`: this trainer may leave at any time."""
        source = self._source
        source.dispatching = None if mode == "sync" else self._dispatching(mode, elastic_worker)
        parts = self._parts if source.dispatching else []
        self._routed.dispatch(parts, lambda: cast(DispatchedRows, source.exchange).reserve())
        if isinstance(self._dense, Served):
            self._dense.dispatched = source.dispatching is not None
        self._dense.start()

    def _dispatching(self, kind: ModeName, elastic_worker: bool) -> Dispatching:
        mode_options, parts, crowd = self._config.mode_options, self._num_parts, self._crowd
        mode = make_mode(kind, crowd.trainers, parts, 1, **mode_options.rules())
        carriers = [crowd.peer(rank) for rank, weight in enumerate(self._weights) if weight]
        return Dispatching(
            mode, parts, bounds_of(self._served, len(carriers)), carriers, cast(Served, self._dense), self._served,
            mode_options.window, crowd.own, elastic_worker,
        )  # fmt: skip

    def end(self) -> None:
        """Brings dense parameters back from the shards, after batches were dispatched."""
        dispatching = self._source.dispatching
        if dispatching and self._served:
            self._served.take(self._source.dense_states(), dispatching.bounds)

    @property
    def stop_requested(self) -> bool:
        """Whether a trainer outside the group was asked to stop."""
        return self._source.counts().get("stopped_max", 0) > 0

    def trained_outside(self) -> tuple[int, float]:
        """See `Task.trained_outside`."""
        counts: Mapping[str, float] = self._source.counts()
        now = int(counts.get("outside_examples", 0)), counts.get("outside_loss", 0.0)
        (examples, loss), self._outside = self._outside, now
        return now[0] - examples, now[1] - loss
