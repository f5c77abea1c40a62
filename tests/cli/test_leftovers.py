"""SIGTERM at any moment of a command that writes: exit code 143, a line, and nothing half done or temporary is left."""

import signal
import tempfile
import threading

import pytest

from benchmarks.generate import log as log_generate
from benchmarks.generate import nodes as generate_nodes
from marius_oac.cli import commands as cli
from marius_oac.training import local as training
from tests.click_logs import ctr_config, small_log
from tests.moments import Moments
from tests.run_folders import each_with_one_of


@pytest.fixture(scope="module")
def clicks(tmp_path_factory):
    """A log, and a run on it."""
    folder = tmp_path_factory.mktemp("clicks")
    log = small_log(folder / "log.parquet", rows=60)
    training.train(ctr_config(log, "training.epochs=1", test=log), folder / "run")
    return log, folder / "run"


@pytest.fixture
def command_lines(tmp_path, finished, clicks):
    """What writes `OUT`, by name; None: nothing but temporary files."""
    log, run = clicks
    edges = tmp_path / "edges.tsv"
    edges.write_text("".join(f"n{i % 17}\tr{i % 3}\tn{i % 23}\n" for i in range(200)))
    fractions = ["--valid-fraction", "0.1", "--test-fraction", "0.1", "--duplicates", "drop"]
    sizes = ["--nodes", "60", "--edges", "200", "--communities", "3", "--features", "4"]
    exports = {f"export {name}": (cli, ["export", finished, "--format", name, "--out", "OUT"]) for name in FORMATS}
    return exports | {
        "prepare": (cli, ["prepare", edges, "--out", "OUT", *fractions]),
        "generate_nodes": (generate_nodes, ["--out", "OUT", *sizes]),
        "log_generate": (log_generate, ["--out", "OUT", "--days", "2", "--rows", "300", "--keys", "80"]),
        "predict": (cli, ["predict", run, "--data", log, "--out", "OUT.parquet"]),
        "eval": (cli, ["eval", run]),
    }


FORMATS = ("npy", "safetensors", "parquet")
COMMANDS = ("prepare", "generate_nodes", "log_generate", "predict", "eval", *(f"export {name}" for name in FORMATS))


def stopped_at(share, module, argv, folder, capfd):
    """Runs the command; the signal comes when so much of its calls is done. Returns what is wrong afterwards."""
    folder.mkdir()
    words = [str(word).replace("OUT", str(folder / "out")) for word in argv]
    threads = threading.active_count()
    moment = Moments()
    while moment.where is None:  # at first; and where the run that was counted compiled kernels, too
        made = emptied(folder)
        capfd.readouterr()
        with Moments(max(1, int(share * moment.seen)) if moment.seen else 0) as moment:
            code = module.main(words)
        assert moment.where or code == 0
    said = capfd.readouterr().err.strip().splitlines()
    left = set(folder.rglob("*")) - (set(made) if module is log_generate else set())
    if (code, said[-1:], left, threading.active_count()) != (143, [f"{words_of(module)}: stopped"], set(), threads):
        return moment.where, code, said, left
    return None


def emptied(folder):
    """What was in it."""
    found = sorted(folder.rglob("*"))
    for path in reversed(found):
        path.rmdir() if path.is_dir() else path.unlink()
    return found


def words_of(module):
    return "marius-oac" if module is cli else f"python -m {module.__name__}"


def check(command_lines, command, share, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir(exist_ok=True)
    assert stopped_at(share, *command_lines[command], tmp_path / f"at-{share}", capfd) is None
    assert list((tmp_path / "temporary").iterdir()) == []


@pytest.mark.filterwarnings(  # right after `open` nobody has the file yet: it is closed when it is forgotten
    "ignore:Exception ignored in. <_io.FileIO:pytest.PytestUnraisableExceptionWarning"
)
@pytest.mark.parametrize("command, share", each_with_one_of(COMMANDS, [0.5, 0.93]))
def test_a_signal_leaves_nothing_behind(command_lines, tmp_path, monkeypatch, capfd, command, share):
    check(command_lines, command, share, tmp_path, monkeypatch, capfd)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a file just opened is not closed by us
@pytest.mark.parametrize("command", COMMANDS)
def test_at_many_moments(command_lines, tmp_path, monkeypatch, capfd, command):
    for number in range(1, 60):
        check(command_lines, command, number / 60, tmp_path, monkeypatch, capfd)


def test_the_signal_is_the_exit_code(command_lines, tmp_path):
    module, argv = command_lines["prepare"]
    for number, code in ((signal.SIGINT, 130), (signal.SIGHUP, 129)):
        with Moments(300, number):
            assert module.main([str(word).replace("OUT", str(tmp_path / "out")) for word in argv]) == code
    assert not (tmp_path / "out").exists()
