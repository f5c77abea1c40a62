"""The compilation of functions that only kernels call.

Numba optimises each function and makes machine code of it, and optimises it again as a part of each caller. A function
that is inlined wherever it is called needs only the latter: skipping the former halves the compilation of a batch's
kernel for link prediction. So a fragment is what Numba made of the function for LLVM, and no more.
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
    """A function's code for LLVM, with what it calls; it can be linked into others, and has no address."""

    codegen = _NoMachineCode()

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._verify_declare_only_symbols()
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        """No address."""
        self._ensure_finalized()
        return 0

    def serialize_using_object_code(self) -> tuple[str, str, bytes]:
        """The name, "bitcode", and the code."""
        return self.serialize_using_bitcode()

    def load(self, code: bytes) -> None:
        """Becomes what was serialized."""
        self._final_module = binding.parse_bitcode(code)
        self._finalize_final_module()


class FragmentCompiler(Compiler):
    """For `njit(pipeline_class=...)`."""

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
