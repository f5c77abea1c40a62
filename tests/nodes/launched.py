"""A program that is launched on several nodes as `marius-oac train` is, and does as it is told in place of training.

    launched.py FOLDER BEHAVIOUR (--local-nodes N | --nodes FILE) [--node NAME]

Each process writes what it finds to FOLDER/RANK.json and then a line to the pipe FOLDER/ready.
"""

import argparse
import json
import os
import queue
import signal
import sys
import time
from pathlib import Path

import psutil

from marius_oac.errors import InputError, MariusOacError
from marius_oac.nodes.launch.cluster import names
from marius_oac.nodes.launch.launch import Request, on_nodes
from marius_oac.nodes.launch.parent import MET, tell_agent
from marius_oac.runtime.console import standard_error
from marius_oac.runtime.signals import stop_on_interrupt


def listening():
    """Addresses that this process and its agent listen at."""
    found = [one for pid in (os.getpid(), os.getppid()) for one in psutil.Process(pid).net_connections("inet")]
    return [one.laddr.ip for one in found if one.status == psutil.CONN_LISTEN]


def ready(folder):
    with (folder / "ready").open("w") as pipe:
        pipe.write("ready\n")


def wait(folder, times):
    """Until this process has been asked to stop so often."""
    asked = queue.SimpleQueue()  # a handler may put where it interrupts a get
    with stop_on_interrupt(lambda: asked.put(1)):
        ready(folder)
        for _ in range(times):
            asked.get()


def meet(place, folder, end):
    """Two barriers; before the last one the second node ends, the first time."""
    from marius_oac.nodes.groups.torch_group import TorchGroup

    first = not (folder / "killed").exists()
    with TorchGroup.from_environment(place.cluster.timeout, place.interface, names(place.cluster)) as group:
        group.barrier()
        if place.rank == 1 and first:
            (folder / "killed").touch()
            end()
        group.barrier()


def be_killed():
    os.kill(os.getpid(), signal.SIGKILL)


def refuse():
    raise InputError("no space left on device", "a file")


def be_stopped():
    os.kill(os.getpid(), signal.SIGSTOP)


ENDS = {"killed once": be_killed, "stopped once": be_stopped, "full disk": refuse}


def behave(behaviour, folder, place):
    second = place.rank == 1
    if behaviour == "fail" and second:
        raise ZeroDivisionError("a defect")
    if behaviour == "refuse":
        raise InputError("all nodes find the same", "config")
    if behaviour in ENDS:
        meet(place, folder, ENDS[behaviour])
        return
    if behaviour == "killed" and second:
        be_killed()
    if behaviour == "stubborn":
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
    if behaviour != "ok":
        wait(folder, times=2 if behaviour == "slow" else 1)
        (folder / f"{place.rank}.stopped").touch()
        raise KeyboardInterrupt


def train(behaviour, folder, place):
    found = {
        "pid": os.getpid(),
        "node": place.node.name,
        "rank": os.environ["RANK"],
        "secret": os.environ["MARIUS_OAC_SECRET"],
        "commands": [psutil.Process(pid).cmdline() for pid in (os.getpid(), os.getppid())],
        "listening": listening(),
    }
    (folder / f"{place.rank}.json").write_text(json.dumps(found))
    print(f"rank {place.rank} says something", file=sys.stderr, flush=True)
    while len(list(folder.glob("*.json"))) < place.size:  # as all trainers meet before one may end
        time.sleep(0.01)
    tell_agent(MET)
    behave(behaviour, folder, place)
    return "the result"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("behaviour")
    parser.add_argument("--local-nodes", type=int)
    parser.add_argument("--nodes", type=Path)
    parser.add_argument("--node")
    args = parser.parse_args()
    request = Request(sys.argv[1:], args.nodes, args.local_nodes, args.node, program=[__file__])
    try:
        return on_nodes(request, lambda place: train(args.behaviour, args.folder, place))
    except MariusOacError as error:
        print(f"marius-oac: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    with standard_error():
        sys.exit(main())
