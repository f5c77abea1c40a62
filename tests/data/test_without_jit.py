from pathlib import Path

from tests.without_jit import only_with_the_jit, pass_without_the_jit

MODULES = (
    "random",
    "permutation",
    "negatives",
    "relabel",
    "batches",
    "filters",
    "log_columns",
    "orderings",
    "buckets",
    "bucket_batches",
    "neighbors",
    "sampling",
)


@only_with_the_jit
def test_the_kernels_pass_without_the_jit():
    pass_without_the_jit(*(Path(__file__).with_name(f"test_{name}.py") for name in MODULES))
