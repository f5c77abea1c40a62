"""A small graph, a short run and recorded machines that many tests look at, and this process as a test wants it."""

import functools
import gc
import os

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from marius_oac.cli import commands as cli
from marius_oac.kernels import ahead
from marius_oac.models.compute import user_code as own_code
from marius_oac.runtime import console, standstill
from marius_oac.training import local as training
from tests import costs, dispositions, failures, forked, hangs, skips, turns
from tests.device import DEVICE
from tests.graphs import tiny_config, tiny_graph
from tests.runtime.sysfs_trees import build

if DEVICE.type == "cpu":  # before anything imports Triton
    os.environ["TRITON_INTERPRET"] = "1"

# Property tests draw the same examples every time. `make fuzz`, with which CI ends, takes the other profile: more
# examples, and a seed that it prints.
settings.register_profile("repeatable", deadline=None, derandomize=True, database=None, max_examples=40)
settings.register_profile("random", deadline=None, database=None)
settings.load_profile("repeatable")
dispositions.as_usual()
standstill.in_command = lambda: False  # a command takes the one timer of faulthandler, which is pytest's here
ahead.MOST_PROCESSES = 1  # nothing is compiled beside tests, which say which kernels they want


def pytest_addoption(parser):
    costs.add_option(parser)
    turns.add_option(parser)


def pytest_configure(config):
    config.addinivalue_line("markers", "device: runs on what MARIUS_OAC_TEST_DEVICE names (tests/device.py)")
    costs.configure(config)
    config.pluginmanager.register(skips.Skips())
    config.pluginmanager.register(failures.Failures())


def pytest_collection_modifyitems(config, items):
    costs.modify(config, items)
    turns.modify(config, items)


def pytest_collection_finish():
    """What was imported and collected stays to the end: whoever collects garbage need not look through it."""
    given(st.none())(
        lambda nothing: None
    )()  # Hypothesis makes its generator, and does not see who holds what is frozen
    gc.collect()
    gc.freeze()
    gc.set_threshold(*forked.SELDOM)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(call):
    report = yield
    hangs.add_to(report, call.excinfo)
    return report


def pytest_sessionfinish():
    gc.unfreeze()  # or a library says that it leaks


@pytest.fixture(scope="session", autouse=True)
def state(tmp_path_factory):
    """The tests' own record of the code that this user has trained with, also for the processes that they start."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="session", autouse=True)
def standard_error():
    """What is logged is said as by a command, also where a test calls what is below it."""
    with console.standard_error():
        yield


@pytest.fixture(scope="session")
def template(state):
    """The process that programs are forked from."""
    made = forked.Template()
    yield made
    made.close()


@pytest.fixture(scope="module")
def forked_programs(template):
    """What a file's tests start is forked (see `forked`)."""
    with forked.programs(template):
        yield


@pytest.fixture(scope="session")
def template_of_one_thread(state):
    made = forked.Template(OMP_NUM_THREADS="1")
    yield made
    made.close()


@pytest.fixture(scope="module")
def forked_programs_of_one_thread(template_of_one_thread):
    """Likewise, those that are started with OMP_NUM_THREADS=1."""
    with forked.programs(template_of_one_thread):
        yield


@pytest.fixture
def started_anew(forked_programs):
    """Within a test of such a file, it is not."""
    with forked.anew():
        yield


@pytest.fixture
def all_code_is_known(monkeypatch):
    """As if this user had trained with every text that there is."""
    monkeypatch.setattr(own_code, "is_known", lambda text: True)


@pytest.fixture(scope="session")
def graph(tmp_path_factory):
    return tiny_graph(tmp_path_factory.mktemp("runs") / "tiny")


@pytest.fixture(scope="module")
def finished(graph, tmp_path_factory):
    """A run of two epochs, trained once; not to be changed."""
    path = tmp_path_factory.mktemp("finished") / "run"
    training.train(tiny_config(graph), path)
    return path


@pytest.fixture(scope="session")
def machine_tree(tmp_path_factory):
    """`machine_tree("desktop")` -> a folder like that machine's /sys, written once; not to be changed."""
    return functools.cache(lambda name: build(name, tmp_path_factory.mktemp("machines") / name))


@pytest.fixture
def one_thread():
    """PyTorch computes with one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def command(capsys):
    """`command("train", ...)` -> exit code, lines on standard output, lines on standard error."""

    def run(*argv):
        capsys.readouterr()
        code = cli.main([str(word) for word in argv])
        said = capsys.readouterr()
        return code, said.out.splitlines(), said.err.splitlines()

    return run
