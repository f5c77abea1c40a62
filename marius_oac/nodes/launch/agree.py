"""What nodes compare before they train: a node that differs is refused by name, by all alike."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from marius_oac import __version__
from marius_oac.errors import InputError
from marius_oac.nodes.launch.cluster import Machine, Place, size_text, this_machine

CLOCKS_APART = 5.0  # seconds: more is a clock that nobody sets, less may be a busy machine


def statement(
    place: Place, config_digest: str, machine: Machine | None = None, problem: str | None = None, data_digest: str = ""
) -> dict:
    """What a process says of itself before training: plain JSON values, for `Group.gather`, just after a barrier.

    Args:
        config_digest: of everything in the config that must be the same on every node.
        problem: what keeps this node from training, in one line, such as data that it lacks.
        data_digest: of what is trained on.
    """
    machine = machine or this_machine()
    disks = {}
    for folder in place.node.path:
        existing = next(one for one in (Path(folder), *Path(folder).absolute().parents) if one.exists())
        disks[str(existing.stat().st_dev)] = psutil.disk_usage(str(existing)).total
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
        # Nodes that share this machine to be tried out may share its cores, too.
        "cores": [0 if place.cluster.free_ports else place.node.cores or 0, machine.cores],
        "memory": [place.node.memory or 0, machine.memory],
        "disk": [place.node.disk or 0, disks],
        "problem": problem,
    }


def compare(said: Sequence[Mapping[str, Any]]) -> None:
    """Compares what all processes said, by torch's rank or ours; every node finds the same and refuses alike.

    Raises:
        InputError: a node has a problem, or differs from the first in versions, config, nodes.yaml or data; clocks
            are apart; two processes take themselves for the same; nodes on one machine want more than it has.
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
            raise InputError(f"two processes take themselves for its number {one['local']}", f"node {one['node']}")
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
    """A budget is its node's, not its process's: the first process of a node speaks for it."""
    for machine in dict.fromkeys(one["machine"] for one in said):
        here = [one for one in said if one["machine"] == machine and one["local"] == 0 and one[key][0]]
        wanted, there = sum(one[key][0] for one in here), max((one[key][1] for one in here), default=0)
        if wanted > there:
            text = size_text if key == "memory" else str
            who = ", ".join(one["node"] for one in here)
            raise InputError(f"{text(wanted)} in all, but the machine has {text(there)}", f"node {who}: {key}")


def _compare_disks(said: Sequence[Mapping[str, Any]]) -> None:
    """Budgets of disk against the whole disks under `path`; what is free on them is the memory plan's."""
    for machine in dict.fromkeys(one["machine"] for one in said):
        here = [one for one in said if one["machine"] == machine and one["local"] == 0 and one["disk"][0]]
        disks = {device: size for one in here for device, size in one["disk"][1].items()}
        wanted, there = sum(one["disk"][0] for one in here), sum(disks.values())
        if disks and wanted > there:
            who = ", ".join(one["node"] for one in here)
            disks_text = f"the disks under `path` have {size_text(there)}"
            raise InputError(f"{size_text(wanted)}, but {disks_text}", f"node {who}: disk")
