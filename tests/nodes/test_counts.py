"""Counts of several shards, added up."""

from marius_oac.nodes.gba.counts import add_counts, dispatch_metrics


def test_counts_are_added_and_of_a_maximum_the_largest_is_kept():
    assert add_counts() == {}
    assert add_counts({"max": 1, "sum": 2}) == {"max": 1, "sum": 2}
    found = add_counts({"taken": 3, "rows.staleness_max": 7}, {"rows.staleness_max": 2, "lost": 1}, {"taken": 4})
    assert found == {"taken": 7, "rows.staleness_max": 7, "lost": 1}


def test_what_was_given_stays_as_it_was():
    first = {"taken": 3}
    add_counts(first, {"taken": 4})
    assert first == {"taken": 3}


def test_metrics_of_what_two_shards_have_counted():
    counts = [
        {"tokens": 5, "examples": 320, "batches_lost": 1, "dense.gradients": 4, "dense.dropped": 1,
         "dense.staleness_sum": 6, "dense.staleness_max": 3,
         "rows.gradients": 30, "rows.dropped": 2, "rows.staleness_sum": 15, "rows.staleness_max": 2,
         "trainers_lost_max": 2},
        {"rows.gradients": 10, "rows.dropped": 1, "rows.staleness_sum": 5, "rows.staleness_max": 4,
         "trainers_lost_max": 2},
    ]  # fmt: skip
    assert dispatch_metrics([*counts, {}]) == {
        "dealt.tokens": 5, "dealt.examples": 320, "dealt.batches_lost": 1, "dealt.guests": 0, "dealt.trainers_lost": 2,
        "dealt.dense_gradients": 4, "dealt.dense_dropped": 1,
        "dealt.dense_staleness": 1.5, "dealt.dense_staleness_max": 3,
        "dealt.rows_gradients": 40, "dealt.rows_dropped": 3,
        "dealt.rows_staleness": 0.5, "dealt.rows_staleness_max": 4,
    }  # fmt: skip


def test_where_nothing_was_dealt_there_are_no_metrics():
    assert dispatch_metrics([{}, {}]) == {}
