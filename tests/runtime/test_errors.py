"""Errors travel between processes: whatever library pickles them, they are what they were."""

import pickle
import signal
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from marius_oac import errors

MADE = [
    errors.MariusOacError("it is"),
    errors.InputError("is not there", "file.yaml:3"),
    errors.ConfigError("is wrong"),
    errors.CheckpointError("is damaged", "runs/a"),
    errors.DivergedError(3, float("inf"), "runs/a/checkpoints/1"),
    errors.CallbackError("on_batch", KeyError("loss")),
    errors.NodeLost("node1", "was not heard of"),
    errors.NodeRefused("node1", "has another version"),
    errors.Interrupted("stopped", signal.SIGTERM),
]


def test_every_kind_is_tried():
    kinds = {each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, Exception)}
    assert {type(error) for error in MADE} == kinds


@pytest.mark.parametrize("error", MADE, ids=lambda error: type(error).__name__)
def test_an_error_is_pickled_as_it_is(error):
    found = pickle.loads(pickle.dumps(error))
    assert type(found) is type(error) and str(found) == str(error)
    assert vars(found).keys() == vars(error).keys() and found.exit_code == error.exit_code


def _raise():
    raise errors.NodeLost("node1", "was not heard of")


def test_an_error_of_a_process_pool_is_raised_as_it_is():
    with ProcessPoolExecutor(1, get_context("spawn")) as pool, pytest.raises(errors.NodeLost, match="node node1"):
        pool.submit(_raise).result(60)
