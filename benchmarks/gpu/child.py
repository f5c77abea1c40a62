"""A process of `soak`: `train CONFIG RUN`, `resume CONFIG RUN`, or `short CONFIG BATCHES` without a run's folder."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from benchmarks.gpu.place import Place
from marius_oac.config.link_prediction import Config
from marius_oac.runs.session import Session
from marius_oac.training.local import resume, start_task, train


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("verb", choices=("train", "resume", "short"))
    parser.add_argument("config", type=Path)
    parser.add_argument("what", help="the run's folder, or how many batches")
    parser.add_argument("--small", action="store_true", help="on CPU tensors, through the device that copies")
    options = parser.parse_args()
    config = Config.load(options.config)
    with Place(torch.device(config.device), options.small).copying():
        if options.verb == "train":
            train(config, options.what)
        elif options.verb == "resume":
            resume(options.what)
        else:
            with Session(start_task(config)) as session:
                session.pipeline.run(0, int(options.what))


if __name__ == "__main__":
    main()
