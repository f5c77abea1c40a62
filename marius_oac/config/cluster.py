"""`nodes.yaml`: the nodes of a run over several nodes, one entry each. Imports neither torch nor numba.

Adding an entry adds a node; nothing else changes.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ValidationError, model_validator
from pydantic_core import PydanticKnownError

from marius_oac.config.errors import causes, explain, read_mapping, reason
from marius_oac.config.sections import (
    Bool,
    Bytes,
    Files,
    Name,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Section,
)
from marius_oac.errors import ConfigError

SECRET_VARIABLE = "MARIUS_OAC_SECRET"
START_VARIABLE = "MARIUS_OAC_START"
"""Names this start of the processes: they ignore entries of the store under another name."""
MIN_SECRET = 32  # characters: 16 random bytes as hexadecimal digits
_LOOPBACK = "127.0.0.1"


def _weight(value: Any) -> Any:
    if isinstance(value, bool):
        return float(value)
    if isinstance(value, str):
        raise PydanticKnownError("float_type")
    return value


def _numbers(value: Any) -> Any:
    """`gpus: 2` is short for `gpus: [0, 1]`."""
    short = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 1024
    return list(range(value)) if short else value


Weight = Annotated[
    float, BeforeValidator(_weight, json_schema_input_type=bool | float), Field(ge=0, allow_inf_nan=False)
]
Port = Annotated[int, Field(ge=1024, le=65535, strict=True)]


class NodeConfig(Section):
    """One entry of `nodes`."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]*$|^::1$")] = Field(
        "", description="Name of the node in messages. Default: its address. Under Slurm, its Slurm name.",
        validate_default=False,
    )  # fmt: skip
    address: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]*$|^::1$")] = Field(
        description="Host name or IP address at which other nodes reach the node."
    )
    port: Port | None = Field(
        None,
        description="First port of the node's shard servers, one port per process. Default: the rendezvous port plus 1,"
        " or free ports if all nodes are on this machine.",
    )
    interface: Name | None = Field(None, description="Network interface. Default: the interface of the address.")
    cores: PositiveInt | None = Field(
        None, description="CPU cores for all trainers of the node. Default: all that are available."
    )
    memory: Bytes | None = Field(
        None, description="Memory for rows, such as 64GiB. Default: storage.memory of the configuration."
    )
    disk: Bytes | None = Field(
        None, description="Disk space for rows and their copies in checkpoints. Default: all free space."
    )
    path: Files = Field((), description="Folders for rows on disk. Default: storage.path of the configuration.")
    gpus: (
        Annotated[tuple[NonNegativeInt, ...], BeforeValidator(_numbers, json_schema_input_type=int | tuple[int, ...])]
        | None
    ) = Field(
        None,
        description="Number of GPUs, or a list of GPU numbers: one per trainer. Default: device of the configuration.",
    )
    trainers: NonNegativeInt = Field(
        1, description="Number of training processes. 0: one process that only serves rows and dense parameters."
    )
    shards: Weight = Field(
        True, validate_default=True,
        description="Whether the node stores rows: true, false, or its weight relative to other nodes, such as 2."
    )  # fmt: skip
    python: Name | None = Field(None, description="Python interpreter on the node. Default: the launcher's.")
    directory: Name | None = Field(None, description="Working directory on the node. Default: the launcher's.")

    @property
    def processes(self) -> int:
        """Processes that run on it."""
        return max(1, self.trainers)

    @property
    def loopback(self) -> bool:
        """Whether only this machine reaches it."""
        return is_loopback(self.address)

    @model_validator(mode="before")
    @classmethod
    def _named(cls, tree: Any) -> Any:
        if isinstance(tree, Mapping) and tree.get("name") is None and isinstance(tree.get("address"), str):
            return {**tree, "name": tree["address"]}
        return tree

    @model_validator(mode="after")
    def _adds_up(self) -> NodeConfig:
        if self.cores is not None and self.cores < self.trainers:
            raise ValueError(f"cores: {self.cores} for {self.trainers} trainers; each needs one")
        if not self.trainers and not self.shards:
            raise ValueError("trainers: 0, and it carries no shards: it would do nothing")
        if self.gpus and len(self.gpus) != self.trainers:
            raise ValueError(f"gpus: {len(self.gpus)} for {self.trainers} trainers; each computes on one")
        if self.gpus and len(set(self.gpus)) < len(self.gpus):
            raise ValueError("gpus: a number stands here twice")
        for key in ("disk", "path"):
            if getattr(self, key) and self.memory is None:
                raise ValueError(f"{key}: needs `memory`, else all rows are in memory")
            if getattr(self, key) and not self.shards:
                raise ValueError(f"{key}: set, but it carries no shards")
        return self


