"""`marius-oac nodes check`: whether several nodes could train together, before anybody waits for them.

A process on each node (`probe`) says what it has, and measures how fast it reaches the next one. Nothing is changed
anywhere; configs and data are compared when training starts, and what cannot be seen from here is said.
"""

from __future__ import annotations

import json
import os
import secrets
import selectors
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib.metadata import version
from types import TracebackType
from typing import Any

from marius_oac import __version__
from marius_oac.config.cluster import ClusterConfig, NodeConfig, read_secret
from marius_oac.errors import InputError
from marius_oac.nodes.launch.agree import CLOCKS_APART
from marius_oac.nodes.launch.cluster import Machine, check_machine, size_text
from marius_oac.nodes.launch.remote import reach

PATIENCE = 30.0  # seconds until a node that says nothing is taken for unreachable
_MEASURED = 64 << 20  # bytes from each node to the next
_NOT_CHECKED = (
    "not checked: other ports, which gloo and NCCL choose freely between nodes; GPUs; whether config and data are the "
    "same on all, which training compares before it starts"
)


@dataclass
class Found:
    """What is known of a node: what its probe said, and what is wrong."""

    node: NodeConfig
    facts: Mapping[str, Any] = field(default_factory=dict)
    clock: float | None = None
    link: str = ""
    wrong: list[str] = field(default_factory=list)

    def cells(self) -> tuple[str, ...]:
        """Its line of the table."""
        if not self.facts:
            return (self.node.name, self.node.address, "", "", "", "", "", "unreachable")
        versions = self.facts["versions"]
        memory, disk = size_text(self.facts["free_memory"]), size_text(self.facts["free_disk"])
        return (
            self.node.name,
            self.node.address,
            f"{versions['marius_oac']}, torch {versions['torch'] or 'missing'}",
            "" if self.clock is None else f"{self.clock:+.3f} s",
            f"{size_text(self.node.memory)} of {memory}" if self.node.memory else f"{memory} free",
            f"{size_text(self.node.disk)} of {disk}" if self.node.disk else f"{disk} free",
            self.link,
            "wrong" if self.wrong else "ok",
        )


