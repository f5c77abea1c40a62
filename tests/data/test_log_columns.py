import json
import re

import numba
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marius_oac.config.ctr import LogConfig
from marius_oac.config.log_columns import BagConfig, SequenceConfig
from marius_oac.data.logs import fingerprints
from marius_oac.data.logs.columns import MISSING, LogBlock, check_key, convert, kind_of
from marius_oac.data.logs.svm import parse_svm
from marius_oac.errors import InputError
from tests.data import naive_logs

EXAMPLES = settings(deadline=None, max_examples=15 if numba.config.DISABLE_JIT else 60)
TEXTS = st.lists(st.one_of(st.none(), st.text(max_size=70)), min_size=1, max_size=20)


def config(**keys):
    return LogConfig(train="x", **({"categorical": ["c"]} | keys))


def converted(schema, **columns):
    batch = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
    return convert(batch, schema, "label" in columns, "log.csv", np.arange(100, 100 + batch.num_rows))


# Of the authors' own implementations (xxhash 0.8, MurmurHash3.cpp).
@pytest.mark.parametrize(
    "text, key, check",
    [
        (b"a", 0xD24EC4F1A98C6E5B, 0x3C2569B2),
        (b"abc", 0x44BC2CF5AD770999, 0xB3DD93FA),
        (b"68fd1e64", 0x5D3CCD85C9C22FE4, 0xC16248A1),
        (b"Nobody inspects the spammish repetition", 0xFBCEA83C8A378BF1, 0x3126F6E3),
        (bytes(range(100)), 0x6AC1E58032166597, 0xFC653843),
    ],
)
def test_fingerprints_are_the_published_hashes(text, key, check):
    assert (naive_logs.xxh64(text), naive_logs.murmur32(text)) == (key, check)
    data = np.frombuffer(b"__" + text, np.uint8)
    keys, checks = fingerprints.fingerprints(data, np.array([2]), np.array([len(data)]))
    assert (keys.view(np.uint64)[0], checks[0]) == (key, check)


def test_fingerprints_of_every_length():
    text = bytes(range(200, 100, -1))
    ends = np.arange(101)
    keys, checks = fingerprints.fingerprints(np.frombuffer(text, np.uint8), np.zeros(101, np.int64), ends)
    assert keys.view(np.uint64).tolist()[1:] == [naive_logs.xxh64(text[:end]) for end in ends[1:]]
    assert checks.tolist()[1:] == [naive_logs.murmur32(text[:end]) for end in ends[1:]]


@EXAMPLES
@given(TEXTS, st.integers(0, 3), st.sampled_from([pa.string(), pa.large_string(), pa.string_view(), "dictionary"]))
def test_texts_of_any_arrow_type_have_the_keys_of_their_bytes(texts, offset, kind):
    column = pa.array(texts, pa.string())
    column = column.dictionary_encode() if kind == "dictionary" else column.cast(kind)
    block = converted(config(categorical=[{"name": "c", "kind": "verbatim"}]), c=column[offset:])
    expected = [naive_logs.text_key(text or "") for text in texts[offset:]]
    assert list(zip(block.keys["c"].tolist(), block.checks["c"].tolist(), strict=True)) == expected


def plainly(text):
    """A text without blanks around it, and 69 for 69.0."""
    text = (text or "").strip(" \t")
    return re.sub(r"^([+-]?[0-9]+)\.0+$", r"\1", text, flags=re.ASCII)


PIECES = st.lists(st.sampled_from(["0", "6", ".", "-", "+", " ", "\t", "a", "00", ".0"]), max_size=6).map("".join)


@EXAMPLES
@given(st.lists(PIECES | st.none(), min_size=1, max_size=20))
def test_blanks_around_a_text_and_zeros_behind_a_whole_number_do_not_count(texts):
    block = converted(config(), c=pa.array(texts, pa.string()))
    expected = [naive_logs.text_key(plainly(text)) for text in texts]
    assert list(zip(block.keys["c"].tolist(), block.checks["c"].tolist(), strict=True)) == expected


@EXAMPLES
@given(st.lists(st.lists(st.text("ab,' 1"), max_size=4), min_size=1, max_size=5), st.sampled_from([json.dumps, repr]))
def test_lists_as_texts_have_the_values_that_were_written(lists, written):
    lists = [[each for each in values if "'" not in each] for values in lists]
    schema = config(multi_valued=[{"name": "b", "separator": "list", "kind": "verbatim"}])
    bag = converted(schema, c=pa.array([1] * len(lists)), b=pa.array(map(written, lists), pa.string())).bags["b"]
    assert np.diff(bag.offsets).tolist() == [len(values) for values in lists]
    assert bag.keys.tolist() == [naive_logs.text_key(each)[0] for values in lists for each in values]