class ClusterConfig(Section):
    """All of `nodes.yaml`. `load` reads it; `local` makes the one of `--local-nodes`."""

    secret: Name | None = Field(
        None,
        description="File with the secret shared by the nodes: 32 random characters or more, file mode 600. Relative "
        "paths start at the folder of nodes.yaml. MARIUS_OAC_SECRET overrides it. Default: a new secret for"
        " each run, if one command starts all nodes.",
    )
    port: Port = Field(29400, description="Port of the rendezvous on the first node.")
    encryption: Bool = Field(
        False,
        description="Encrypt rows and their gradients between trainers and shards. gloo and NCCL traffic is not "
        "encrypted.",
    )
    timeout: PositiveFloat = Field(
        60.0,
        description="Seconds after which a silent node counts as lost. Nodes wait twice as long for each other to "
        "start.",
    )
    restarts: NonNegativeInt = Field(
        0,
        description="Maximum number of restarts of all trainers from the last checkpoint after one is lost. Other "
        "failures cause no restart.",
    )
    elastic_workers: Annotated[NonNegativeInt, Field(le=1024)] = Field(
        0,
        description="Maximum number of processes that may attach to the run with `marius-oac attach`, and detach, in "
        "modes that dispatch batches (all except sync).",
    )
    nodes: Annotated[tuple[NodeConfig, ...], Field(min_length=1)] = Field(description="One entry per node.")

    @property
    def size(self) -> int:
        """Processes of all nodes: torch.distributed's world size."""
        return sum(node.processes for node in self.nodes)

    def first_rank(self, node: NodeConfig) -> int:
        """Rank of a node's first process."""
        return sum(each.processes for each in self.nodes[: self.nodes.index(node)])

    @property
    def free_ports(self) -> bool:
        """Whether servers take any free port and tell the others: where all nodes are on this machine, unnamed."""
        return all(node.loopback and node.port is None for node in self.nodes)

    def node_port(self, node: NodeConfig) -> int:
        """First port of a node's shard servers; 0: free ones."""
        return 0 if self.free_ports else node.port or self.port + 1

    def digest(self) -> str:
        """SHA-256 of everything that must be the same on every node; paths of the secret and of Python may differ."""
        tree = self.model_dump(mode="json", exclude={"secret": True, "nodes": {"__all__": {"python", "directory"}}})
        return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()

    @classmethod
    def local(cls, count: int, cores: int) -> ClusterConfig:
        """`count` nodes on this machine, with one trainer each and an equal share of its cores."""
        each = max(1, cores // count)
        nodes = tuple(NodeConfig(name=f"node{k}", address=_LOOPBACK, cores=each) for k in range(count))
        return cls(nodes=nodes)

    @classmethod
    def load(cls, path: str | Path) -> ClusterConfig:
        """Reads a `nodes.yaml`.

        Raises:
            ConfigError: missing or broken file, unknown key, wrong type, a name or a port given twice, budgets that do
                not add up, no trainers, no shards. Names file, line and node.
        """
        path = Path(path)
        tree, lines = read_mapping(path, "nodes: [{address: a}, {address: b}]")
        tree = {str(key): value for key, value in tree.items()}
        try:
            cluster = cls.model_validate(tree)
        except ValidationError as error:
            found = {str(each): each for each in (_located(one, tree, path, lines) for one in causes(error))}
            first, *others = found.values()
            raise first.with_others(others) from None
        _check_together(cluster, path, lines)
        if cluster.secret is not None:
            cluster = cluster.model_copy(update={"secret": str(path.parent / cluster.secret)})
        return cluster


def read_secret(cluster: ClusterConfig, environment: Mapping[str, str] = os.environ) -> str:
    """The run's secret: of the environment variable MARIUS_OAC_SECRET, else of the file that nodes.yaml names.

    Raises:
        ConfigError: there is none, others may read the file, or it is too short.
    """
    if SECRET_VARIABLE in environment:
        return _long_enough(environment[SECRET_VARIABLE].strip(), SECRET_VARIABLE)
    if cluster.secret is None:
        raise ConfigError(
            f"the nodes need a secret: set {SECRET_VARIABLE}, or name a file made by "
            "`(umask 077; openssl rand -hex 32 > secret)`",
            "secret",
        )
    path = Path(cluster.secret)
    try:
        mode = path.stat().st_mode & 0o777
        text = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(reason(error), f"secret: {path}") from None
    if mode & 0o077:
        raise ConfigError(f"others than its owner may use it (mode {mode:o}): chmod 600 {path}", f"secret: {path}")
    return _long_enough(text, f"secret: {path}")


def is_loopback(address: str) -> bool:
    """Whether an address is this machine's own and no other's."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def _long_enough(secret: str, where: str) -> str:
    if len(secret) < MIN_SECRET:
        raise ConfigError(f"has {len(secret)} characters; {MIN_SECRET} or more are needed, of random ones", where)
    return secret


def _located(
    error: Mapping[str, Any], tree: Mapping[str, Any], path: Path, lines: Mapping[tuple[Any, ...], int]
) -> ConfigError:
    """A validation error with file, line, node and key."""
    loc = [str(part) for part in error["loc"]]
    message = explain(error, ClusterConfig)
    if error["type"] == "value_error":  # "key: what is wrong", the key relative to the section
        key, _, message = message.partition(": ")
        loc.append(key)
    elif error["type"] == "string_pattern_mismatch":
        message = f"must be a name of letters, digits and . _ : - , not {error['input']!r}"
    elif error["type"] == "tuple_type":
        message = "must be a list" if loc[-1] != "gpus" else "must be a number of GPUs, or a list of theirs"
    said = next((tuple(loc[:n]) for n in range(len(loc), 0, -1) if tuple(loc[:n]) in lines), None)
    place = str(path) if said is None else f"{path}:{lines[said]}"
    if loc[0] == "nodes" and len(loc) > 1:
        entry = tree["nodes"][int(loc[1])]
        name = (entry.get("name") or entry.get("address")) if isinstance(entry, Mapping) else None
        who = f"node {name}" if isinstance(name, str) else f"nodes.{loc[1]}"
        unnamed = isinstance(entry, Mapping) and "name" not in entry  # its name is its address
        loc = [who, *("address" if unnamed and key == "name" else key for key in loc[2:3])]
    return ConfigError(message, ": ".join([place, *(loc if loc[0].startswith("node") else [".".join(loc)])]))


def _check_together(cluster: ClusterConfig, path: Path, lines: Mapping[tuple[Any, ...], int]) -> None:
    """Checks what entries must not share, and what at least one must have."""

    def wrong(index: int, key: str, message: str) -> ConfigError:
        line = lines.get(("nodes", str(index), key), lines["nodes", str(index)])
        return ConfigError(message, f"{path}:{line}: node {cluster.nodes[index].name}: {key}")

    names: dict[str, int] = {}
    ports = {} if cluster.free_ports else {(cluster.nodes[0].address, cluster.port): "the rendezvous"}
    for index, node in enumerate(cluster.nodes):
        if node.name in names:
            raise wrong(index, "name", f"is the name of the entry in line {lines['nodes', str(names[node.name])]}, too")
        names[node.name] = index
        first = cluster.node_port(node)
        for port in range(first, first + node.processes) if first else ():
            if port > 65535:
                raise wrong(index, "port", f"its {node.processes} servers would need port {port}; 65535 is the last")
            other = ports.setdefault((node.address, port), f"node {node.name}")
            if other != f"node {node.name}":
                raise wrong(index, "port", f"port {port} of {node.address} is taken by {other}; give it another")
    if not any(node.trainers for node in cluster.nodes):
        raise ConfigError("no node has trainers: nobody would train", path)
    if not cluster.nodes[0].trainers:
        raise wrong(0, "trainers", "0, but the first node evaluates and decides, and must train; list it further down")
    if not any(node.shards for node in cluster.nodes):
        raise ConfigError("no node has shards: nobody would keep the rows", path)
    if cluster.elastic_workers and cluster.free_ports:
        first = next(index for index, node in enumerate(cluster.nodes) if node.shards)
        raise wrong(
            first, "port", "not given, so it takes any that is free, where elastic workers would not find it; give one"
        )
    mixed = [node.loopback for node in cluster.nodes]
    if any(mixed) and not all(mixed):
        raise wrong(mixed.index(True), "address", "means each machine itself; other nodes can't reach it there")
