"""Functions that only kernels call are compiled as parts of kernels, and not by themselves."""

import importlib.util
import pickle
from pathlib import Path

import numpy as np
import pytest
from numba import types
from numba.core.errors import NumbaWarning
from numba.core.registry import CPUDispatcher, cpu_target

from tests.storage.conformance import JIT

pytestmark = pytest.mark.skipif(not JIT, reason="nothing is compiled")

TEXT = """
import ctypes

from marius_oac.kernels.cpu.jit import compiled, float_compiled, float_exact, float_inlined, inlined

@inlined
def leaf(value):
    if value < 0:
        raise ValueError("negative")
    return value + 1

@inlined
def middle(value):
    return leaf(value) * 2

@compiled
def top(value):
    return middle(value) - leaf(value)

absolute = ctypes.CDLL(None).labs
absolute.argtypes, absolute.restype = [ctypes.c_long], ctypes.c_long

@inlined
def foreign(value):
    return absolute(value)

@float_exact
def product(first, second):
    return first * second

@float_inlined
def add(values, factor, into):
    for i in range(values.size):
        into[i] += product(values[i], factor)

@float_compiled
def add_all(values, factor, into):
    add(values, factor, into)
"""
INT = (types.int64,)


@pytest.fixture
def load(tmp_path):
    (tmp_path / "own_kernels.py").write_text(TEXT)

    def load():
        spec = importlib.util.spec_from_file_location("own_kernels", tmp_path / "own_kernels.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


def made(kernel):
    [found] = kernel.overloads.values()
    return found


def has_address(kernel):
    return cpu_target.target_context.codegen()._engine.is_symbol_defined(made(kernel).fndesc.llvm_func_name)


def kept_kind(kernel):
    """How Numba keeps the code of a kernel's one signature."""
    [path] = Path(kernel._cache._cache_path).glob(f"{Path(kernel._cache._cache_file._index_path).stem}*.nbc")
    (_, kind, _), *_ = pickle.loads(path.read_bytes())
    return kind


def test_a_fragment_has_no_machine_code_and_its_callers_have(load):
    module = load()
    assert module.top(5) == 6
    assert has_address(module.top) and not has_address(module.middle) and not has_address(module.leaf)
    assert [kept_kind(each) for each in (module.top, module.middle, module.leaf)] == ["object", "bitcode", "bitcode"]


def test_a_fragment_is_optimised_before_it_is_part_of_others(load):
    module = load()
    assert module.top(5) == 6
    name = made(module.leaf).fndesc.llvm_func_name
    assert f"call i32 @{name}" not in made(module.middle).library.get_llvm_str()
    assert "alloca" not in made(module.leaf).library.get_llvm_str()


def test_what_was_kept_is_part_of_kernels_that_are_compiled_later(load, monkeypatch):
    for name in ("leaf", "middle"):
        getattr(load(), name).compile(INT)
    module = load()
    whole, begun = CPUDispatcher.compile, []

    def compile_(kernel, types):
        before = sum(kernel.stats.cache_misses.values())
        found = whole(kernel, types)
        if sum(kernel.stats.cache_misses.values()) > before:
            begun.append(kernel.py_func.__name__)
        return found

    monkeypatch.setattr(CPUDispatcher, "compile", compile_)
    assert module.top(5) == 6 and begun == ["top"]
    assert not has_address(module.middle)
    again = load()
    assert again.top(6) == 7 and begun == ["top"]


def test_what_was_kept_is_not_optimised_again(load):
    load().leaf.compile(INT)
    module = load()
    module.leaf.compile(INT)
    assert made(module.leaf).library._finalized


def test_addresses_of_this_process_are_not_kept(load):
    module = load()
    with pytest.warns(NumbaWarning, match="Cannot cache compiled function .foreign"):
        module.foreign.compile(INT)
    assert not list(Path(module.foreign._cache._cache_path).glob("*foreign*.nbc"))


def test_errors_in_fragments_are_raised(load):
    module = load()
    with pytest.raises(ValueError, match="negative"):
        module.top(-2)
    with pytest.raises(ValueError, match="negative"):
        load().top(-2)


def test_only_kernels_call_fragments(load):
    with pytest.raises(TypeError, match="only kernels call leaf"):
        load().leaf(3)


def test_without_a_place_for_a_cache_kernels_are_compiled_all_the_same(load, monkeypatch):
    def nowhere(*_):
        raise RuntimeError("no locator available for file")

    monkeypatch.setattr("numba.core.caching.CacheImpl.__init__", nowhere)
    module = load()
    assert module.top(5) == 6 and not has_address(module.leaf)


def test_kernels_with_floats(load):
    for _ in range(2):
        into = np.ones(9, np.float32)
        load().add_all(np.arange(9, dtype=np.float32), np.float32(3), into)
        assert (into == 1 + 3 * np.arange(9)).all()
