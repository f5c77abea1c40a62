"""Starts trainers on every node from one command line.

There are three ways, which start the same processes:
- torchrun started this process: it trains.
- `--local-nodes N`: this process starts N nodes on this machine, and listens for them on 127.0.0.1 alone.
- `--nodes FILE`: this process starts the same command with `--node NAME` on each node, by ssh or, under Slurm, by srun.
  With `--node NAME` it starts that node's processes.
"""

from __future__ import annotations

import os
import secrets
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marius_oac.config.cluster import SECRET_VARIABLE, START_VARIABLE, ClusterConfig, read_secret
from marius_oac.errors import InputError
from marius_oac.nodes.launch.agent import (
    LocalProcesses,
    listen,
    node_loss_marked,
    run,
    stopped_by_sigterm,
)
from marius_oac.nodes.launch.cluster import (
    Place,
    check_machine,
    find_place,
    listening_at,
    names,
    node_named,
    this_machine,
)
from marius_oac.nodes.launch.parent import PARENT, end_with_parent, stopped_with_parent
from marius_oac.nodes.launch.remote import commands, start
from marius_oac.runtime.console import answer, logger, report
from marius_oac.runtime.resuming import started_with
from marius_oac.types import present

AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"
_NO_SHARED_STORE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
_STARTING = 2
"""Times `timeout`: how long agents wait for each other to start. One that is killed before it has come to the
rendezvous is missed by nobody else, so a longer wait would keep the run from ending in time."""


@dataclass(frozen=True)
class Request:
    """The options of the command line. Several nodes are asked for by `nodes` or `local`.

    Attributes:
        argv: the arguments of `marius-oac`.
        nodes: the file of `--nodes`.
        local: the number of `--local-nodes`.
        node: of `--node`: start, or be, this node alone.
        dry_run: print the commands.
        program: what `python` runs with these arguments.
    """

    argv: Sequence[str]
    nodes: Path | None = None
    local: int | None = None
    node: str | None = None
    dry_run: bool = False
    program: Sequence[str] = ("-P", "-m", "marius_oac")

    @property
    def options(self) -> list[str]:
        """The options with which a run that was started so goes on."""
        if self.nodes is not None:
            return ["--nodes", str(self.nodes)]
        return [] if self.local is None else ["--local-nodes", str(self.local)]

    @property
    def starts_here(self) -> bool:
        """Whether this process starts the processes of `--local-nodes`, and is none of them."""
        return self.local is not None and not self.dry_run and "RANK" not in os.environ

    @property
    def wanted(self) -> bool:
        """Whether several nodes are asked for.

        Raises:
            InputError: an option is given that makes sense only with several nodes, or with the other of the two.
        """
        several = self.nodes is not None or self.local is not None
        for given, option in ((self.node, "--node"), (self.dry_run, "--dry-run")):
            if given and not several:
                raise InputError("needs --nodes FILE, or --local-nodes N", option)
        if self.node is not None and self.local is not None:
            raise InputError("says which node of --nodes FILE this is; --local-nodes starts all of them", "--node")
        return several

    def cluster(self) -> ClusterConfig:
        """Returns the nodes.

        Raises:
            InputError: nodes.yaml is wrong, or `local` is less than 1.
        """
        return local_cluster(present(self.local)) if self.nodes is None else ClusterConfig.load(self.nodes)


def local_cluster(count: int) -> ClusterConfig:
    """Returns `count` nodes on this machine.

    Raises:
        InputError: `count` is less than 1.
    """
    if count < 1:
        raise InputError(f"must be at least 1, not {count}", "--local-nodes")
    return ClusterConfig.local(count, this_machine().cores)


