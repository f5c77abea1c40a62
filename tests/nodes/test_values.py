"""Values of bfloat16 tables are sent as they are stored: half the bytes, the same bits."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from benchmarks.nodes.trainers import train_together
from marius_oac.nodes.shards.values import ValueFormat
from marius_oac.nodes.transport.messages import Malformed
from tests.nodes.test_node_tasks import clicks, days, labelled, links, one_after_another  # noqa: F401 (fixtures)
from tests.run_folders import slow

NARROW = "storage.dtype=bfloat16"


@settings(deadline=None, max_examples=60)
@given(arrays.arrays(np.uint16, st.tuples(st.integers(0, 5), st.integers(1, 4))))
def test_what_is_stored_arrives(stored):
    values = np.array([int(bits) << 16 for bits in stored.ravel()], np.uint32).view(np.float32).reshape(stored.shape)
    narrow, wide = (ValueFormat(stored.shape[1], kind) for kind in (True, False))
    assert narrow.sent(values).nbytes == 2 * values.size == narrow.nbytes * len(values)
    assert wide.nbytes == 2 * narrow.nbytes
    for form in (narrow, wide):
        found = form.received(form.sent(values).tobytes(), len(values))
        assert found.dtype == np.float32 and found.shape == values.shape and found.tobytes() == values.tobytes()


@pytest.mark.parametrize("narrow", [False, True])
def test_a_frame_of_another_size_is_refused(narrow):
    for size in {0, 6, 11, 12, 13, 23, 24, 25, 48} - {12 if narrow else 24}:
        with pytest.raises(Malformed, match=f"^{size} bytes are not"):
            ValueFormat(3, narrow).received(bytes(size), 2)


@pytest.mark.parametrize(("task", "fewer"), [("links", True), slow("clicks", True), slow("pooled", False)])
def test_trainers_pull_half_the_bytes_and_train_the_same_bits(labelled, days, monkeypatch, task, fewer):  # noqa: F811
    """Sums of rows are not rounded, so a table that pools sends float32."""
    pooled = "data.multi_valued=[{name: tags, pooling: mean, pool_at: shard}]"
    config = links(labelled, NARROW) if task == "links" else clicks(days, NARROW, *([pooled] * (task == "pooled")))
    narrow = one_after_another(config, 2)
    monkeypatch.setattr(ValueFormat, "of", lambda layout, pools=False: ValueFormat(layout.dimension))
    wide = train_together(config, 2)
    assert narrow.digests == wide.digests
    ratio = narrow.summary["rows.bytes_pulled"] / wide.summary["rows.bytes_pulled"]
    assert 0.5 < ratio < 0.65 if fewer else ratio > 0.9
