"""The command `marius-oac`, disturbed as the variable DISTURB (JSON) says, in all processes that it starts.

- `seed`: pulls, pushes, patches, what a shard does with them, and the stages of each trainer are held up for random
  times, which follow from the seed, the trainer and the batch. Of every ten batches one trainer is the slow one.
- `forget`: patches are thrown away: batches are computed with the rows that were pulled.
- `again`: [rank, batch]: that trainer pulls that batch twice, which none does.
- `evaluation`: seconds that the first process evaluates.
"""

import json
import os
import random
import sys
import threading
import time
from dataclasses import replace
from functools import partial

from marius_oac.cli import commands as cli
from marius_oac.nodes.launch import launch
from marius_oac.nodes.transport.messages import Pull, parse

PAUSES = (0.0003, 0.001, 0.005, 0.02)


class Delays:
    """Holds up one process: `delays(sequence, *what)` waits on an event that nobody sets."""

    def __init__(self, seed):
        self._seed, self._rank, self._size = seed, int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self._never = threading.Event()

    def __call__(self, batch_index, *what):
        slow = random.Random(f"{self._seed}/{batch_index // 10}").randrange(self._size) == self._rank
        chance = random.Random(f"{self._seed}/{self._rank}/{batch_index}/{what}")
        if chance.random() < (0.6 if slow else 0.1):
            self._never.wait(chance.choice(PAUSES))

    def of(self, frames, *what):
        message = parse(frames)
        self(getattr(message, "batch_index", 0), message.kind, *what)


def delay(delays):
    from marius_oac.nodes.shards.serving import ShardServer
    from marius_oac.nodes.transport.in_process import InProcessClient
    from marius_oac.nodes.transport.zmq_client import ZmqClient
    from marius_oac.pipeline.runner import Pipeline

    def slowly(owner, name, hold):
        real = getattr(owner, name)
        setattr(owner, name, lambda self, *arguments: hold(real, self, *arguments))

    def send(real, line, frames):
        delays.of(frames, "sent", place_of(line))
        real(line, frames)

    def receive(real, line):
        frames = real(line)
        if frames is not None:
            delays.of(frames, "received", place_of(line))
        return frames

    def handle(real, server, peer, frames):
        delays.of(frames, "handled", peer)
        real(server, peer, frames)

    def make(real, pipeline, *arguments):
        real(pipeline, *arguments)
        pipeline.probe = lambda stage, batch_index: delays(batch_index, stage)

    for kind in (InProcessClient, ZmqClient):
        slowly(kind, "send", send)
        slowly(kind, "receive_nowait", receive)
    slowly(ShardServer, "_handle", handle)
    slowly(Pipeline, "__init__", make)


def place_of(line):
    """The name of the node at the other end, where there is a network between."""
    return getattr(line, "name", "here")


def forget():
    from marius_oac.nodes.shards.remote_rows import RemoteRows

    real = RemoteRows._take_patch
    RemoteRows._take_patch = lambda self, node, message: real(
        self, node, replace(message, newer=[b""] * len(message.newer))
    )


def pull_again(rank, batch):
    from marius_oac.nodes.transport.zmq_client import ZmqClient

    real = ZmqClient.send

    def send(line, frames):
        real(line, frames)
        message = parse(frames)
        if isinstance(message, Pull) and message.batch_index == batch and int(os.environ["RANK"]) == rank:
            real(line, frames)

    ZmqClient.send = send


def evaluate_slowly(seconds):
    from marius_oac.tasks.ctr.task import CtrTask

    real = CtrTask.evaluate

    def evaluate(self, parts, split, whole, among):
        print("evaluating", flush=True)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            threading.Event().wait(0.05)
            if among.rank:
                among.turn()
        return real(self, parts, split, whole, among)

    CtrTask.evaluate = evaluate


def main():
    how = json.loads(os.environ["DISTURB"])
    launch.Request = partial(launch.Request, program=("-m", "tests.nodes.disturbed"))
    if "RANK" in os.environ:
        if "seed" in how:
            delay(Delays(how["seed"]))
        if "forget" in how:
            forget()
        if "again" in how:
            pull_again(*how["again"])
        if "evaluation" in how:
            evaluate_slowly(how["evaluation"])
    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
