"""Types of kernels' arguments as text, and the record of what runs compile."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba import types
from numba.core.registry import CPUDispatcher

from marius_oac.kernels import ahead
from marius_oac.kernels.cpu import bfloat16_gemm
from marius_oac.kernels.cpu.rows import Table
from marius_oac.kernels.signatures import attribute, text_of, types_of
from marius_oac.types import Side
from tests import signatures

NUMBERS = st.sampled_from([types.int64, types.uint64, types.int32, types.float32, types.float64, types.boolean])
ARRAYS = st.builds(types.Array, NUMBERS, st.integers(1, 4), st.sampled_from("CFA"), readonly=st.booleans())
PLAIN = NUMBERS | ARRAYS | st.integers(-5, 5).map(types.literal) | st.just(types.IntEnumMember(Side, types.int64))
WIDTH = len(Table._fields)


def tuples(parts):
    plain = st.lists(parts, max_size=3).map(types.BaseTuple.from_types)
    named = st.lists(parts, min_size=WIDTH, max_size=WIDTH).map(lambda found: types.BaseTuple.from_types(found, Table))
    return plain | named


@given(st.lists(st.recursive(PLAIN, tuples, max_leaves=12), max_size=4).map(tuple))
def test_a_text_gives_back_its_types(given_types):
    assert types_of(text_of(given_types)) == given_types


@pytest.mark.parametrize(
    "text",
    ["", "int64", "(int64", "(int64))", "(int65)", "(const int64)", "(const)", "(int64[2X])", "(=x)", "(,)",
     "(kernels.cpu.rows.Nothing(int64))", "(nothing.Table(int64))", "(int64 int64)", "(Array)"],
)  # fmt: skip
def test_any_other_text_is_refused(text):
    with pytest.raises(ValueError):
        types_of(text)


@pytest.mark.parametrize("kind", [types.unicode_type, types.Array(types.int64, 1, "C", aligned=False), types.none])
def test_a_type_without_a_text_is_refused(kind):
    with pytest.raises(ValueError, match="no text"):
        text_of((kind,))


def test_the_record_names_kernels_and_their_types():
    lines = ahead.record()
    assert len({line.call for line in lines}) == len(lines) > 100
    for line in lines:
        place, bracket, types_ = line.call.partition("(")
        assert text_of(types_of(bracket + types_)) == bracket + types_
        assert isinstance(attribute(place), CPUDispatcher) and place.startswith(line.module)
        assert line.groups <= {*signatures.GROUPS}


def test_calls_are_begun_when_all_that_they_call_is_done_and_the_longest_chain_first():
    seconds = {"leaf": 1, "middle": 2, "top": 3, "alone": 4, "last": 0.5}
    callers = {"leaf": {"middle"}, "middle": {"top"}}
    assert signatures.scheduled(seconds, seconds, callers) == ["leaf", "alone", "middle", "top", "last"]


USUAL = ("links", "clicks")
"""Groups that all others but `classes` train with, too: what they compile is not compiled again for each."""


def unknown(group, folder, known, begun=()):
    """What a group's runs compile that the record does not have for these groups."""
    there = {line.call for line in ahead.wanted(known)}
    return signatures.compiled(signatures.GROUPS[group], folder, begun) - there


@pytest.fixture(scope="module")
def usual(tmp_path_factory):
    """Folders in which the usual groups were trained, each with an empty cache, and what the record lacks of them."""
    folders = {group: tmp_path_factory.mktemp(group) / "runs" for group in USUAL}
    return folders, {group: unknown(group, folder, {group}) for group, folder in folders.items()}


@pytest.mark.slow
@pytest.mark.parametrize("group", signatures.GROUPS)
def test_the_record_has_all_that_a_run_compiles(group, tmp_path, usual):
    if group == "bfloat16" and not bfloat16_gemm.is_there():
        pytest.skip("the processor has no AVX-512 BF16")
    folders, lacking = usual
    if group in USUAL:
        assert lacking[group] == set()
    elif group == "classes":
        assert unknown(group, tmp_path / "runs", {group}) == set()
    else:
        assert unknown(group, tmp_path / "runs", {group, *USUAL}, folders.values()) == set()
