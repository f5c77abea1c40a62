"""What a trainer that an actor starts is told: JSON on its standard input, and two environment variables."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from marius_oac.config.cluster import START_VARIABLE, ClusterConfig, read_secret
from marius_oac.nodes.launch.agent import (
    LocalProcesses,
    node_loss_marked,
    stopped_by_sigterm,
    store_of,
)
from marius_oac.nodes.launch.cluster import Place, check_machine, names, this_machine
from marius_oac.nodes.launch.launch import AGENT_STORE
from marius_oac.nodes.launch.parent import end_with_parent
from marius_oac.nodes.launch.tunnel import LOOPBACK

MEETING = 3  # times `timeout`: how long a start waits for room, and processes for each other


@contextmanager
def placed(job: Mapping[str, Any]) -> Iterator[Place]:
    """Yields the place of this process, in a start of the run, with torch's variables set.

    Args:
        job: `cluster`, `rank`, `attempt` and `endpoint`, as `driver` has made them.

    Raises:
        InputError: this machine does not fit the node's entry, or the rendezvous' port is taken.
        NodeLost: the first process is not there.
    """
    # Ray blocks SIGINT in the processes that it starts, and they pass that on.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
    end_with_parent()
    cluster = ClusterConfig.model_validate(job["cluster"])
    rank, attempt = int(job["rank"]), int(job["attempt"])
    node = cluster.nodes[rank]
    place = Place(cluster, node, rank, 0, check_machine(node, this_machine()), attempt)
    processes = LocalProcesses(
        (),
        [node.name],
        read_secret(cluster),
        nodes=names(cluster),
        index=rank,
        endpoint=job["endpoint"],
        address=node.address,
        timeout=cluster.timeout,
        patience=MEETING * cluster.timeout,
    )
    os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"  # torch would warn when processes disconnect at the end
    with stopped_by_sigterm(), node_loss_marked(), store_of(processes) as store:
        os.environ |= {
            "WORLD_SIZE": str(place.size),
            "MASTER_ADDR": LOOPBACK,
            "MASTER_PORT": str(store.port),
            AGENT_STORE: "True",  # so that torch makes none
            START_VARIABLE: f"trainers of start {attempt}",
            **place.environment(),
        }
        yield place
