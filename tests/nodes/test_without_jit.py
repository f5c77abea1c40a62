from pathlib import Path

import pytest

from tests.without_jit import only_with_the_jit, pass_without_the_jit


@only_with_the_jit
@pytest.mark.parametrize(
    "what",
    [
        ["test_shards.py"],
        ["test_pooling.py", "-k", "gradients and batch or picked"],
        ["test_aggregator.py"],
    ],
)
def test_kernels_of_nodes_without_the_jit(what):
    pass_without_the_jit(Path(__file__).with_name(what[0]), *what[1:])
