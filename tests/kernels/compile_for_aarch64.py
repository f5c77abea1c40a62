"""Machine code for aarch64 of the record's kernels, made on any machine: `python -m tests.kernels.compile_for_aarch64`.

Left out are those of bfloat16, which are taken where x86's instructions for it are. Prints how many modules of LLVM's
became machine code, and how many kernels are compiled. LLVM ends the process at what aarch64 does not have.
"""

import platform
import re

platform.machine = lambda: "aarch64"  # before any kernel is made

import llvmlite.binding as llvm  # noqa: E402
from numba.core.codegen import CPUCodeLibrary  # noqa: E402

from marius_oac.kernels import ahead, compile  # noqa: E402

TRIPLE = "aarch64-unknown-linux-gnu"
OF_THIS_MACHINE = re.compile("target (datalayout|triple) = .*")


def main() -> None:
    modules: list[str] = []
    add = CPUCodeLibrary.add_ir_module

    def noted(library, module):
        modules.append(str(module))  # before LLVM writes it anew for this machine
        add(library, module)

    CPUCodeLibrary.add_ir_module = noted
    lines = [line for line in ahead.record() if "bfloat16" not in line.groups]
    assert compile.compile_lines(lines, 1)
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple(TRIPLE).create_target_machine()
    for text in modules:
        module = llvm.parse_assembly(OF_THIS_MACHINE.sub("", text))
        module.triple, module.data_layout = TRIPLE, str(machine.target_data)
        module.verify()
        machine.emit_object(module)
    print("", len(modules), len(lines))


if __name__ == "__main__":
    main()
