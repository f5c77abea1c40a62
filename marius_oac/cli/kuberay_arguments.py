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
    parser.add_argument("config", type=Path, nargs="?", help="a YAML file; its paths are those in the pods")
    parser.add_argument("--out", required=True, metavar="FOLDER", help="the run's folder, below --mount")
    parser.add_argument("--image", required=True, help="a container's image with marius-oac[ray]")
    parser.add_argument("--claim", required=True, help="PersistentVolumeClaim with the data, which all pods can write")
    parser.add_argument("--mount", default="/data", metavar="PATH", help="where the pods have it (default: /data)")
    parser.add_argument("--trainers", required=True, metavar="N", help="how many pods train; or a range, as 2..4")
    parser.add_argument("--name", default="marius-oac", help="of the job (default: marius-oac)")
    parser.add_argument("--cpus", type=int, default=4, metavar="N", help="of each trainer (default: 4)")
    parser.add_argument("--memory", default="16Gi", metavar="SIZE", help="of each trainer (default: 16Gi)")
    parser.add_argument("--gpu", action="store_true", help="each trainer has one")
    parser.add_argument("--resume", action="store_true", help="in place of a config: the run in --out goes on")


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
