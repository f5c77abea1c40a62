"""Runs an example in a process of its own: `python -m tests.examples.running NAME REQUEST`, and prints what came out.

REQUEST is JSON: a list of settings for each run, one after another; see `Watched`.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import signal
import sys
import warnings
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

import marius_oac.torch as mt
from examples.own_loops import data
from marius_oac.torch import Engine
from marius_oac.torch.drawing import Batches
from marius_oac.torch.modules import Keyed
from marius_oac.torch.refusals import rows_elsewhere

REAL = os.environ.get("MARIUS_OAC_DATA")


class Example(NamedTuple):
    """What a run needs besides this package.

    Attributes:
        needs: a package.
        folder: of data sets under MARIUS_OAC_DATA.
        batches: of a short run.
        passes: over the loader, in a short run.
        workers_draw_alike: the loader gives the same batches with worker processes as without. torchdata's with
            `shuffle` does not: with them it begins its sampler twice.
    """

    needs: str | None = None
    folder: str | None = None
    batches: int = 25
    passes: int = 2
    workers_draw_alike: bool = True

    @property
    def given(self) -> list[str]:
        """Arguments of the example's `main`."""
        return [] if self.folder is None else [str(Path(REAL or "") / self.folder)]


EXAMPLES = {
    "ratings": Example(),
    "two_tower": Example(),
    "lightning_clicks": Example("lightning", "frappe", passes=1),
    "graph_sage": Example("torch_geometric", passes=1),
    "torchrec_dlrm": Example("torchrec", "criteo-10k", batches=15, workers_draw_alike=False),
    "fuxictr_dcn": Example("fuxictr", "frappe", batches=15, passes=1),
}


def watched(most=None, folder=None, save_every=0, kill_at=0, **how):
    """An engine in the place of the example's, with other settings.

    Args:
        most: batches of a pass, which ends with `break`.
        folder: of checkpoints: loaded when the first pass begins, and saved after every `save_every` batches.
        kill_at: the process ends by SIGKILL after so many batches.
        how: of `mt.Engine`.
    """

    class Watched(Engine):
        def __init__(self, *given, stateful=(), **named):
            self.passes = self.in_pass = self.trained = self.asked = 0
            super().__init__(*given, stateful=[*stateful, self], **named, **how)

        def state_dict(self):
            return {"passes": self.passes, "in_pass": self.in_pass, "trained": self.trained}

        def load_state_dict(self, state):
            vars(self).update(state)

        def batches(self, loader):
            return Batches(self._watched(super().batches, loader), loader)

        def _watched(self, batches, loader):
            if folder and not self.asked:
                self.load(folder)
            self.asked += 1
            if self.asked <= self.passes:
                return  # it was at its end when the checkpoint was written
            for batch in batches(loader):
                yield batch
                self.in_pass += 1
                self.trained += 1
                if save_every and self.trained % save_every == 0:
                    self.save(folder)
                if self.trained == kill_at:
                    os.kill(os.getpid(), signal.SIGKILL)
                if self.in_pass == most:
                    break
            self.passes, self.in_pass = self.passes + 1, 0

    return Watched


def digest(name, model):
    """Of all parameters and buffers, and of the rows of all keys that the data have."""
    keys = np.arange(6000)
    if name == "torchrec_dlrm":
        keys = np.unique(data.criteo(EXAMPLES[name].given[0])[1].numpy())
    found = hashlib.sha256()
    with rows_elsewhere():
        state = model.state_dict()
    for tensor in state.values():
        found.update(tensor.numpy().tobytes())
    tables = {module.table.name: module.table for module in model.modules() if isinstance(module, Keyed)}
    for table in tables.values():
        asked = np.zeros(len(keys), np.uint16), keys, np.zeros(len(keys), np.uint32)
        values, local = table.look_up(asked)
        found.update(values[local].tobytes())
    return found.hexdigest()


def main(name, request):
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # those of other packages
    for settings in json.loads(request):
        side, workers = settings.pop("side", "after"), settings.pop("workers", 0)
        module = importlib.import_module(f"examples.own_loops.{side}.{name}")
        mt.Engine = watched(**settings)
        model, score = module.main(*EXAMPLES[name].given, workers=workers)
        mt.Engine = Engine
        print(json.dumps({"score": score, "digest": digest(name, model) if side == "after" else None}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