@pytest.mark.parametrize("quote", ["'", '"'])
def test_a_quote_behind_a_backslash_ends_no_text_of_a_list(quote):
    texts = [rf"a\{quote}b, c", "d"]
    schema = config(multi_valued=[{"name": "b", "separator": "list", "kind": "verbatim"}])
    written = "[" + ", ".join(f"{quote}{each}{quote}" for each in texts) + "]"
    keys = converted(schema, c=pa.array([1]), b=pa.array([written])).bags["b"].keys
    assert keys.tolist() == [naive_logs.text_key(each)[0] for each in texts]


@pytest.mark.parametrize(
    "text",
    ["[2, 12, 21]", "2,12 , 21", " [2,12,21.0] ", "['2', \"12\", 21]", "[2, 12, 21,]", "(2, 12, 21)", "{2,12,21}"],
)
def test_lists_of_numbers_have_these_numbers(text):
    schema = config(multi_valued=[{"name": "b", "separator": "list", "kind": "integer"}])
    assert converted(schema, c=pa.array([1]), b=pa.array([text])).bags["b"].keys.tolist() == [2, 12, 21]


@EXAMPLES
@given(st.lists(st.one_of(st.none(), st.integers(1 - 2**63, 2**63 - 1)), min_size=1, max_size=20), st.integers(0, 3))
def test_integers_are_their_own_keys_as_numbers_and_as_text(numbers, offset):
    expected = [MISSING if number is None else number for number in numbers[offset:]]
    block = converted(config(), c=pa.array(numbers, pa.int64())[offset:])
    assert block.keys["c"].tolist() == expected and block.checks["c"] is None
    texts = pa.array([None if number is None else f"{number:+}" for number in numbers], pa.string())[offset:]
    of_text = converted(config(categorical=[{"name": "c", "kind": "integer"}]), c=texts)
    assert of_text.keys["c"].tolist() == expected and of_text.checks["c"] is None


@EXAMPLES
@given(st.lists(st.from_regex(r"(0[xX])?[0-9a-fA-F]{1,14}|", fullmatch=True), min_size=1, max_size=20))
def test_hexadecimal_texts_are_the_integers_they_spell(texts):
    block = converted(config(categorical=[{"name": "c", "kind": "hex"}]), c=pa.array(texts))
    assert block.keys["c"].tolist() == [naive_logs.hex_key(text) for text in texts]


def test_keys_at_the_edges():
    hexadecimal = config(categorical=[{"name": "c", "kind": "hex"}])
    assert converted(hexadecimal, c=pa.array(["ffffffffffffffff", "0"])).keys["c"].tolist() == [-1, 0]
    unsigned = converted(config(), c=pa.array([2**64 - 1, 5, None], pa.uint64())).keys["c"]
    assert unsigned.tolist() == [-1, 5, MISSING]
    assert converted(config(), c=pa.array([True, None])).keys["c"].tolist() == [1, MISSING]
    assert converted(config(), c=pa.nulls(2)).keys["c"].tolist() == [MISSING] * 2
    as_text = converted(config(categorical=[{"name": "c", "kind": "string"}]), c=pa.array([12, None]))
    assert as_text.keys["c"].tolist() == [naive_logs.text_key("12")[0], MISSING]


@pytest.mark.parametrize(
    "kind, value",
    [
        ("integer", "12a"),
        ("integer", "-"),
        ("integer", "9223372036854775808"),
        ("integer", "-9223372036854775808"),
        ("integer", "1.5"),
        ("integer", "1."),
        ("integer", "18446744073709551616"),
        ("hex", "xyz"),
        ("hex", "0x"),
        ("hex", "00000000000000001"),
        ("hex", "8000000000000000"),
    ],
)
def test_what_is_no_integer_is_refused_with_its_row(kind, value):
    schema = config(categorical=[{"name": "c", "kind": kind}], multi_valued=[{"name": "b", "kind": kind}])
    with pytest.raises(InputError, match=r"log.csv: row 103: column 'c' holds '.*', not an? "):
        converted(schema, c=pa.array(["1", "", value]), b=pa.array(["1", "2", ""]))
    with pytest.raises(InputError, match=r"log.csv: row 102: column 'b' holds"):
        converted(schema, c=pa.array(["1", "", "1"]), b=pa.array(["1|2", f"7|{value}", ""]))


def test_the_integer_that_stands_for_missing_values_is_refused():
    with pytest.raises(InputError, match="row 102: column 'c' holds -9223372036854775808, which stands for"):
        converted(config(), c=pa.array([1, MISSING]))
    with pytest.raises(InputError, match="row 101: column 'c' holds"):
        converted(config(), c=pa.array([2**63], pa.uint64()))
    with pytest.raises(InputError, match="row 103: column 'c' holds"):  # after a null
        converted(config(), c=pa.array([None, 1, MISSING]))


