"""Which thread of which trainer is bound where on the recorded machines: `python -m tests.runtime.seat_table` writes
`bindings.txt`, which `test_binding.py` compares."""

import sys
import tempfile
from pathlib import Path

from marius_oac.runtime.machine.seating import Process, choose
from marius_oac.runtime.machine.sysfs import format_list
from marius_oac.runtime.machine.topology import read
from tests.runtime.sysfs_trees import MACHINES, build

FILE = Path(__file__).parent / "bindings.txt"
TIERS = {
    "two_sockets": ["nvme0n1", "nvme1n1"], "four_sockets": [f"nvme{number}n1" for number in range(8)],
    "desktop": ["nvme0n1"], "virtual_machine": None,
}  # fmt: skip
"""Disks of each machine's disk tier."""
COLUMNS = {
    "compute": ["compute"], "feed": ["read", "upload", "download", "write", "receive"], "serve": ["serve"],
    "plan": ["plan"], "io": ["io"], "network": ["network"],
}  # fmt: skip
"""Roles that always sit together."""
COUNTS = (1, 2, 4, 8)


def table(name, root):
    """Of one machine: trainers of a run over nodes, with a disk tier, on GPUs if there are any and on the CPU."""
    machine = read(root)
    lines = [f"{name}: {len(machine.cores)} cores, {len(machine.allowed)} CPUs, {len(machine.nodes)} NUMA nodes"]
    kinds = {"GPU": machine.gpus, "CPU": [None] * 8}
    for kind, cards in kinds.items():
        for count in COUNTS:
            if count > len(cards):
                continue
            every = choose(machine, [Process(TIERS[name], card) for card in cards[:count]], over_nodes=True)
            lines += ["", f"{count} on {kind}s" if kind == "GPU" else f"{count} on CPUs"]
            lines += rows(every) if every[0].seats else [f"  {every[0].note}"]
    return lines


def rows(every):
    cells = [["trainer", *COLUMNS, "tables"]]
    for number, each in enumerate(every):
        places = []
        for roles in COLUMNS.values():
            (cpus,) = {each.cpus(role) for role in roles}
            places.append(format_list(cpus) if cpus else "-")
        cells.append([str(number), *places, str(each.memory)])
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        f"  {'  '.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))}".rstrip() for row in cells
    ]


def text(roots):
    """The whole file."""
    parts = [f"CPUs of each role (feed: {', '.join(COLUMNS['feed'])}) of each trainer of a run over nodes."]
    for name in MACHINES:
        parts += ["", "", *table(name, roots[name])]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        FILE.write_text(text({name: build(name, Path(folder) / name) for name in MACHINES}))
    sys.stdout.write(f"{FILE}\n")