def on_nodes(request: Request, train: Callable[[Place], Any]) -> int:
    """Trains in this process if torchrun has started it, else starts the nodes; returns the exit code.

    Args:
        request: the options of the command line.
        train: does this process's part of the training; a result that is not None is printed.

    Raises:
        InputError: nodes.yaml or its secret is wrong, or this machine does not fit it. Nothing was started.
        NodeLost: a process was ended by a signal, or a node has not come.
    """
    cluster = request.cluster()
    if "RANK" in os.environ:
        end_with_parent()
        place = find_place(cluster, request.node)
        read_secret(cluster)
        if place.attempt and not place.local:
            logger.info(f"node {place.node.name}: started again ({place.attempt})")
        with stopped_by_sigterm(), node_loss_marked(), _store(), stopped_with_parent(cluster.timeout):
            os.environ.update(place.environment())
            with started_with(request.options):
                result = train(place)
        if not place.rank and result is not None:
            report(result)
        return 0
    if request.local is not None:
        return start_local(request, cluster)
    return start_everywhere(request, cluster) if request.node is None else start_node(request, cluster)


def start_local(request: Request, cluster: ClusterConfig) -> int:
    """Runs the nodes of `--local-nodes` on this machine; returns the exit code."""
    command = [*request.program, *request.argv]
    if request.dry_run:
        torchrun = ["python", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(cluster.size)]
        words = [word for word in [*torchrun, *command] if word not in ("--dry-run", "-P")]
        variables = f"{SECRET_VARIABLE}=$(openssl rand -hex 32) {_NO_SHARED_STORE}=1 PYTHONSAFEPATH=1"
        answer(f"{variables} {shlex.join(words)}")
        return 0
    machine = this_machine()
    for node in cluster.nodes:
        check_machine(node, machine)
    return run(LocalProcesses(command, names(cluster), new_secret(), timeout=cluster.timeout))


def start_node(request: Request, cluster: ClusterConfig) -> int:
    """Runs the processes of `--node NAME` on this machine; returns the exit code. They end with their guard, if any."""
    if PARENT in os.environ:
        end_with_parent()
    index = node_named(cluster, present(request.node))
    node = cluster.nodes[index]
    check_machine(node, this_machine())
    command = [*request.program, *request.argv]
    before = sum(other.processes for other in cluster.nodes[:index])
    own = names(cluster)[before : before + node.processes]
    return run(
        LocalProcesses(
            command,
            own,
            read_secret(cluster),
            nodes=[each.name for each in cluster.nodes],
            index=index,
            endpoint=_meeting_point(cluster),
            address=node.address,
            timeout=cluster.timeout,
            restarts=cluster.restarts,
            patience=_STARTING * cluster.timeout,
        )
    )


def _meeting_point(cluster: ClusterConfig) -> str:
    """Returns IP:PORT of the rendezvous. Raises InputError where the first node's name has no address."""
    first = cluster.nodes[0]
    try:
        return listening_at(first.address, cluster.port)
    except OSError as error:
        raise InputError(f"there is no address of {first.address}: {error.strerror}", f"node {first.name}") from None


def start_everywhere(request: Request, cluster: ClusterConfig) -> int:
    """Runs the same command on each node; returns the exit code."""
    words = [*request.program, *(word for word in request.argv if word != "--dry-run")]
    made = commands(cluster, words)
    if request.dry_run:
        about = "# each reads the run's secret from its standard input, and stops when that ends"
        answer("\n".join([about, *(shlex.join(command) for _, command in made)]))
        return 0
    given = SECRET_VARIABLE in os.environ or cluster.secret is not None
    return start(made, read_secret(cluster) if given else new_secret(), cluster.timeout)


def new_secret() -> str:
    """Returns a secret for one run: 32 random bytes as hexadecimal digits."""
    return secrets.token_hex(32)


@contextmanager
def _store() -> Iterator[None]:
    """Serves, from rank 0, the store by which the processes of the user's own torchrun find each other.

    torch's own store would listen on every interface. This one is new for each start: the keys of an earlier start in
    torchrun's agent's store would mislead the next one. Processes that our agent started use the agent's store.

    Raises:
        InputError: torchrun would start processes again with its agent's store.
    """
    if START_VARIABLE in os.environ:
        yield
        return
    number, restarts = os.environ["RANK"], int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0"))
    kept = None
    if os.environ.get(AGENT_STORE) == "True":
        if restarts:
            raise InputError(
                f"torchrun needs {_NO_SHARED_STORE}=1 in its environment to start nodes again", "--max-restarts"
            )
    elif number == "0":
        kept = listen(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), 60)
    os.environ[AGENT_STORE] = "True"  # so that torch makes none
    yield
    del kept
