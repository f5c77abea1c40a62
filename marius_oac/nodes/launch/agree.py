"""Compares nodes before they train: every node refuses one that differs, with the same message, by its name."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from typing import Any

from marius_oac import __version__
from marius_oac.errors import InputError, size_text
from marius_oac.nodes.launch.cluster import Machine, Place, disk_sizes, this_machine

CLOCKS_APART = 5.0  # seconds: more is a clock that is not synchronised, less may be a busy machine


def statement(
    place: Place, config_digest: str, machine: Machine | None = None, problem: str | None = None, data_digest: str = ""
) -> dict[str, Any]:
    """Returns what a process tells the others before training: plain JSON values, for `Group.gather` after a barrier.

    Args:
        place: who this process is.
        config_digest: of everything in the config that must be the same on every node.
        machine: this machine; None: it is looked at.
        problem: what keeps this node from training, in one line, such as data that it lacks.
        data_digest: of what is trained on.
    """
    machine = machine or this_machine()
    return {
        "node": place.node.name,
        "local": place.local,
        "rank": place.rank,
        "versions": {"marius_oac": __version__, "torch": version("torch").partition("+")[0]},
        "config": config_digest,
        "data": data_digest,
        "nodes": place.cluster.digest(),
        "clock": time.time(),
        "machine": f"{machine.host} {machine.boot}",
        # Nodes of `--local-nodes` share this machine, and may share its cores.
        "cores": [0 if place.cluster.free_ports else place.node.cores or 0, machine.cores],
        "memory": [place.node.memory or 0, machine.memory],
        "disk": [place.node.disk or 0, disk_sizes(place.node.path, "total")],
        "problem": problem,
    }


def compare(said: Sequence[Mapping[str, Any]]) -> None:
    """Compares the statements of all processes, in any order; every process finds the same fault.

    Raises:
        InputError: a node has a problem, or differs from the first in versions, config, nodes.yaml or data; clocks
            differ too much; two processes have the same number; nodes of one machine want more than it has.
    """
    said = sorted(said, key=lambda one: (one["rank"], one["node"]))
    first = said[0]
    for one in said:
        if one["problem"]:
            raise InputError(one["problem"], f"node {one['node']}")
    for one in said[1:]:
        who = f"node {one['node']}"
        for name, number in one["versions"].items():
            if number != first["versions"][name]:
                raise InputError(f"has {name} {number}, node {first['node']} has {first['versions'][name]}", who)
        for key, what in (("nodes", "nodes.yaml"), ("config", "config"), ("data", "data")):
            if one[key] != first[key]:
                raise InputError(f"its {what} is not the one of node {first['node']}", who)
    for before, one in zip(said, said[1:], strict=False):
        if before["rank"] == one["rank"]:
            raise InputError(f"two processes claim to be its number {one['local']}", f"node {one['node']}")
    _compare_clocks(said)
    for key in ("cores", "memory"):
        _compare_budgets(said, key)
    _compare_disks(said)


def _compare_clocks(said: Sequence[Mapping[str, Any]]) -> None:
    clocks = sorted(one["clock"] for one in said)
    middle = clocks[len(clocks) // 2]
    for one in said:
        if abs(one["clock"] - middle) > CLOCKS_APART:
            apart = one["clock"] - middle
            raise InputError(
                f"its clock is {abs(apart):.1f} s {'ahead of' if apart > 0 else 'behind'} the others'; "
                f"at most {CLOCKS_APART:g} s are allowed",
                f"node {one['node']}",
            )


def _compare_budgets(said: Sequence[Mapping[str, Any]], key: str) -> None:
    """Compares the budgets of nodes on one machine, together, to what it has."""
    for who, here in _by_machine(said, key):
        wanted, there = sum(one[key][0] for one in here), max(one[key][1] for one in here)
        if wanted > there:
            text = size_text if key == "memory" else str
            raise InputError(f"{text(wanted)} in all, but the machine has {text(there)}", f"node {who}: {key}")


def _compare_disks(said: Sequence[Mapping[str, Any]]) -> None:
    """Compares budgets of disk to the size of the disks under `path`; the memory plan checks what is free on them."""
    for who, here in _by_machine(said, "disk"):
        disks = {device: size for one in here for device, size in one["disk"][1].items()}
        wanted, there = sum(one["disk"][0] for one in here), sum(disks.values())
        if disks and wanted > there:
            disks_text = f"the disks under `path` have {size_text(there)}"
            raise InputError(f"{size_text(wanted)}, but {disks_text}", f"node {who}: disk")


def _by_machine(said: Sequence[Mapping[str, Any]], key: str) -> Iterator[tuple[str, list[Mapping[str, Any]]]]:
    """Yields, of each machine, the names of the nodes with a budget, and their statements. A budget is its node's, so
    only each node's first process counts."""
    for machine in dict.fromkeys(one["machine"] for one in said):
        here = [one for one in said if one["machine"] == machine and one["local"] == 0 and one[key][0]]
        if here:
            yield ", ".join(one["node"] for one in here), here
