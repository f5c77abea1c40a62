"""`marius-oac` whose `train` has batches that take long and no processor time: arguments are those of `marius-oac`."""

import argparse
import sys
from functools import partial

from benchmarks.slow_link import SlowLink
from marius_oac.cli import commands
from marius_oac.runtime.imports import imports

LATENCY = 0.1  # seconds, of a batch on its way up and on its way down
_train = commands._train


def train(args: argparse.Namespace) -> int | None:
    """See `commands`."""
    with imports():
        from marius_oac.training import local

    local.train = partial(local.train, probe=SlowLink(0.0, LATENCY))
    return _train(args)


if __name__ == "__main__":
    commands._train = train
    sys.exit(commands.program())
