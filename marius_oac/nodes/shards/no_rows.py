"""The batches of a process that only serves rows: none. It waits where those who train have come to rest."""

from __future__ import annotations

from collections.abc import Sequence

from marius_oac.nodes.shards.remote_rows import Source
from marius_oac.nodes.transport.messages import Malformed, Message
from marius_oac.pipeline.batch import Batch
from marius_oac.pipeline.rows import RowExchange
from marius_oac.runtime.channel import Closed


class NoRows(RowExchange):
    """One call of `Pipeline.run`, of batches from `first` on."""

    def __init__(self, source: Source, first: int):
        self._source, self._first = source, first
        self._error: BaseException | None = None

    def planned_until(self, last: int) -> int:
        return self._first

    def stops_before(self, batch_index: int) -> bool:
        return True

    def read(self, batch: Batch) -> None:
        raise RuntimeError("who only serves rows has no batches")

    validate = computed = write = read

    def end(self, timestamp: int) -> None:
        if self._error is not None:
            raise self._error
        if self._source.dispatching:
            self._source.finish()
        self._source.exchange = None

    def abort(self) -> None:
        self.fail(Closed("rows on other nodes"))
        self._source.abort()

    def fail(self, error: BaseException) -> None:
        """See `RemoteRows.fail`."""
        self._error = self._error or error

    def take(self, node: int, message: Message, frames: Sequence) -> None:
        """See `RemoteRows.take`."""
        raise Malformed(f"nobody sends a {message.kind.name} to who only serves rows")
