"""Programs that tests start, forked from a process that has imported the package and what it needs.

Imports take a program seconds, many times what most tests want of it. `Popen` is `subprocess.Popen`, but a program for
this Python begins where its imports are done. As if it were started anew, it is a child of the caller, with the
caller's variables, folder, streams, limits and processors; it ends as any interpreter does, and what it starts itself
is forked likewise. What /proc says of its command line is not its own, and one more descriptor is open (`hangs`).

It is started anew where variables differ that imports read, and with options of Python or of `Popen` that are not
carried over. Some test of each way to start something must not fork.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import os
import pickle
import resource
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from marius_oac.nodes.launch.parent import bound
from tests import hangs

ROOT = Path(__file__).parents[1]
READ_BY_IMPORTS = (
    "PYTHON", "NUMBA_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "TORCH_CPP_", "TORCH_LOGS", "PYTORCH_",
    "CUDA_", "LD_", "MALLOC_", "GLIBC_", "LC_", "LANG", "TZ",
)  # fmt: skip
"""What such variables begin with."""
SELDOM = (20_000, 20, 20)
"""Thresholds of the garbage collector, which takes a twentieth of the tests' time with its own."""
_ROOM = "TEMPLATE"  # variable: there is room for so many bytes of a program's variables where /proc shows them
_BYTES = 1 << 16
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # of <sys/prctl.h>
_ASKED_TO_END = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_BOUND = bound([])  # what a command begins with that ends with its parent
_USUAL = ("links", "clicks", "nodes")  # groups of `kernels.ahead`
_LIMITS = sorted({getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")})


@dataclass(frozen=True)
class Program:
    """What is to run, and what it has of its parent."""

    words: Sequence[str]
    variables: dict[str, str]
    folder: str
    own_session: bool
    bound: bool
    mask: int
    processors: set[int]
    limits: list[tuple[int, int]]

    @property
    def launches(self) -> bool:
        """Whether it may start others."""
        return any(word in self.words for word in ("--local-nodes", "--nodes")) and "RANK" not in self.variables


class Template:
    """The process that others are forked from.

    Args:
        line: to one that is there; None: it is started when it is first wanted.
        variables: that it has beside this process's of now.
    """

    def __init__(self, line: socket.socket | None = None, pid: int = 0, **variables: str) -> None:
        self.variables = {**os.environ, **variables}
        self._line, self._pid, self._lock = line, pid, threading.Lock()

    def fork(self, program: Program, streams: Sequence[int]) -> int:
        """Returns the number of the process, a child of this one."""
        with self._lock:
            if self._line is None:
                self._start()
            text = pickle.dumps(program)
            _prctl(_PR_SET_CHILD_SUBREAPER, 1)  # whose child it becomes when the process between has ended
            try:
                socket.send_fds(self._line, [len(text).to_bytes(8, "little")], streams)
                self._line.sendall(text)
                answer = self._line.recv(8)
            finally:
                _prctl(_PR_SET_CHILD_SUBREAPER, 0)
        if not answer:
            raise ConnectionError("the process that programs are forked from has ended")
        return int.from_bytes(answer, "little")

    def _start(self) -> None:
        self._line, theirs = socket.socketpair()
        with theirs, anew():
            command = [sys.executable, "-c", f"from {__name__} import main; main({theirs.fileno()})"]
            started = subprocess.Popen(
                command, cwd=ROOT, env={**self.variables, _ROOM: "x" * _BYTES}, pass_fds=[theirs.fileno()],
                start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            )  # fmt: skip
        self._pid = started.pid
        started.returncode = 0  # `close` awaits it

    def close(self) -> None:
        if self._line is not None:
            self._line.close()
            os.waitpid(self._pid, 0)
            self._line = None


def _start(self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, *rest):
    """In place of `subprocess.Popen._execute_child`: forks what can be."""
    (_, _, shell, p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite, _, *of_user, own_session, group) = rest
    streams = [given if given != -1 else own for own, given in enumerate((p2cread, c2pwrite, errwrite))]
    variables = dict(os.environ if env is None else env)
    whole, is_bound = args, bool(_BOUND) and isinstance(args, list | tuple) and list(args[: len(_BOUND)]) == _BOUND
    args = args[len(_BOUND) :] if is_bound else args
    if isinstance(args, list | tuple) and args[1:2] == type(args)(["-P"]):  # what is forked imports nothing anew
        args = [args[0], *args[2:]]
    plain = not (executable or preexec_fn or pass_fds or shell or any(map(os.isatty, streams))) and close_fds
    if not plain or (*of_user, group) != (None, None, None, -1, -1) or not _forks(args, variables):
        _start_anew(self, whole, executable, preexec_fn, close_fds, pass_fds, cwd, env, *rest)
        return
    mask = os.umask(0)
    os.umask(mask)
    program = Program(
        [os.fsdecode(word) for word in args[1:]], variables, os.fspath(cwd or os.getcwd()), own_session, is_bound,
        mask, os.sched_getaffinity(0), [resource.getrlimit(each) for each in _LIMITS],
    )  # fmt: skip
    self.pid = _templates[-1].fork(program, streams)
    self._child_created = True
    self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)


_start_anew = subprocess.Popen._execute_child
_templates: list[Template] = []


@contextmanager
def programs(template: Template) -> Iterator[None]:
    """Within the block, programs are forked from it; see the module."""
    _templates.append(template)
    before, subprocess.Popen._execute_child = subprocess.Popen._execute_child, _start
    yield
    _templates.pop()
    subprocess.Popen._execute_child = before


@contextmanager
def anew() -> Iterator[None]:
    """Within the block, none is."""
    before, subprocess.Popen._execute_child = subprocess.Popen._execute_child, _start_anew
    yield
    subprocess.Popen._execute_child = before


def _forks(args: object, variables: dict[str, str]) -> bool:
    if not isinstance(args, list | tuple) or len(args) < 2 or args[0] != sys.executable:
        return False
    is_a_program = args[1] in ("-m", "-c") or not os.fspath(args[1]).startswith("-")
    return is_a_program and _read_by_imports(variables) == _read_by_imports(_templates[-1].variables)


def _read_by_imports(variables: dict[str, str]) -> dict[str, str]:
    found = {name: value for name, value in variables.items() if name.startswith(READ_BY_IMPORTS)}
    found.pop("PYTHONPATH", None)  # see `_take_over`
    return found


def _folders(variables: Mapping[str, str]) -> list[str]:
    return list(filter(None, variables.get("PYTHONPATH", "").split(os.pathsep)))


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def _import_all() -> None:
    """What training imports, on one box and on nodes; Numba and torch's optimizers import much when first used."""
    import numba
    import numpy as np
    import torch._dynamo  # noqa: F401
    from torch.distributed.elastic.agent.server import local_elastic_agent  # noqa: F401

    from marius_oac.cli import commands  # noqa: F401
    from marius_oac.nodes.launch import elastic, guard, launch, remote  # noqa: F401
    from marius_oac.nodes.training import cluster  # noqa: F401
    from marius_oac.training import local  # noqa: F401

    numba.njit(lambda array: array.sum())(np.zeros(1))
    _load_kernels()
    gc.freeze()
    gc.set_threshold(*SELDOM)


def _load_kernels() -> None:
    """Loads kernels of usual runs, as far as an earlier run has compiled them."""
    from marius_oac.kernels import ahead
    from marius_oac.kernels.once import is_kept
    from marius_oac.kernels.signatures import attribute, types_of

    for line in ahead.wanted(_USUAL):
        place, bracket, types = line.call.partition("(")
        kernel, signature = attribute(place), types_of(bracket + types)
        keeps = hasattr(getattr(kernel, "_cache", None), "_cache_file")  # not without the JIT, or a place for a cache
        if keeps and is_kept(kernel, signature):
            kernel.compile(signature)


def _serve(line: socket.socket) -> Program | None:
    """Forks programs until the caller has ended, then returns None; in such a program, returns what it is to run."""
    handlers = {number: signal.signal(number, signal.SIG_IGN) for number in _ASKED_TO_END}
    while True:
        size, streams, _, _ = socket.recv_fds(line, 8, 3)
        if not size:
            return None
        program = pickle.loads(line.recv(int.from_bytes(size, "little"), socket.MSG_WAITALL))
        number, told = os.pipe()
        waiting, free = os.pipe()
        between = os.fork()
        if not between:
            if child := os.fork():
                os.write(told, child.to_bytes(8, "little"))
                os._exit(0)
            os.close(free)
            os.read(waiting, 1)  # ends when the one between has, and so this process has its parent
            for descriptor in (number, told, waiting, line.detach()):
                os.close(descriptor)
            for each, handler in handlers.items():
                signal.signal(each, handler)
            _take_over(program, streams)
            return program
        os.waitpid(between, 0)
        line.sendall(os.read(number, 8))
        for descriptor in (*streams, number, told, waiting, free):
            os.close(descriptor)


def _take_over(program: Program, streams: Sequence[int]) -> None:
    """Gives this process what the program has of its parent."""
    hangs.tell_when_asked()
    if program.own_session:
        os.setsid()
    if program.bound:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    for own, given in enumerate(streams):
        os.dup2(given, own)
        os.close(given)
    for own, name in enumerate(("stdin", "stdout", "stderr")):
        like = getattr(sys, name)
        buffering = 1 if like.line_buffering else -1
        stream = os.fdopen(own, like.mode, buffering, like.encoding, like.errors, closefd=False)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    sys.path[1 : 1 + len(_folders(os.environ))] = _folders(program.variables)
    os.environ.clear()
    os.environ.update(program.variables)
    _show(program.variables)
    tempfile.tempdir = None
    os.chdir(program.folder)
    os.umask(program.mask)
    os.sched_setaffinity(0, program.processors)
    for each, limit in zip(_LIMITS, program.limits, strict=True):
        resource.setrlimit(each, limit)


def _show(variables: dict[str, str]) -> None:
    """In /proc/PID/environ, which is the memory that variables were in when the template was started."""
    begin, end = map(int, Path("/proc/self/stat").read_text().rpartition(")")[2].split()[47:49])
    text = b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in variables.items())
    if len(text) > end - begin:
        raise ValueError(f"no room for {len(text)} bytes of variables")
    ctypes.memmove(begin, text.ljust(end - begin, b"\0"), end - begin)


