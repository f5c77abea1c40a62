"""From the command line to a trainer on every node.

Three ways lead there, and each ends in the same processes:
- torchrun started this process: it trains.
- `--local-nodes N`: this process starts N nodes on this machine, and listens for them on 127.0.0.1 alone.
- `--nodes FILE`: this process starts the same command with `--node NAME` on each node, by ssh or under Slurm by srun;
  with `--node NAME` it starts that node's processes.
"""

from __future__ import annotations

import os
import secrets
import shlex
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from marius_oac.config_cluster import SECRET_VARIABLE, ClusterConfig, read_secret
from marius_oac.errors import InputError
from marius_oac.nodes.agent import Crew, end_with_agent, run, told_to_end
from marius_oac.nodes.cluster import STORE_VARIABLE, Place, check_machine, find_place, names, this_machine

_NO_STORE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"  # torchrun's agent keeps none


@dataclass(frozen=True)
class Request:
    """What the user typed.

    Attributes:
        argv: the arguments of `marius-oac`.
        nodes: of `--nodes`; `local`: of `--local-nodes`; one of them is given.
        node: of `--node`: start, or be, this node alone.
        dry_run: print the commands.
        program: what `python` runs with these arguments.
    """

    argv: Sequence[str]
    nodes: Path | None = None
    local: int | None = None
    node: str | None = None
    dry_run: bool = False
    program: Sequence[str] = ("-m", "marius_oac")

    @property
    def wanted(self) -> bool:
        """Whether several nodes are asked for. Raises InputError for what means nothing without them."""
        several = self.nodes is not None or self.local is not None
        for given, option in ((self.node, "--node"), (self.dry_run, "--dry-run")):
            if given and not several:
                raise InputError("needs --nodes FILE, or --local-nodes N", option)
        if self.node is not None and self.local is not None:
            raise InputError("says which node of --nodes FILE this is; --local-nodes starts all of them", "--node")
        return several

    def cluster(self) -> ClusterConfig:
        """The nodes. Raises InputError where they are described wrongly."""
        if self.nodes is not None:
            return ClusterConfig.load(self.nodes)
        return local_cluster(self.local)


def local_cluster(count: int) -> ClusterConfig:
    """`count` nodes on this machine. Raises InputError for fewer than one."""
    if count < 1:
        raise InputError(f"must be at least 1, not {count}", "--local-nodes")
    return ClusterConfig.local(count, this_machine().cores)


def on_nodes(request: Request, train: Callable[[Place], Any]) -> int:
    """Trains here if torchrun has started this process, else starts the nodes; returns the exit code.

    Args:
        train: does this process's part of the training; a result that is not None is printed.

    Raises:
        InputError: nodes.yaml or its secret is wrong, or this machine is not as it says. Nothing was started.
        NodeLost: a process was ended by a signal.
    """
    cluster = request.cluster()
    if "RANK" in os.environ:
        end_with_agent()
        place = find_place(cluster, request.node)
        read_secret(cluster)
        os.environ.update(place.environment())
        with told_to_end():
            result = train(place)
        if result is not None:
            sys.stdout.write(f"{result}\n")
        return 0
    if request.local is not None:
        return start_local(request, cluster)
    raise InputError("not yet", "--nodes")


def start_local(request: Request, cluster: ClusterConfig) -> int:
    """Starts the nodes of `--local-nodes` on this machine, and waits for them."""
    command = [*request.program, *request.argv]
    if request.dry_run:
        torchrun = ["python", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(cluster.size)]
        words = [word for word in [*torchrun, *command] if word != "--dry-run"]
        sys.stdout.write(f"{SECRET_VARIABLE}=$(openssl rand -hex 32) {shlex.join(words)}\n")
        return 0
    machine = this_machine()
    for node in cluster.nodes:
        check_machine(node, machine)
    with _store() as store, tempfile.TemporaryDirectory(prefix="marius-oac-") as folder:
        crew = Crew(
            command,
            names(cluster),
            str(Path(folder) / "rendezvous"),
            rendezvous={"store_type": "file"},  # torchrun's own would listen on every interface
            environment={
                SECRET_VARIABLE: new_secret(),
                STORE_VARIABLE: store,
                "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
            },
        )
        return run(crew)


def new_secret() -> str:
    """A secret for one run: 32 random bytes as hexadecimal digits."""
    return secrets.token_hex(32)


@contextmanager
def _store() -> Iterator[str]:
    """The store by which the nodes of this machine find each other, on 127.0.0.1 alone; its HOST:PORT."""
    from torch.distributed import TCPStore

    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        patience = timedelta(seconds=60)
        store = TCPStore(
            "127.0.0.1", port, None, True, patience, wait_for_workers=False, master_listen_fd=os.dup(listening.fileno())
        )
    yield f"127.0.0.1:{port}"
    del store
