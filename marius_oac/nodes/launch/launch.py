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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marius_oac.config.cluster import SECRET_VARIABLE, START_VARIABLE, ClusterConfig, read_secret
from marius_oac.errors import InputError
from marius_oac.nodes.launch.agent import (
    PARENT,
    LocalProcesses,
    end_with_parent,
    listen,
    run,
    told_if_lost,
    told_to_end,
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
from marius_oac.nodes.launch.remote import commands, start
from marius_oac.runtime.console import answer, logger, report

_AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"
_NO_SHARED_STORE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
MEETING = 3  # times `timeout`: so long nodes wait for each other to start, and to start again


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
        NodeLost: a process was ended by a signal, or a node has not come.
    """
    cluster = request.cluster()
    if "RANK" in os.environ:
        end_with_parent()
        place = find_place(cluster, request.node)
        read_secret(cluster)
        if place.attempt and not place.local:
            logger.info(f"node {place.node.name}: started again ({place.attempt})")
        with told_to_end(), told_if_lost(), _store():
            os.environ.update(place.environment())
            result = train(place)
        if not place.rank and result is not None:
            report(result)
        return 0
    if request.local is not None:
        return start_local(request, cluster)
    return start_everywhere(request, cluster) if request.node is None else start_node(request, cluster)


def start_local(request: Request, cluster: ClusterConfig) -> int:
    """Starts the nodes of `--local-nodes` on this machine, and waits for them."""
    command = [*request.program, *request.argv]
    if request.dry_run:
        torchrun = ["python", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(cluster.size)]
        words = [word for word in [*torchrun, *command] if word != "--dry-run"]
        answer(f"{SECRET_VARIABLE}=$(openssl rand -hex 32) {_NO_SHARED_STORE}=1 {shlex.join(words)}")
        return 0
    machine = this_machine()
    for node in cluster.nodes:
        check_machine(node, machine)
    return run(LocalProcesses(command, names(cluster), new_secret()))


def start_node(request: Request, cluster: ClusterConfig) -> int:
    """Starts the processes of `--node NAME` on this machine, and waits for them. They end with the guard, if there is
    one."""
    if PARENT in os.environ:
        end_with_parent()
    index = node_named(cluster, request.node)
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
            patience=MEETING * cluster.timeout,
        )
    )


def _meeting_point(cluster: ClusterConfig) -> str:
    """IP:PORT. Raises InputError where the first node's name has no address."""
    first = cluster.nodes[0]
    try:
        return listening_at(first.address, cluster.port)
    except OSError as error:
        raise InputError(f"there is no address of {first.address}: {error.strerror}", f"node {first.name}") from None


def start_everywhere(request: Request, cluster: ClusterConfig) -> int:
    """Starts the same command on each node, and waits for all."""
    words = [*request.program, *(word for word in request.argv if word != "--dry-run")]
    made = commands(cluster, words)
    if request.dry_run:
        about = "# each reads the run's secret from its standard input, and stops when that ends"
        answer("\n".join([about, *(shlex.join(command) for _, command in made)]))
        return 0
    given = SECRET_VARIABLE in os.environ or cluster.secret is not None
    return start(made, read_secret(cluster) if given else new_secret())


def new_secret() -> str:
    """A secret for one run: 32 random bytes as hexadecimal digits."""
    return secrets.token_hex(32)


@contextmanager
def _store() -> Iterator[None]:
    """The store by which the processes find each other that the user's own torchrun started: kept by its rank 0.

    torch's own would listen on every interface. It is a new one for each start, where torchrun's agent keeps none:
    what a start left in an agent's store leads the next one astray. Those that our agent started have its store.

    Raises:
        InputError: torchrun would start again with the agent's store.
    """
    if START_VARIABLE in os.environ:
        yield
        return
    number, restarts = os.environ["RANK"], int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0"))
    kept = None
    if os.environ.get(_AGENT_STORE) == "True":
        if restarts:
            raise InputError(
                f"torchrun needs {_NO_SHARED_STORE}=1 in its environment to start nodes again", "--max-restarts"
            )
    elif number == "0":
        kept = listen(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), 60)
    os.environ[_AGENT_STORE] = "True"  # so that torch makes none
    yield
    del kept
