"""The compilation of functions that only kernels call.

Numba makes machine code of each function. Functions that are inlined wherever they are called need none: without it, a
batch's kernel for link prediction, with all that it calls, compiles in two thirds of the time. A fragment is LLVM's
optimised code of such a function, and no more.

That it is optimised, before it is optimised once more as a part of its callers, has a reason: without it, compilation
would take a fifth less time still, but LLVM would fuse other products and sums, so that results had other bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import binding
from numba.core.caching import CompileResultCacheImpl
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler, compile_result


class _NoMachineCode:
    """Stands for the engine, which Numba tells of a function's environment: only entry points for Python read that."""

    def set_env(self, name: str, env: Any) -> None:
        pass


class Fragment(JITCodeLibrary):
    """LLVM's code of a function and of what it calls; it can be linked into others, and has no address."""

    codegen = _NoMachineCode()

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._verify_declare_only_symbols()
        self._finalized = True

    def serialize_using_object_code(self) -> tuple[str, str, bytes]:
        """The name, "bitcode", and the code."""
        return self.serialize_using_bitcode()

    def load(self, code: bytes) -> None:
        """Becomes what was serialized."""
        self._final_module = binding.parse_bitcode(code)
        self._finalize_final_module()


class FragmentCompiler(Compiler):
    """What `within` compiles with."""

    def compile_extra(self, func: Callable) -> Any:
        """Compiles a function to a `Fragment`."""
        self.state.library = Fragment(self.state.targetctx.codegen(), func.__qualname__)
        return super().compile_extra(func)


class FragmentCache(CompileResultCacheImpl):
    """Numba's way to keep what was compiled, for fragments."""

    def rebuild(self, target_context: Any, payload: Any) -> Any:
        """What `reduce` was given."""
        (name, _, code), fndesc, env, signature, objectmode, lifted, annotation, inits, environments = payload
        for init in inits:
            init()
        library = Fragment(target_context.codegen(), name)
        library.load(code)
        return compile_result(
            target_context=target_context, typing_context=target_context.typing_context, library=library,
            environment=env, entry_point=target_context.get_executable(library, fndesc, env), fndesc=fndesc,
            type_annotation=annotation, signature=signature, objectmode=objectmode, lifted=lifted, reload_init=inits,
            referenced_envs=environments,
        )  # fmt: skip
