"""A small graph and a short run that many tests look at, and the command line in this process."""

import pytest

from marius_oac import cli, training
from tests.graphs import tiny_config, tiny_graph


@pytest.fixture(scope="session")
def graph(tmp_path_factory):
    return tiny_graph(tmp_path_factory.mktemp("runs") / "tiny")


@pytest.fixture(scope="module")
def finished(graph, tmp_path_factory):
    """A run of two epochs, trained once; not to be changed."""
    path = tmp_path_factory.mktemp("finished") / "run"
    training.train(tiny_config(graph), path)
    return path


@pytest.fixture
def command(capsys):
    """`command("train", ...)` -> exit code, lines on standard output, lines on standard error."""

    def run(*argv):
        capsys.readouterr()
        code = cli.main([str(word) for word in argv])
        said = capsys.readouterr()
        return code, said.out.splitlines(), said.err.splitlines()

    return run