def _template_for(program: Program) -> Program:
    """What a launcher starts is forked, too, from a process like this one now is. Returns what this process is to run:
    the launcher, or what has been forked for it."""
    ours, theirs = socket.socketpair()
    launcher = os.getpid()
    if pid := os.fork():
        theirs.close()
        _templates.append(Template(ours, pid))
        subprocess.Popen._execute_child = _start
        atexit.register(_templates[-1].close)
        return program
    ours.close()
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != launcher:
        os._exit(1)
    with open(os.devnull, "r+b", buffering=0) as nothing:
        for own in range(3):
            os.dup2(nothing.fileno(), own)
    forked = _serve(theirs)
    if forked is None:
        os._exit(0)
    return forked


def _run(program: Program) -> None:
    kind, *words = program.words
    if kind == "-m":
        sys.path[0], sys.argv = os.getcwd(), words
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    elif kind == "-c":
        sys.path[0], sys.argv = "", ["-c", *words[1:]]
        sys.modules["__main__"] = ModuleType("__main__")
        exec(compile(words[0], "<string>", "exec"), vars(sys.modules["__main__"]))
    else:
        sys.path[0], sys.argv = str(Path(kind).resolve().parent), [kind, *words]
        runpy.run_path(kind, run_name="__main__")


def _run_and_end(program: Program) -> None:
    """An ordinary end takes no modules apart: that lasts longer than many programs. Errors go to the interpreter."""
    code = 0
    try:
        _run(program)
    except BaseException as ended:
        if not isinstance(ended, SystemExit) or not isinstance(ended.code, int | None):
            gc.unfreeze()
            raise
        code = ended.code or 0
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def main(line: int) -> None:
    """Of the template."""
    _import_all()
    found = _serve(socket.socket(fileno=line))
    if found is None:
        os._exit(0)
    _run_and_end(_template_for(found) if found.launches else found)
