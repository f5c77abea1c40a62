"""k-step merging: bytes on the interfaces against merging in every step, and what k costs in AUC.

    python -m benchmarks.kstep                       # bytes, in an emulated cluster (as root); a minute or two
    python -m benchmarks.kstep --auc                 # AUC on a generated log, mean of 3 seeds; some minutes
    python -m benchmarks.kstep --auc --frappe DIR    # and on Frappe: train.csv.gz, valid.csv.gz, test.csv.gz

Bytes: `--hosts` processes with a network interface each run `--steps` steps of k-step Adam on `--floats` dense
parameters; what leaves a host meanwhile is counted by its interface, less what leaves in a run without steps. A merge
moves v, then x: twice the bytes of a step that sums gradients. The paper's column (Zhao et al., Figure 10) is
communication time.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

import torch
import yaml

from benchmarks.cluster import INTERFACE, Cluster, Host, why_not
from benchmarks.runs import machine
from marius_oac.config_dense import DenseConfig
from marius_oac.data.log_generate import LogSpec, write_day
from marius_oac.nodes.dense_kinds import make_dense_sync
from marius_oac.nodes.launch import Request, on_nodes
from marius_oac.nodes.torch_group import TorchGroup
from marius_oac.run import RunFolder

PAPER = {10: 18.1, 20: 10.8, 50: 6.4, 100: 2.8, 200: 1.2}
KS = (1, *PAPER)
NODES = 2


def steps_of(kind: str, k: int, floats: int, steps: int) -> None:
    """What a host does."""
    torch.set_num_threads(1)
    with TorchGroup.from_environment(30.0, INTERFACE) as group:
        config = DenseConfig(kind="kstep", k=k, warm_up=0) if kind == "kstep" else DenseConfig()
        sync = make_dense_sync(config, group, 1e-3, lockstep=True)
        parameter = torch.nn.Parameter(torch.zeros(floats))
        optimizer = sync.optimizer([parameter]) or torch.optim.SGD([parameter], lr=1e-3)
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
    member = [sys.executable, "-m", "benchmarks.kstep", "--member", kind, str(k), str(floats), str(steps)]
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
    """Configurations by name."""
    spec = LogSpec(categorical=8, numeric=4, keys=200_000, skew=1.05)
    for day in range(2):
        write_day(folder / f"day_{day}.parquet", day, 400_000, spec)
    network = {"network": "deepfm", "dimension": 10, "hidden": [64, 32]}
    training = {"batch_size": 1024, "dense_optimizer": {"learning_rate": 0.001}}
    found = {
        "generated": {
            "data": {"train": str(folder / "day_0.parquet"), "test": str(folder / "day_1.parquet"), **spec.schema()},
            "model": network, "training": training,
        }
    }  # fmt: skip
    if frappe:
        columns = ["user", "item", "daytime", "weekday", "isweekend", "homework", "cost", "weather", "country", "city"]
        data = {split: str(frappe / f"{split}.csv.gz") for split in ("train", "valid", "test")}
        found["Frappe"] = {
            "data": {**data, "categorical": columns, "shuffle": 1_000_000},
            "model": network, "training": {**training, "epochs": 10, "embedding_l2": 0.01},
        }  # fmt: skip
    return found


def auc_table(frappe: Path | None, seeds: int, warm_up: int) -> None:
    print(f"{machine()}\n{NODES} nodes, {warm_up} steps of warm-up, mean of {seeds} seeds\n")
    print("| log | k | AUC | difference from k = 1 |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as place:
        for name, tree in trees(Path(place), frappe).items():
            means: dict[int, float] = {}
            for k in KS:
                found = []
                for seed in range(seeds):
                    dense = {"kind": "kstep", "k": k, "warm_up": warm_up}
                    whole = {"task": "ctr", "seed": seed, "evaluation": {"every": 0}, **tree, "nodes": {"dense": dense}}
                    found.append(_trained(Path(place), whole))
                means[k] = statistics.mean(found)
                print(f"| {name} | {k} | {means[k]:.5f} | {means[k] - means[1]:+.5f} |", flush=True)


def _trained(folder: Path, tree: dict) -> float:
    with tempfile.TemporaryDirectory(dir=folder) as place:
        config, out = Path(place) / "config.yaml", Path(place) / "run"
        config.write_text(yaml.safe_dump(tree))
        code = on_nodes(
            Request(["train", str(config), "--out", str(out), "--local-nodes", str(NODES)], None, NODES), _none
        )
        if code:
            sys.exit(code)
        return RunFolder.open(out).summary()["test.auc"]


def _none(place: object) -> None:
    raise AssertionError("this process starts nodes and is none")


def main() -> None:
    if sys.argv[1:2] == ["--member"]:
        kind, *numbers = sys.argv[2:]
        steps_of(kind, *map(int, numbers))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--auc", action="store_true", help="AUC in place of bytes")
    parser.add_argument("--frappe", type=Path, help="folder with Frappe's three files")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--warm-up", type=int, default=100)
    parser.add_argument("--hosts", type=int, default=3)
    parser.add_argument("--rate", type=float, default=1000, help="Mbit/s of each link")
    parser.add_argument("--floats", type=int, default=250_000)
    parser.add_argument("--steps", type=int, default=400)
    options = parser.parse_args()
    if options.auc:
        auc_table(options.frappe, options.seeds, options.warm_up)
    elif why := why_not():
        sys.exit(f"no emulated cluster: {why}")
    else:
        bytes_table(options.hosts, options.rate, options.floats, options.steps)


if __name__ == "__main__":
    main()
