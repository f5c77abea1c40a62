"""`marius-oac nodes check`: checks whether several nodes could train together, before they do.

A process on each node (`probe`) reports what the node has, and measures its connection to the next node. Nothing is
changed anywhere. Configs and data are compared when training starts; the report says what was not checked.
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
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

from marius_oac import __version__
from marius_oac.config.cluster import ClusterConfig, NodeConfig, read_secret
from marius_oac.errors import InputError, size_text
from marius_oac.nodes.launch.agree import CLOCKS_APART
from marius_oac.nodes.launch.cluster import Machine, check_machine
from marius_oac.nodes.launch.remote import reach
from marius_oac.types import present

PATIENCE = 30.0  # seconds until a silent node counts as unreachable
_MEASURED = 64 << 20  # bytes from each node to the next
_NOT_CHECKED = (
    "not checked: other ports, which gloo, NCCL and heartbeats choose freely; GPUs; whether config and data are the "
    "same on all, which training compares before it starts"
)


@dataclass
class Found:
    """What is known of a node.

    Attributes:
        facts: what its probe reported; empty where the node was not reached.
        clock: seconds by which its clock is ahead of this machine's; None: unknown.
        link: the speed of the connection to the next node, in words.
        wrong: what is wrong, a line each.
    """

    node: NodeConfig
    facts: Mapping[str, Any] = field(default_factory=dict)
    clock: float | None = None
    link: str = ""
    wrong: list[str] = field(default_factory=list)

    def cells(self) -> tuple[str, ...]:
        """Returns the node's line of the table."""
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
    """What `nodes check` prints: a table of the nodes, then what is wrong, a line each."""

    found: Sequence[Found]
    wrong: Sequence[str]

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.wrong

    def __str__(self) -> str:
        head = ("node", "address", "versions", "clock", "memory", "disk", "to the next node", "")
        rows = [head, *(one.cells() for one in self.found)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n".join([*lines, "", *self.wrong, _NOT_CHECKED])


def check(cluster: ClusterConfig, here: bool = False) -> Report:
    """Probes every node and reports what it finds.

    Args:
        cluster: the nodes.
        here: whether all nodes are on this machine, so that neither ssh nor Slurm is needed.

    Raises:
        InputError: ssh or srun is not here.
    """
    secret = secrets.token_hex(32)
    found = [Found(node) for node in cluster.nodes]
    with ExitStack() as stack:
        probes = []
        for one in found:
            words = ["-P", "-m", "marius_oac.nodes.launch.probe"]
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
    """Returns the ports that a node needs: of its shard servers and, on the first node, of the rendezvous."""
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
    """Compares a node's clock to this machine's; the result is off by half of the round trip at most."""
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
    """Measures the connection from a node to the next one."""
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
    """Returns what is wrong with the whole: the secret, budgets of nodes that share a machine."""
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
    """The connection to a node's probe."""

    def __init__(self, command: Sequence[str]) -> None:
        try:
            self._process = process = subprocess.Popen(
                command, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
        except FileNotFoundError:
            raise InputError(f"there is no {command[0]} here to reach nodes with", "nodes check") from None
        self._in, self._out, self._err = map(present, (process.stdin, process.stdout, process.stderr))
        self._read = b""

    def say(self, value: Mapping[str, Any]) -> None:
        """Sends a request; to a probe that has ended it sends nothing."""
        with suppress(BrokenPipeError):
            self._in.write(json.dumps(value).encode() + b"\n")

    def answer(self) -> dict[str, Any]:
        """Returns the next answer; where none comes, {"problem": why}."""
        deadline = time.monotonic() + PATIENCE
        with selectors.DefaultSelector() as selector:
            selector.register(self._out, selectors.EVENT_READ)
            while b"\n" not in self._read:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    return {"problem": f"has not answered for {PATIENCE:g} s"}
                more = os.read(self._out.fileno(), 1 << 16)
                if not more:
                    return {"problem": self._last_line()}
                self._read += more
        line, _, self._read = self._read.partition(b"\n")
        try:
            found: dict[str, Any] = json.loads(line)
            return found
        except ValueError:
            return {"problem": f"sent {line[:60]!r} in place of an answer"}

    def ask(self, value: Mapping[str, Any]) -> dict[str, Any]:
        """Sends a request and returns the answer."""
        self.say(value)
        return self.answer()

    def _last_line(self) -> str:
        lines = self._err.read().decode("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else f"has ended with exit code {self._process.wait()}"

    def __enter__(self) -> _Probe:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._in.close()
        try:
            self._process.wait(PATIENCE if kind is None else 0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._out.close()
        self._err.close()
