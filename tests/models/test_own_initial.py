"""The suite for initial values of a user's, the mistakes that it finds, and what is said of a mistake at the start."""

import numpy as np
import pytest

from marius_oac.errors import ConfigError
from marius_oac.nodes.spread.numbered import PlacedInitial
from marius_oac.storage.initial import GivenInitial, RowInitial
from marius_oac.storage.placement import IdPlaces, Placement
from marius_oac.tasks.graph import entity_initial
from marius_oac.testing.initial import check_initial
from tests.graphs import tiny_config
from tests.models import own_parts as own


def test_functions_of_a_users_pass():
    check_initial(own.example.glorot)
    check_initial(own.vectors, ids=[0, 7, 199, 3])
    check_initial(own.mixed, dimension=1)


def draws(ids, numbers):
    return np.random.default_rng().normal(size=numbers.shape).astype(np.float32)


def seeded(ids, numbers):
    return np.random.default_rng(0).normal(size=numbers.shape).astype(np.float32)


def centred(ids, numbers):
    return numbers - numbers.mean(0)


def doubles(ids, numbers):
    return np.sqrt(6 / numbers.shape[1]) * numbers


def column(ids, numbers):
    return numbers[:, :1]


def infinite(ids, numbers):
    numbers[ids == 40] = np.inf
    return numbers


def shifted(ids, numbers):
    ids += 1
    return numbers


def tensor(ids, numbers):
    return numbers.tolist()


@pytest.mark.parametrize(
    "give, said",
    [(draws, "draws: a row has other values in the same call"), (seeded, "other values where other rows"),
     (centred, "other values where other rows"), (doubles, r"returns float64 \[100, 8\], not float32 \[100, 8\]"),
     (column, r"returns float32 \[100, 1\], not"), (infinite, "values that are not finite"),
     (shifted, "changes the ids"), (tensor, "returns list, not")],
)  # fmt: skip
def test_mistakes_in_a_function_are_found(give, said):
    with pytest.raises(AssertionError, match=said):
        check_initial(give)


class Stops:
    """Called with the last row alone, it returns other values."""

    def __call__(self, ids, numbers):
        return numbers * (1 + (len(ids) == 1))


def test_a_row_that_stands_alone_is_checked():
    with pytest.raises(AssertionError, match="the function: a row has other values where"):
        check_initial(Stops())


def filled(initial, keys, dimension=8, state_width=1):
    rows = np.empty((len(keys), dimension + state_width), np.float32)
    initial.fill(np.asarray(keys, np.int64), rows, dimension)
    return rows


def test_numbers_are_those_of_seed_table_and_row():
    plain = RowInitial("uniform", 1.0, 7, "entities", 0.25)
    given = GivenInitial(**vars(plain), give=lambda ids, numbers: numbers / 2)
    expected = filled(plain, range(50)) / 2
    expected[:, 8:] = 0.25
    np.testing.assert_array_equal(filled(given, range(50)), expected)
    assert given.plain == plain and plain.plain == plain and not hasattr(given.plain, "give")


@pytest.mark.parametrize("node", [0, 1])
def test_a_node_has_the_values_of_its_ids(node):
    given = GivenInitial("uniform", 1.0, 7, "entities", 0.25, give=own.mixed)
    places = IdPlaces(200, Placement.by_number(2))
    placed = PlacedInitial(**vars(given.plain), of_ids=given, places=places, place=node)
    rows = np.arange(places.num_rows(node))
    np.testing.assert_array_equal(filled(placed, rows), filled(given, places.ids_on(node, rows)))


MISTAKES = """
import numpy as np

number = 3

def fails(ids, numbers):
    return numbers + ids.nothing

def writes(ids, numbers):
    ids[:] = 0
    return numbers

def half(ids, numbers):
    return numbers.astype(np.float16)

def centred(ids, numbers):
    return numbers - numbers.mean(0)

def one(ids):
    return ids

def later(ids, numbers):
    return numbers / (ids.size < 100)
"""


@pytest.mark.parametrize(
    "name, said",
    [("fails", "{path}:7: AttributeError: 'numpy.ndarray' object has no attribute 'nothing'"),
     ("writes", "{path}:10: ValueError: assignment destination is read-only"),
     ("half", "{path}:half returns float16 [40, 8], not float32 [40, 8]"),
     ("centred", "{path}:centred: a row has other values where other rows stand beside it"),
     ("one", "{path}: TypeError: one() takes 1 positional argument but 2 were given"),
     ("number", "{path} has no function 'number'"), ("absent", "{path} has no function 'absent'")],
)  # fmt: skip
@pytest.mark.usefixtures("all_code_is_known")
def test_a_mistake_is_one_line_with_file_and_key(graph, tmp_path, name, said):
    path = tmp_path / "mine.py"
    path.write_text(MISTAKES)
    with pytest.raises(ConfigError) as caught:
        entity_initial(tiny_config(graph, f"model.init={path}:{name}"), "entities", 200)
    assert str(caught.value) == f"model.init: {said.format(path=path)}"


@pytest.mark.usefixtures("all_code_is_known")
def test_a_mistake_that_only_other_rows_show_is_found_as_they_are_filled(graph, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(MISTAKES)
    initial = entity_initial(tiny_config(graph, f"model.init={path}:later"), "entities", 200)
    with np.errstate(divide="ignore"), pytest.raises(ConfigError, match="later returns values that are not finite"):
        filled(initial, range(100))


@pytest.mark.usefixtures("all_code_is_known")
def test_the_check_asks_for_rows_that_there_are(graph, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("import numpy as np\nTABLE = np.ones((3, 8), np.float32)\ndef f(ids, n):\n    return TABLE[ids]\n")
    config = tiny_config(graph, f"model.init={path}:f")
    assert (filled(entity_initial(config, "entities", 3), range(3))[:, :8] == 1).all()
    with pytest.raises(ConfigError, match="IndexError"):
        entity_initial(config, "entities", 4)
