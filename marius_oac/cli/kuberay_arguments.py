"""`marius-oac kuberay`: its arguments and its call."""

from __future__ import annotations

import argparse
from pathlib import Path

from marius_oac.cli.nodes_arguments import number_of_trainers
from marius_oac.errors import InputError
from marius_oac.runtime.console import answer
from marius_oac.types import present


def add_kuberay(parser: argparse.ArgumentParser) -> None:
    """The arguments of `kuberay`."""
    parser.add_argument("config", type=Path, nargs="?", help="configuration file (YAML), with paths as in the pods")
    parser.add_argument("--out", required=True, metavar="FOLDER", help="run folder, below --mount")
    parser.add_argument("--image", required=True, help="container image with this package and its extra ray")
    parser.add_argument("--claim", required=True, help="PersistentVolumeClaim with the data, writable by all pods")
    parser.add_argument(
        "--mount", default="/data", metavar="PATH", help="mount path of the claim in the pods (default: /data)"
    )
    parser.add_argument(
        "--trainers", required=True, metavar="N", help="number of trainers, one per pod, or a range such as 2..4"
    )
    parser.add_argument("--name", default="marius-oac", help="name of the job (default: marius-oac)")
    parser.add_argument("--cpus", type=int, default=4, metavar="N", help="CPUs per trainer (default: 4)")
    parser.add_argument("--memory", default="16Gi", metavar="SIZE", help="memory per trainer (default: 16Gi)")
    parser.add_argument("--gpu", action="store_true", help="request one GPU per trainer")
    parser.add_argument("--resume", action="store_true", help="resume the run in --out; takes no configuration")


def print_manifest(args: argparse.Namespace) -> None:
    """Writes the manifest to standard output."""
    from marius_oac.config.task import load_config
    from marius_oac.nodes.launch.on_ray.kuberay import Job, manifest

    if (args.config is None) != args.resume:
        raise InputError("needs a config, or --resume in place of it", "kuberay")
    trainers = present(number_of_trainers(args.trainers))
    least, most = trainers if isinstance(trainers, tuple) else (trainers, trainers)
    if not 1 <= least <= most:
        raise InputError(f"must be at least 1, or a range of such numbers, not '{args.trainers}'", "--trainers")
    config = None if args.resume else load_config(args.config, args.set)
    if config is not None and least < most and config.nodes.parts is None:
        raise InputError("a range needs nodes.parts, for the same bits: --set nodes.parts=8", "--trainers")
    names = ("name", "image", "claim", "mount", "out", "cpus", "memory", "gpu")
    text = None if config is None else args.config.read_text("utf-8")
    words = tuple(word for each in args.set for word in ("--set", each))
    shared = {name: getattr(args, name) for name in names}
    answer(manifest(Job(config=text, trainers=(least, most), words=words, **shared)).rstrip())