@dataclass(frozen=True)
class Report:
    """What `nodes check` prints; `ok` if nothing is wrong."""

    found: Sequence[Found]
    wrong: Sequence[str]

    @property
    def ok(self) -> bool:
        return not self.wrong

    def __str__(self) -> str:
        head = ("node", "address", "versions", "clock", "memory", "disk", "to the next node", "")
        rows = [head, *(one.cells() for one in self.found)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n".join([*lines, "", *self.wrong, _NOT_CHECKED])


def check(cluster: ClusterConfig, here: bool = False) -> Report:
    """Asks every node, and looks at what it says.

    Args:
        here: all nodes are on this machine: nobody need be reached.
    """
    secret = secrets.token_hex(32)
    found = [Found(node) for node in cluster.nodes]
    with ExitStack() as stack:
        probes = []
        for one in found:
            words = ["-m", "marius_oac.nodes.launch.probe"]
            command = [sys.executable, *words] if here else reach(cluster, one.node, words)
            probes.append(stack.enter_context(_Probe(command)))
        for one, probe in zip(found, probes, strict=True):
            ports = _ports(cluster, one.node)
            probe.say({"secret": secret, "address": one.node.address, "ports": ports, "path": list(one.node.path)})
        for one, probe in zip(found, probes, strict=True):
            _take_facts(one, probe.answer())
            if one.facts:
                _take_clock(one, probe)
        reached = [(one, probe) for one, probe in zip(found, probes, strict=True) if one.facts]
        for (one, probe), (other, receiver) in zip(reached, [*reached[1:], *reached[:1]], strict=True):
            if one is not other:
                _measure(one, probe, other, receiver)
    each = [f"node {one.node.name}: {wrong}" for one in found for wrong in one.wrong]
    return Report(found, _of_all(cluster, found, here) + each)


def _ports(cluster: ClusterConfig, node: NodeConfig) -> list[int]:
    """Those that a node needs: of its shard servers, and of the rendezvous on the first one."""
    first = cluster.node_port(node)
    if not first:
        return [0]
    return [*range(first, first + node.processes), *([cluster.port] if node is cluster.nodes[0] else [])]


def _take_facts(one: Found, facts: Mapping[str, Any]) -> None:
    if "problem" in facts:
        one.wrong.append(facts["problem"])
        return
    one.facts, node = facts, one.node
    for name, ours in (("marius_oac", __version__), ("torch", version("torch").partition("+")[0])):
        theirs = facts["versions"][name]
        if theirs != ours:
            one.wrong.append(f"has {name} {theirs}, here it is {ours}" if theirs else f"has no {name}")
    for port, why in facts["taken"].items():
        one.wrong.append(f"can't listen at {node.address}, port {port}: {why}")
    addresses = {name: tuple(own) for name, own in facts["addresses"].items()}
    machine = Machine(facts["host"], "", addresses, facts["cores"], facts["memory"])
    try:
        check_machine(node, machine)
    except InputError as error:
        one.wrong.append(f"{str(error.where).partition(': ')[2]}: {error.message}")
    for what, budget in (("memory", node.memory), ("disk", node.disk)):
        if budget and facts[f"free_{what}"] < budget <= facts.get(what, budget):
            one.wrong.append(f"{what}: {size_text(budget)}, but {size_text(facts[f'free_{what}'])} are free")


def _take_clock(one: Found, probe: _Probe) -> None:
    """Its clock against this one's; half of the round trip is what this may be wrong by."""
    begin = time.time()
    said = probe.ask({"do": "clock"})
    end = time.time()
    if "clock" not in said:
        one.wrong.append(said["problem"])
        return
    one.clock = said["clock"] - (begin + end) / 2
    if abs(one.clock) - (end - begin) / 2 > CLOCKS_APART:
        one.wrong.append(f"its clock is {abs(one.clock):.1f} s {'ahead' if one.clock > 0 else 'behind'}")


def _measure(one: Found, probe: _Probe, other: Found, receiver: _Probe) -> None:
    """Bytes from a node to the next one, through one connection."""
    if other.facts["port"] is None:
        one.link = "not measured"
        return
    receiver.say({"do": "receive"})
    to = {"address": other.node.address, "port": other.facts["port"], "num_bytes": _MEASURED}
    sent, came = probe.ask({"do": "send"} | to), receiver.answer()
    problem = sent.get("problem") or came.get("problem")
    if problem:
        one.link = "none"
        one.wrong.append(f"does not reach node {other.node.name} at {to['address']}, port {to['port']}: {problem}")
        return
    speed = sent["num_bytes"] / sent["seconds"]
    one.link = f"{speed / 1e9:.2f} GB/s, {sent['trip'] * 1e3:.2f} ms"


def _of_all(cluster: ClusterConfig, found: Sequence[Found], here: bool) -> list[str]:
    """What is wrong with no node in particular: the secret, budgets of nodes that share a machine."""
    wrong = []
    if cluster.secret is not None and not here:
        try:
            read_secret(cluster)
        except InputError as error:
            wrong.append(str(error))
    for machine in dict.fromkeys(one.facts["machine"] for one in found if one.facts):
        together = [one for one in found if one.facts and one.facts["machine"] == machine]
        wanted = sum(one.node.memory or 0 for one in together)
        free = min(one.facts["free_memory"] for one in together)
        if len(together) > 1 and wanted > free:
            who = ", ".join(one.node.name for one in together)
            wrong.append(f"node {who}: memory: {size_text(wanted)} in all, but {size_text(free)} are free there")
    return wrong


class _Probe:
    """A node's probe, as it is spoken to from here."""

    def __init__(self, command: Sequence[str]) -> None:
        try:
            self._process = subprocess.Popen(
                command, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
        except FileNotFoundError:
            raise InputError(f"there is no {command[0]} here to reach nodes with", "nodes check") from None
        self._read = b""

    def say(self, value: Mapping[str, Any]) -> None:
        """A question. One that has ended does not hear it, and has no answer."""
        try:
            self._process.stdin.write(json.dumps(value).encode() + b"\n")
        except BrokenPipeError:
            return

    def answer(self) -> dict[str, Any]:
        """The next answer, or its `problem`."""
        deadline = time.monotonic() + PATIENCE
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._read:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    return {"problem": f"has said nothing for {PATIENCE:g} s"}
                more = os.read(self._process.stdout.fileno(), 1 << 16)
                if not more:
                    return {"problem": self._last_words()}
                self._read += more
        line, _, self._read = self._read.partition(b"\n")
        try:
            return json.loads(line)
        except ValueError:
            return {"problem": f"says {line[:60]!r} in place of an answer"}

    def ask(self, value: Mapping[str, Any]) -> dict[str, Any]:
        """Question and answer."""
        self.say(value)
        return self.answer()

    def _last_words(self) -> str:
        said = self._process.stderr.read().decode("utf-8", "replace").strip().splitlines()
        return said[-1] if said else f"has ended with exit code {self._process.wait()}"

    def __enter__(self) -> _Probe:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._process.stdin.close()
        try:
            self._process.wait(PATIENCE if kind is None else 0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._process.stderr.close()
