"""Means of sampled neighbours' features against a loop over them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marius_oac.data.neighbors.neighborhoods import feature_means, features_of
from tests.without_jit import only_with_the_jit, pass_without_the_jit


def draw(seed, outputs, inputs, width, most):
    """Features of more nodes than there are inputs, the inputs' ids, and a block."""
    generator = np.random.default_rng(seed)
    features = generator.normal(size=(inputs + 7, width)).astype(np.float32)
    counts = generator.integers(0, most + 1, outputs)
    sources = generator.integers(0, inputs, counts.sum())
    return features, generator.permutation(inputs + 7)[:inputs], np.concatenate(([0], np.cumsum(counts))), sources


def naive_means(features, nodes, offsets, sources, with_own):
    means = []
    for output in range(len(offsets) - 1):
        seen = [nodes[source] for source in sources[offsets[output] : offsets[output + 1]]]
        total = np.zeros(features.shape[1], np.float32)
        for node in seen + [nodes[output]] * with_own:
            total = total + features[node]
        means.append(total / np.float32(max(1, len(seen) + with_own)))
    return np.array(means, np.float32)


@pytest.mark.parametrize("with_own", [False, True])
@settings(deadline=None, max_examples=40)
@given(
    st.integers(0, 1000), st.integers(1, 30), st.integers(0, 20), st.sampled_from([1, 3, 16, 17, 40]), st.integers(0, 6)
)
def test_means_are_those_of_a_loop(with_own, seed, outputs, more, width, most):
    drawn = draw(seed, outputs, outputs + more, width, most)
    np.testing.assert_array_equal(feature_means(*drawn, with_own), naive_means(*drawn, with_own))


def test_features_may_be_mapped_and_results_are_aligned(tmp_path):
    features, *drawn = draw(0, 5, 9, 4, 3)
    np.save(tmp_path / "features.npy", features)
    mapped, ids = np.load(tmp_path / "features.npy", mmap_mode="r"), np.array([3, 0, 3])
    np.testing.assert_array_equal(feature_means(mapped, *drawn, True), feature_means(features, *drawn, True))
    np.testing.assert_array_equal(features_of(mapped, ids), features[ids])
    for found in (feature_means(mapped, *drawn, False), features_of(mapped, ids)):
        assert type(found) is np.ndarray and found.ctypes.data % 64 == 0


@pytest.mark.slow
@only_with_the_jit
def test_without_the_compiler():
    pass_without_the_jit(__file__, "-k", "means_are")
