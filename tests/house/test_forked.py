"""What programs have that are forked in place of being started: what they would have had."""

import json
import os
import resource
import signal
import socket
import subprocess
import sys

import psutil
import pytest

from marius_oac.nodes.launch.parent import bound
from tests import forked
from tests.nodes.outliving import ASKS

pytestmark = pytest.mark.usefixtures("forked_programs")
TELLS = """
import json, os, resource, signal, sys, psutil
about = {
    "imported": "torch" in sys.modules, "argv": sys.argv, "path": sys.path, "name": __name__,
    "parent": os.getppid(), "session": os.getsid(0) == os.getpid(), "folder": os.getcwd(), "mask": os.umask(0),
    "variables": dict(os.environ), "shown": psutil.Process().environ() == dict(os.environ),
    "open": sorted(map(int, os.listdir("/proc/self/fd"))),
    "threads": len(os.listdir("/proc/self/task")), "processors": sorted(os.sched_getaffinity(0)),
    "files": resource.getrlimit(resource.RLIMIT_NOFILE),
    "handlers": [str(signal.getsignal(each)).split(" at")[0] for each in (1, 2, 15)],
    "standard input": sys.stdin.read(),
}
print(json.dumps(about))
"""


def told(*words, **given):
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, **given)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def ways(tmp_path):
    """A program as a file, as a module and as a text."""
    (tmp_path / "told.py").write_text(TELLS)
    return {"file": [str(tmp_path / "told.py")], "module": ["-m", "told"], "text": ["-c", TELLS]}


@pytest.mark.parametrize("way", ["file", "module", "text"])
def test_a_forked_program_has_what_it_had_if_it_were_started(ways, way, tmp_path):
    given = {
        "cwd": tmp_path,
        "env": {**os.environ, "COLOUR": "blue", "PYTHONPATH": "/one:/two"},
        "start_new_session": True,
        "input": "a line\n",
    }
    before = os.umask(0o27)
    files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files[0] - 1, files[1]))
    processors = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(processors)})
    try:
        found = told(*ways[way], "one", "two", **given)
        with forked.anew():
            expected = told(*ways[way], "one", "two", **given)
    finally:
        os.sched_setaffinity(0, processors)
        resource.setrlimit(resource.RLIMIT_NOFILE, files)
        os.umask(before)
    assert (found.pop("imported"), expected.pop("imported")) == (True, False)
    assert found.pop("open")[:-1] == expected.pop("open")  # the last one is that of `hangs`
    assert found == expected
    assert (found["parent"], found["shown"], found["mask"]) == (os.getpid(), True, 0o27)


def test_a_program_that_ends_with_its_parent_is_forked_too():
    for asked in (False, True):
        command = [sys.executable, "-c", f"{ASKS}\nimport sys; print('torch' in sys.modules)"]
        found = subprocess.run(bound(command) if asked else command, stdout=subprocess.PIPE, text=True)
        assert found.stdout.split() == [str(signal.SIGKILL * asked), "True"]


@pytest.mark.slow
def test_a_program_ends_as_one_that_is_started_does(started_anew, template):
    """Its exit code, its last words, and its time on the processor."""
    ends = (
        "pass", "import sys; sys.exit(3)", "import sys; sys.exit('a reason')", "1 / 0",
        "import os; os.kill(os.getpid(), 2)", "import os; os.kill(os.getpid(), 9)",
        "import atexit, threading; atexit.register(print, 'at the end');"
        "threading.Thread(target=lambda: print('a thread')).start()",
        "import sys; sys.stderr.write('no line')", "import os; os._exit(4)",
    )  # fmt: skip
    for text in ends:
        anew = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True)
        with forked.programs(template):
            found = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True)
        assert (found.returncode, found.stdout) == (anew.returncode, anew.stdout), text
        assert found.stderr.splitlines()[-1:] == anew.stderr.splitlines()[-1:], text


def test_its_time_is_the_callers_childrens():
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", "import time\nwhile time.process_time() < 0.3: pass"], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime >= 0.3


def test_signals_reach_it():
    text = (
        "import signal, sys, threading; signal.signal(15, lambda *_: sys.exit(5)); print('ready', flush=True); "
        "threading.Event().wait()"
    )
    with subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 5


LAUNCHES = """
import subprocess, sys
words = [sys.executable, "-c", "import os, sys; print('torch' in sys.modules, os.getppid())"]
print(subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip(), flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("killed", [False, True])
def test_what_a_launcher_starts_is_forked_too_and_nothing_is_left(killed):
    with subprocess.Popen(
        [sys.executable, "-c", LAUNCHES, "--local-nodes"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == f"True {process.pid}\n"
        (template,) = psutil.Process(process.pid).children()
        if killed:
            process.kill()
    template.wait(60)
    assert process.returncode == (-signal.SIGKILL if killed else 0)


@pytest.mark.parametrize(
    "given",
    [{"env": {**os.environ, "OMP_NUM_THREADS": "1"}}, {"close_fds": False}, {"preexec_fn": print}, {"umask": 0}],
)
def test_what_can_not_be_forked_is_started(given):
    done = subprocess.run(
        [sys.executable, "-c", "import sys; print('torch' in sys.modules)"], capture_output=True, text=True, **given
    )
    assert done.stdout == "False\n"
    flags = subprocess.run(
        [sys.executable, "-E", "-c", "import sys; print('torch' in sys.modules)"], capture_output=True
    )
    assert flags.stdout == b"False\n"


def test_a_template_that_is_gone_is_an_error():
    ours, theirs = socket.socketpair()
    theirs.close()
    with ours, forked.programs(forked.Template(ours)), pytest.raises(ConnectionError):
        subprocess.run([sys.executable, "-c", ""])
