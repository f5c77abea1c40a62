"""The pipeline's exchange in a process that only serves rows: it has no batches, and waits until trainers pause."""

from __future__ import annotations

from marius_oac.nodes.shards.remote_rows import RemoteExchange, Source
from marius_oac.nodes.transport.messages import Malformed, Message
from marius_oac.pipeline.batch import Batch


class NoRows(RemoteExchange):
    """One call of `Pipeline.run`, of batches from `first` on."""

    def __init__(self, source: Source, first: int):
        super().__init__(source)
        self._first = first

    def planned_until(self, last: int) -> int:
        """See `RowExchange.planned_until`."""
        return self._first

    def stops_before(self, batch_index: int) -> bool:
        """See `RowExchange.stops_before`."""
        return True

    def read(self, batch: Batch, safe_to_evict: int = 0) -> None:
        """Raises RuntimeError: there are no batches."""
        raise RuntimeError("a process that only serves rows has no batches")

    validate = computed = write = read

    def end(self, timestamp: int) -> None:
        """See `RowExchange.end`."""
        self._wait(lambda: True)  # raises the first error
        if self._source.dispatching:
            self._source.finish()
        self._source.exchange = None

    def take(self, node: int, message: Message) -> None:
        """Raises Malformed: nothing is sent to this process."""
        raise Malformed(f"{message.kind.name} is not sent to a process that only serves rows")
