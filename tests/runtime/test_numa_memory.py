"""Memory policies on this machine's kernel, and kernels that refuse."""

import ctypes
import errno
import mmap
import os

import pytest

from marius_oac.runtime.machine import numa_memory
from marius_oac.runtime.machine.numa_memory import MemoryPolicy, allowed_nodes, memory_policy

PAGE = mmap.PAGESIZE


@pytest.fixture
def said(capsys):
    numa_memory.log_once.cache_clear()
    return lambda: capsys.readouterr().err.splitlines()


@pytest.fixture
def memory():
    """Address of 16 fresh pages."""
    pages = mmap.mmap(-1, 16 * PAGE)
    held = ctypes.c_char.from_buffer(pages)
    yield ctypes.addressof(held)
    del held
    pages.close()


@pytest.mark.parametrize("kind", ["interleave", "local"])
def test_the_kernel_has_the_policy_or_a_line_says_why(memory, said, kind):
    nodes = allowed_nodes() or (0,)
    policy = MemoryPolicy(kind, nodes if kind == "interleave" else nodes[:1])
    if memory_policy(memory + 1, 16 * PAGE - 1, policy, "table x"):
        mode = {"interleave": 3, "local": 1}[kind]
        assert (
            numa_memory._policy_at(memory + PAGE) == numa_memory._policy_at(memory + 15 * PAGE) == (mode, policy.nodes)
        )
        assert numa_memory._policy_at(memory) == (0, ())  # in the range only in part: perhaps another's
        assert said() == []
        ctypes.memset(memory, 1, 16 * PAGE)
    else:
        (line,) = said()
        assert line.startswith(f"binding: table x is not {policy}: the kernel does not permit it")


def test_nodes_that_are_not_there(memory, said):
    if not memory_policy(memory, 16 * PAGE, MemoryPolicy("local", (0,))):
        pytest.skip(f"memory policies are refused here: {said()}")
    for _ in range(2):
        assert not memory_policy(memory, 16 * PAGE, MemoryPolicy("local", (1001,)), "table x")
    assert not memory_policy(memory, 16 * PAGE, MemoryPolicy("interleave", (0, 1001)), "table y")
    first, second = said()
    assert first.startswith("binding: table x is not local to node 1001: the process may not use the memory")
    assert second == "binding: table y is not interleaved over nodes 0,1001: of these nodes it may use 0"


@pytest.mark.parametrize(
    "number, reason",
    [
        (errno.EPERM, "the kernel does not permit it (in a container: needs the capability SYS_NICE)"),
        (errno.ENOSYS, "this kernel has no memory policies, or none that we know of"),
        (errno.ENOMEM, os.strerror(errno.ENOMEM)),
    ],
)
def test_refusals_are_named_and_nothing_stops(memory, said, monkeypatch, number, reason):
    def refuse(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(numa_memory, "_call", refuse)
    assert not memory_policy(memory, 16 * PAGE, MemoryPolicy("interleave", (0, 1)), "table x")
    assert said() == [f"binding: table x is not interleaved over nodes 0-1: {reason}"]
    assert allowed_nodes() is None


def test_processors_whose_numbers_we_do_not_know_are_not_called(memory, said, monkeypatch):
    monkeypatch.setattr(numa_memory.platform, "machine", lambda: "alpha")
    assert not memory_policy(memory, 16 * PAGE, MemoryPolicy("local", (0,)))
    assert said()[0].endswith("this kernel has no memory policies, or none that we know of")


def test_nothing_to_do_is_done_quietly(memory, said):
    assert not memory_policy(memory, 16 * PAGE, None)
    assert not memory_policy(memory + 1, PAGE, MemoryPolicy("local", (0,)))  # not one whole page
    assert not memory_policy(memory, 0, MemoryPolicy("local", (0,)))
    assert said() == []


def test_impossible_policies():
    for kind, nodes in (("local", (0, 1)), ("local", ()), ("bind", (0,)), ("interleave", ())):
        with pytest.raises(ValueError, match="no policy"):
            MemoryPolicy(kind, nodes)