@pytest.mark.parametrize("kind", [pa.int8(), pa.uint8(), pa.int32(), pa.uint32(), pa.int64(), pa.uint64()], ids=str)
def test_integers_of_every_width_have_keys_whatever_their_nulls_hold(kind):
    numbers = np.array([5, 127, 7], str(kind))
    column = pa.Array.from_buffers(kind, 3, [pa.py_buffer(b"\x05"), pa.py_buffer(numbers.tobytes())])
    (keys,) = converted(config(), c=column).keys.values()
    assert keys.tolist() == [5, MISSING, 7] and keys.dtype == np.int64
    reserved = np.full(3, MISSING).tobytes()
    nulls = pa.Array.from_buffers(pa.int64(), 3, [pa.py_buffer(b"\x00"), pa.py_buffer(reserved)])
    assert converted(config(), c=nulls).keys["c"].tolist() == [MISSING] * 3


@EXAMPLES
@given(
    st.lists(st.one_of(st.none(), st.lists(st.text("ab;", max_size=4), max_size=6)), min_size=1, max_size=12),
    st.sampled_from(["|", "<>", "é"]),
    st.integers(1, 4),
    st.booleans(),
    st.integers(0, 2),
)
def test_bags_and_sequences_of_text_and_of_lists(values, separator, limit, newest, offset):
    section = {"name": "b", "separator": separator, "max_values": limit}
    schema = config(categorical=[], **{"sequences" if newest else "multi_valued": [section]})
    texts = ["" if value is None else separator.join(value) for value in values][offset:]
    block = converted(schema, b=pa.array(texts, pa.string()))
    kept = [naive_logs.bag(text, separator, limit, newest) for text in texts]
    expect_bag(block, kept)
    assert block.cut == sum(len(text.split(separator)) if text else 0 for text in texts) - sum(map(len, kept))
    lists = pa.array(values, pa.list_(pa.string()))[offset:]
    kept = [(value or [])[-limit:] if newest else (value or [])[:limit] for value in values[offset:]]
    expect_bag(converted(schema, b=lists), kept)


def expect_bag(block, kept):
    bag = block.bags["b"]
    assert np.diff(bag.offsets).tolist() == [len(pieces) for pieces in kept] and bag.offsets[0] == 0
    expected = [naive_logs.text_key(piece) for pieces in kept for piece in pieces]
    assert list(zip(bag.keys.tolist(), bag.checks.tolist(), strict=True)) == expected


def test_lists_of_integers():
    schema = config(categorical=[], multi_valued=["b"])
    block = converted(schema, b=pa.array([[1, None], None, [], [3]], pa.large_list(pa.int32())))
    assert block.bags["b"].keys.tolist() == [1, MISSING, 3] and block.bags["b"].checks is None
    assert block.bags["b"].offsets.tolist() == [0, 2, 2, 2, 3]
    with pytest.raises(InputError, match="row 103: column 'b' holds -9223"):
        converted(schema, b=pa.array([[1, 2], None, [3, MISSING]]))


@EXAMPLES
@given(st.lists(st.one_of(st.none(), st.floats(width=32)), min_size=1, max_size=20), st.booleans())
def test_numbers_are_imputed_and_logged(values, logged):
    schema = config(numeric=["x", "y"], missing_numbers=5.0, log_numbers=logged)
    n = len(values)
    numbers = converted(schema, x=pa.array(values, pa.float32()), y=pa.array(range(n)), c=pa.array(range(n))).numbers
    finite = [5.0 if x is None or not np.isfinite(x) else x for x in values]
    columns = np.array([finite, range(n)], np.float64)
    expected = [[naive_logs.logged(x) for x in row] for row in columns] if logged else columns
    np.testing.assert_allclose(numbers, np.array(expected).T, rtol=1e-6)
    assert numbers.dtype == np.float32


@pytest.mark.parametrize(
    "value, said", [(None, "is empty or NaN"), (float("nan"), "is empty or NaN"), (1e39, "is infinite or beyond")]
)
def test_missing_numbers_are_refused_with_their_row(value, said):
    columns = {"x": pa.array([1.0, value], pa.float64()), "c": pa.array([1, 2])}
    with pytest.raises(InputError, match=f"log.csv: row 102: the number in column 'x' {said}"):
        converted(config(numeric=["x"]), **columns)


@pytest.mark.parametrize("kind", [pa.int8(), pa.float64(), pa.bool_(), pa.decimal128(21, 2)])
def test_labels_of_any_number_type(kind):
    labels = converted(config(), label=pa.array([0, 1]).cast(kind), c=pa.array([1, 2])).labels
    assert labels.tolist() == [0, 1] and labels.dtype == np.float32


