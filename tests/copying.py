"""`marius-oac` as it runs with a GPU, but on CPU tensors: `python -m tests.copying WORDS`.

Batches go through `TorchDevice`: staging buffers, copies, steps on tensors. The processes of its nodes likewise.

With `MARIUS_OAC_TEST_KILL=NUMBER:FILE` a process (of several nodes the last one) is killed in the middle of batch
`NUMBER`, once: the file is made before.
"""

import os
import signal
import sys
from functools import partial

import torch

from marius_oac.cli import commands as cli
from marius_oac.nodes.launch import launch
from marius_oac.pipeline.device import TorchDevice
from marius_oac.pipeline.runner import Pipeline
from marius_oac.pipeline.streams import CudaStreams
from tests.pipeline.held_streams import HeldStreams

PROGRAM = ("-m", "tests.copying")


def copying(pipeline: Pipeline, device: torch.device) -> TorchDevice:
    """In the place of `Pipeline._make_device`. A GPU's streams are held for random whiles."""
    shape = (pipeline.planner.tables, pipeline.source.layouts, pipeline.in_flight, pipeline.source.caching)
    streams = HeldStreams(CudaStreams(device), torch.cuda._sleep) if device.type == "cuda" else None
    return (Dying if dies() else TorchDevice)(device, *shape, streams=streams)


class Dying(TorchDevice):
    """Of a process that is killed."""

    def download(self, batch):
        number, file = os.environ["MARIUS_OAC_TEST_KILL"].split(":")
        if batch.batch_index == int(number) and not os.path.exists(file):
            open(file, "x").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().download(batch)


def dies() -> bool:
    """Whether this process is the one that is killed."""
    rank, size = (int(os.environ.get(name, default)) for name, default in (("RANK", 0), ("WORLD_SIZE", 1)))
    return "MARIUS_OAC_TEST_KILL" in os.environ and rank == size - 1


def main() -> int:
    Pipeline._make_device = copying
    launch.Request = partial(launch.Request, program=PROGRAM)
    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
