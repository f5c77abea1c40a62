"""k-step merging: bytes on the interfaces against merging in every step, and what k costs in AUC.

    python -m benchmarks.nodes.kstep        # bytes, in an emulated cluster (as root); a minute or two
    python -m benchmarks.nodes.kstep --auc  # AUC on a generated log and, if found, on Frappe; some 20 minutes

Bytes: `--hosts` processes with a network interface each run `--steps` steps of k-step Adam on `--floats` dense
parameters; what leaves a host meanwhile is counted by its interface, less what leaves in a run without steps. A merge
moves v, then x: twice the bytes of a step that sums gradients. The paper's column (Zhao et al., Figure 10) is
communication time.

AUC (Figure 9, section 5.3): DeepFM in lockstep, every k with the same seeds, which decide about initial values and the
order of examples: so runs differ by k alone, and the differences are taken seed by seed. As a measure of what there is
to lose, the last line never merges between the warm-up and the end. Frappe: `--frappe`, or frappe/ in the folder that
MARIUS_OAC_DATA names, with train.csv.gz and test.csv.gz.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from pathlib import Path

import torch

from benchmarks.generate.log import LogSpec, write_day
from benchmarks.machine import machine
from benchmarks.nodes.cluster import INTERFACE, Cluster, Host, why_not
from benchmarks.nodes.trainers import Runs, Trained, spread
from marius_oac.config.ctr import CtrConfig
from marius_oac.config.dense import DenseConfig
from marius_oac.nodes.dense.kinds import make_dense_sync
from marius_oac.nodes.groups.torch_group import TorchGroup

PAPER = {10: 18.1, 20: 10.8, 50: 6.4, 100: 2.8, 200: 1.2}
KS = (1, *PAPER)
NEVER = 1 << 40


def steps_of(kind: str, k: int, floats: int, steps: int) -> None:
    """What a host does."""
    torch.set_num_threads(1)
    with TorchGroup.from_environment(30.0, INTERFACE) as group:
        config = DenseConfig(kind="kstep", k=k, warm_up=0) if kind == "kstep" else DenseConfig()
        sync = make_dense_sync(config, group, lockstep=True)
        parameter = torch.nn.Parameter(torch.zeros(floats))
        sections = [{"params": [parameter], "lr": 1e-3, "weight_decay": 0.0}]
        optimizer = sync.optimizer(sections) or torch.optim.SGD(sections)
        sync.attach([parameter])
        parameter.grad = torch.full((floats,), 1e-3 * (group.rank + 1))
        for step in range(steps):
            sync.reduce([parameter.grad], 1 / group.size)
            optimizer.step()
            sync.updated(step)
        group.barrier()


def sent(hosts: list[Host], kind: str, k: int, floats: int, steps: int) -> int:
    """Bytes that left all hosts."""
    before = sum(host.bytes_sent() for host in hosts)
    member = [sys.executable, "-m", "benchmarks.nodes.kstep", "--member", kind, str(k), str(floats), str(steps)]
    here = {"MASTER_ADDR": hosts[0].address, "MASTER_PORT": "29500", "WORLD_SIZE": str(len(hosts))}
    processes = [host.run(member, here | {"RANK": str(rank)}) for rank, host in enumerate(hosts)]
    for process in processes:
        if process.wait(600):
            sys.exit(process.output())
    return sum(host.bytes_sent() for host in hosts) - before


def bytes_table(hosts: int, rate: float, floats: int, steps: int) -> None:
    with Cluster(hosts, rate) as cluster:
        idle = sent(cluster.hosts, "kstep", 1, floats, 0)
        gradients = sent(cluster.hosts, "allreduce", 1, floats, steps) - idle
        every = {k: sent(cluster.hosts, "kstep", k, floats, steps) - idle for k in KS}
    print(f"{machine()}\n{hosts} hosts, {floats:,} floats, {steps} steps, bytes of all hosts\n")
    print("| merges | MB | % of k = 1 | 100 / k | of 1 / k | % of summing gradients in each step | paper, % of time |")
    print("|---|---|---|---|---|---|---|")
    for k, moved in every.items():
        share = moved / every[1]
        print(
            f"| k = {k} | {moved / 1e6:,.1f} | {share:.2%} | {1 / k:.2%} | {share * k:.3f} | {moved / gradients:.2%} "
            f"| {PAPER.get(k, '')} |"
        )


def trees(folder: Path, frappe: Path | None) -> dict[str, dict]:
    """Configurations by name, each of some 2,000 steps: k = 200 merges 7 times after the warm-up."""
    spec = LogSpec(categorical=8, numeric=4, keys=200_000, skew=1.05, drift=0.0, new_keys=0.0)
    for day, rows in enumerate((512_000, 200_000)):
        write_day(folder / f"day_{day}.parquet", day, rows, spec)
    common = {
        "task": "ctr",
        "threads": 1,
        "device": "cpu",
        "pipeline": {"mode": "sync"},
        "keys": {"capacity": 250_000},
        "model": {"network": "deepfm", "dimension": 10, "hidden": [64, 32]},
    }
    data = {"train": str(folder / "day_0.parquet"), "test": str(folder / "day_1.parquet"), "shuffle": 512_000}
    generated = {"data": {**data, **spec.schema()}, "training": {"batch_size": 256}}
    found = {"generated": common | generated}
    if frappe:
        columns = ["user", "item", "daytime", "weekday", "isweekend", "homework", "cost", "weather", "country", "city"]
        data = {split: str(frappe / f"{split}.csv.gz") for split in ("train", "test")}
        training = {"batch_size": 512, "epochs": 5, "embedding_l2": 0.001}
        found["Frappe"] = common | {
            "data": {**data, "categorical": columns, "shuffle": 1_000_000},
            "training": training,
        }
    return found


def auc_table(frappe: Path | None, options: argparse.Namespace) -> None:
    seeds = range(options.seeds)
    print(f"{machine()}\n{options.nodes} nodes, {options.warm_up} steps of warm-up, seeds 0 to {seeds[-1]}\n")
    if not frappe:
        print("no Frappe: name its folder with --frappe, or MARIUS_OAC_DATA\n")
    print("| log | k | merges | AUC, mean | standard deviation over seeds | less that of k = 1, % of it | each seed |")
    print("|---|---|---|---|---|---|---|")
    kept = Runs(options.keep)

    def train(name: str, tree: dict, k: int, seed: int) -> Trained:
        dense = {"kind": "kstep", "k": k, "warm_up": options.warm_up}
        config = CtrConfig.build(tree | {"seed": seed, "nodes": {"dense": dense}})
        return kept.train(f"{name}, {options.nodes} nodes, {dense}, seed {seed}", config, options.nodes)

    with tempfile.TemporaryDirectory() as place:
        for name, tree in trees(Path(place), frappe).items():
            # Seeds outermost: what has run so far is then a table, of fewer seeds.
            runs = [{k: train(name, tree, k, seed) for k in (*KS, NEVER)} for seed in seeds]
            for k in (*KS, NEVER):
                found = [by_k[k].test["auc"] for by_k in runs]
                differences = [100 * (by_k[k].test["auc"] / by_k[1].test["auc"] - 1) for by_k in runs]
                print(
                    f"| {name} | {'never' if k == NEVER else k} | {runs[0][k].dense['syncs'] / options.nodes:,.0f} "
                    f"| {statistics.mean(found):.5f} | {spread(found):.5f} | {statistics.mean(differences):+.4f} "
                    f"| {', '.join(f'{one:+.4f}' for one in differences)} |",
                    flush=True,
                )


def frappe_folder(given: Path | None) -> Path | None:
    """Where Frappe is, if anywhere."""
    if given or "MARIUS_OAC_DATA" not in os.environ:
        return given
    folder = Path(os.environ["MARIUS_OAC_DATA"]) / "frappe"
    return folder if folder.is_dir() else None


def main() -> None:
    if sys.argv[1:2] == ["--member"]:
        kind, *numbers = sys.argv[2:]
        steps_of(kind, *map(int, numbers))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--auc", action="store_true", help="AUC in place of bytes")
    parser.add_argument("--frappe", type=Path, help="folder with Frappe's files")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--warm-up", type=int, default=500)
    parser.add_argument("--nodes", type=int, default=2, help="that train, where AUC is asked for")
    parser.add_argument("--keep", type=Path, help="a file of runs; those that it has are not run again")
    parser.add_argument("--hosts", type=int, default=3)
    parser.add_argument("--rate", type=float, default=1000, help="Mbit/s of each link")
    parser.add_argument("--floats", type=int, default=250_000)
    parser.add_argument("--steps", type=int, default=400)
    options = parser.parse_args()
    if options.auc:
        auc_table(frappe_folder(options.frappe), options)
    elif why := why_not():
        sys.exit(f"no emulated cluster: {why}")
    else:
        bytes_table(options.hosts, options.rate, options.floats, options.steps)


if __name__ == "__main__":
    main()
