from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.without_jit import only_with_the_jit, pass_without_the_jit

HALVES = [
    [
        "data/test_random.py",
        "data/test_permutation.py",
        "data/test_negatives.py",
        "data/test_relabel.py",
        "data/test_batches.py",
        "data/test_filters.py",
        "data/test_log_columns.py",
        "data/test_log_lines.py",
        "data/test_orderings.py",
        "data/test_buckets.py",
        "data/test_bucket_batches.py",
        "data/test_neighbors.py",
        "data/test_sampling.py",
        "nodes/test_aggregator.py",
        "own_loop/test_pooling.py",
    ],
    [
        "storage/test_atomics.py",
        "storage/test_distinct.py",
        "storage/test_bfloat16.py",
        "storage/test_initial.py",
        "storage/test_key_index.py",
        "storage/test_memory.py",
        "storage/test_page_checksums.py",
        "storage/test_page_copies.py",
        "storage/test_page_directory.py",
        "storage/test_page_kernels.py",
        "nodes/test_pooling.py::test_a_batch_has_the_sums_of_its_bags_and_its_keys_their_gradients",
        "nodes/test_pooling.py::test_what_is_picked_of_rows",
        "nodes/test_shards.py",
        "evaluation/test_evaluate.py::test_columns",
        "evaluation/test_evaluate.py::test_drawn_candidates_change_with_the_group_of_edges",
        "evaluation/test_evaluate.py::test_drawn_candidates_equal_the_oracle",
        "evaluation/test_evaluate.py::test_equal_embeddings_tie_exactly",
        "evaluation/test_evaluate.py::test_real_numbers_rank_as_in_double_precision",
        "evaluation/test_evaluate.py::test_torch_counts_as_the_kernel_does",
    ],
]
"""Files, or tests of them, below this folder, of two processes: the imports of one take longer than most of them."""


@pytest.mark.slow
@only_with_the_jit
def test_kernels_pass_without_the_jit():
    def test(half: list[str]) -> None:
        pass_without_the_jit(*(Path(__file__).parents[1] / name for name in half))

    with ThreadPoolExecutor(len(HALVES)) as threads:
        list(threads.map(test, HALVES))
