from pathlib import Path

from tests.without_jit import only_with_the_jit, pass_without_the_jit

MODULES = ("atomics", "bfloat16", "initial", "memory", "page_directory", "page_kernels")


@only_with_the_jit
def test_the_suite_passes_without_the_jit():
    pass_without_the_jit(*(Path(__file__).with_name(f"test_{name}.py") for name in MODULES))