@pytest.mark.parametrize(
    "value, said", [(None, "has no label"), (2.0, "is 2, neither"), (-1.0, "is -1, neither"), (float("nan"), "is nan")]
)
def test_labels_are_0_or_1(value, said):
    with pytest.raises(InputError, match=f"log.csv: row 102: .*column 'label' {said}"):
        converted(config(), label=pa.array([1.0, value]), c=pa.array([1, 2]))


def test_types_that_are_no_keys_are_refused():
    bag, batch_index = BagConfig(name="c", kind="hex"), SequenceConfig(name="c")
    assert kind_of(pa.string(), bag) == "hex" and kind_of(pa.int8(), batch_index) == "integer"
    assert kind_of(pa.binary(), batch_index) == "string" and kind_of(pa.float32(), batch_index) == "integer"
    check_key(pa.string(), bag)
    for kind, feature in ((pa.date32(), batch_index), (pa.struct([]), batch_index), (pa.int64(), bag)):
        with pytest.raises(InputError, match="column 'c' holds"):
            check_key(kind, feature)


def blocks():
    schema = config(categorical=["c", "i"], numeric=["x"], multi_valued=[{"name": "b", "max_values": 2}])
    for low in (0, 3):
        yield converted(
            schema,
            label=pa.array([low % 2, 1, 0]),
            c=pa.array([f"k{low}", None, "z"]),
            i=pa.array([low, 7, None]),
            x=pa.array([low + 0.5, 1.0, 2.0]),
            b=pa.array(["a|b|c", None, f"{low}|{low}"]),
        )


def rows_of(block):
    """One tuple an example."""
    bag = block.bags["b"]
    return [
        (
            float(block.labels[i]),
            float(block.numbers[i, 0]),
            int(block.keys["c"][i]),
            int(block.checks["c"][i]),
            int(block.keys["i"][i]),
            bag.keys[bag.offsets[i] : bag.offsets[i + 1]].tolist(),
            bag.checks[bag.offsets[i] : bag.offsets[i + 1]].tolist(),
        )
        for i in range(block.size)
    ]


def test_blocks_are_joined_sliced_and_taken_from():
    first, second = blocks()
    joined = LogBlock.join([first, second])
    rows = rows_of(joined)
    assert rows == rows_of(first) + rows_of(second) and joined.size == 6 and joined.cut == 2
    assert joined.checks["i"] is None and joined.numbers.shape == (6, 1)
    for low, high in ((0, 6), (2, 5), (4, 4)):
        assert rows_of(joined.slice(low, high)) == rows[low:high]
        assert joined.slice(low, high).bags["b"].offsets[0] == 0
    order = np.array([5, 0, 0, 3])
    assert rows_of(joined.take(order)) == [rows[i] for i in order]


SVM = st.lists(
    st.tuples(
        st.sampled_from("01"), st.lists(st.integers(0, 2**63 - 1), max_size=5), st.sampled_from(["\n", "\r\n\n"])
    ),
    max_size=12,
)


@EXAMPLES
@given(SVM, st.sampled_from([" ", "\t", "  "]), st.sampled_from([":1", ":1.0", ":+1."]))
def test_libsvm_lines(examples, gap, one):
    text = "".join(gap.join([label, *(f"{i}{one}" for i in ids)]) + end for label, ids, end in examples)
    labels, ids, offsets = parse_svm(np.frombuffer(text.encode(), np.uint8), "x", np.arange(len(examples)))
    assert labels.tolist() == [int(label) for label, _, _ in examples]
    assert ids.tolist() == [i for _, each, _ in examples for i in each]
    assert np.diff(offsets).tolist() == [len(each) for _, each, _ in examples]


@pytest.mark.parametrize(
    "line, said",
    [
        ("x 1:1", "the label 'x' is neither 0, 1 nor -1"),
        ("-0 1:1", "the label '-0' is neither"),
        ("-+1 1:1", "the label '-.1' is neither"),
        ("1:1", "the label '1:1' is neither"),
        ("1 5", "'5' is not id:1"),
        ("1 :1", "':1' is not id:1"),
        ("1 a:1", "'a:1' is not id:1"),
        ("1 9223372036854775808:1", "is not id:1, with an id in"),
        ("1 3:0.5", "the value of '3:0.5' is not 1 .weights"),
        ("1 3:0", "the value of '3:0' is not 1"),
        ("1 3:", "the value of '3:' is not 1"),
        ("1 3:1:1", "'3:1:1' is field:id:value of libffm"),
        ("# 3:1", "a comment on a line of its own, '# 3:1'"),
    ],
)
def test_libsvm_syntax_errors(line, said):
    with pytest.raises(InputError, match=f"log.svm: row 12: .*{said}"):
        parse_svm(np.frombuffer(f"1 2:1\n\n{line}\n".encode(), np.uint8), "log.svm", np.array([10, 11]))
