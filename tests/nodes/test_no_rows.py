"""What only serves rows has no batches: it ends where those who train have come to rest, with the first error."""

from types import SimpleNamespace

import pytest

from marius_oac.nodes.shards.no_rows import NoRows
from marius_oac.nodes.transport.messages import Malformed, Push
from marius_oac.runtime.channel import Closed


def make(dispatching=False):
    """With what is called of its source."""
    called = []
    source = SimpleNamespace(dispatching=dispatching, exchange="this", abort=lambda: called.append("abort"))
    source.finish = lambda: called.append("finish")
    return NoRows(source, 7), source, called


def test_it_plans_nothing_and_stops_before_every_batch():
    rows, _, _ = make()
    assert rows.planned_until(20) == 7 and rows.stops_before(7) is True
    for stage in (rows.read, rows.validate, rows.computed, rows.write):
        with pytest.raises(RuntimeError, match="has no batches"):
            stage(None)
    with pytest.raises(Malformed, match="PUSH"):
        rows.take(0, Push(7, []))


@pytest.mark.parametrize("dispatching", [False, True])
def test_its_end_is_that_of_what_was_dealt(dispatching):
    rows, source, called = make(dispatching)
    rows.end(7)
    assert called == ["finish"] * dispatching and source.exchange is None


def test_the_first_error_is_that_of_the_end():
    rows, source, called = make(dispatching=True)
    rows.fail(ZeroDivisionError("planned"))
    rows.abort()
    with pytest.raises(ZeroDivisionError, match="planned"):
        rows.end(7)
    assert called == ["abort"] and source.exchange == "this", "nobody is told that it has ended well"
    rows, _, called = make()
    rows.abort()
    with pytest.raises(Closed, match="rows on other nodes"):
        rows.end(7)
    assert called == ["abort"]
