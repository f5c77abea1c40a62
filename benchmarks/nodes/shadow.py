"""ShadowSync: does synchronising beside training cost training anything?

    python -m benchmarks.nodes.shadow          # examples/s over 1, 2, 4, 8 trainers, in an emulated cluster (as root)
    python -m benchmarks.nodes.shadow --steps  # step time of a real network with the background thread at work

Scaling (Zheng et al., Figure 5): trainers, each a process in a host of its own, and one sync server in another. Compute
is emulated: an iteration waits for `--iteration` milliseconds and then changes the parameters, those of a DLRM. All
else is real: the agreement of dense parameters with its threads, gloo, the sync server and its transport, bytes, waits.
All links have one rate, so that by default 5 trainers in the foreground, at a gap of 5, have enough to say to fill the
sync server's. Settings take turns; a turn counts whole gaps, after a warm-up. Linear is one trainer that never
synchronises, times their number.

Step time: one trainer's forward and backward pass, Adam, one torch thread, with and without the thread at work, in
turns. The other end of every synchronisation, on the same cores, is always ready, so that the thread hardly rests.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from benchmarks import plots
from benchmarks.clicks.step import DIMENSION, Race
from benchmarks.machine import machine
from benchmarks.nodes.cluster import INTERFACE, Cluster, Host, Process, why_not
from marius_oac.config.dense import DenseConfig
from marius_oac.models.ctr.schema import Inputs
from marius_oac.nodes.dense.contract import DenseAgreement
from marius_oac.nodes.dense.kinds import make_dense_sync
from marius_oac.nodes.dense.sync_server import SyncServer
from marius_oac.nodes.groups.contract import Group
from marius_oac.nodes.groups.torch_group import TorchGroup
from marius_oac.nodes.shards.exchange import RemoteSource
from marius_oac.nodes.shards.serving import ShardServer
from marius_oac.nodes.shards.shard import Shard
from marius_oac.nodes.transport.contract import Security
from marius_oac.nodes.transport.zmq_client import ZmqClient
from marius_oac.nodes.transport.zmq_server import ZmqServer

NONE = "no synchronisation"
SETTINGS = {
    NONE: None,
    "easgd, background": DenseConfig(kind="easgd"),
    "ma, background": DenseConfig(kind="ma"),
    "bmuf, background": DenseConfig(kind="bmuf"),
    "easgd, foreground, gap 30": DenseConfig(kind="easgd", background=False, sync_every=30),
    "easgd, foreground, gap 5": DenseConfig(kind="easgd", background=False, sync_every=5),
}
STYLES = dict(zip(SETTINGS, ("k:", "C0o-", "C2s-", "C4^-", "C1v--", "C3x--"), strict=True))
SERVER, SERVER_PORT, ADDRESS = "sync server", 7000, "SHADOW_SYNC_SERVER"
SECURITY = Security(secret=bytes(32), run="shadow")  # a network of our own, without a way in
PATIENCE = 60.0
WARM_UP_STEPS = 5

# --- what runs in the hosts ------------------------------------------------------------------------------------------


def serve(trainers: int) -> None:
    """The sync server, until it is killed."""
    failed: queue.Queue[BaseException] = queue.Queue()
    names = {rank: f"trainer {rank}" for rank in range(trainers)}
    door = ZmqServer(os.environ[ADDRESS], SERVER, names, SECURITY, log=print)
    shard = Shard([], trainers, lockstep=False, sync=SyncServer(DenseConfig().alpha))
    with ShardServer(shard, [(door, list(names))], failed.put):
        print("serving", flush=True)
        raise failed.get()


@contextmanager
def agreement(setting: str, group: Group, parameters: Sequence[torch.Tensor]) -> Iterator[DenseAgreement]:
    """The setting's, attached, with a connection to the sync server of its own."""
    line = ZmqClient(os.environ[ADDRESS], SERVER, group.rank, SECURITY, timeout=PATIENCE)
    with RemoteSource([line], [], False, 1, lambda *stretch: None, group.abort) as source, ExitStack() as stack:
        config = SETTINGS[setting]
        if config is None:
            dense = DenseAgreement(group)
        else:
            dense = make_dense_sync(config, group, False, source.sync, lambda sizes: [0] * len(sizes))
        stack.callback(dense.stop)
        dense.attach(parameters)
        yield dense


def train(options: argparse.Namespace) -> None:
    """A trainer of the scaling: says when each turn's window begins and ends, and what all trainers did in it."""
    torch.set_num_threads(1)
    with TorchGroup.from_environment(PATIENCE, INTERFACE) as group:
        for number, setting in enumerate(turns(options)):
            parameters = list(Race("dlrm", 1).network().parameters())
            with agreement(setting, group, parameters) as dense:
                found = window(dense, group, parameters, Turn(number, setting), options)
                dense.finish()
                ends = group.gather(sum(each.double().sum().item() for each in parameters))
                if SETTINGS[setting] and len(set(ends)) > 1:
                    raise RuntimeError(f"{setting}: replicas differ at the end: {ends}")
                together = total(group.gather(found))
                if not group.rank:
                    print(json.dumps(together), flush=True)


@dataclass(frozen=True)
class Turn:
    number: int
    setting: str

    @property
    def gap(self) -> int:
        """Iterations that belong together."""
        config = SETTINGS[self.setting]
        return 1 if config is None or config.background else config.sync_every

    def say(self, word: str, group: Group) -> None:
        """To whom watches the links."""
        if not group.rank:
            print(f"{word} {self.number};", flush=True)


def window(
    dense: DenseAgreement, group: Group, parameters: Sequence[torch.Tensor], turn: Turn, options: argparse.Namespace
) -> dict[str, float]:
    """This trainer's iterations, synchronisations, and seconds, from one gap's end to another's."""
    dense.start()
    begun, begin = time.perf_counter(), {}
    # As if they had run for a while, not all in step.
    time.sleep(turn.gap * options.iteration / 1e3 * group.rank / group.size)
    while True:
        now = time.perf_counter()
        if not begin and now > begun + options.warm_up:
            begin = counts(dense)
            turn.say("begin", group)
        elif begin and now > begin["seconds"] + options.seconds:
            break
        for batch_index in range(turn.gap):
            time.sleep(options.iteration / 1e3)  # emulated compute
            for parameter in parameters:
                parameter.data.mul_(1 - 1e-4 * (group.rank + 1))  # in the place of an optimizer's step
            dense.updated(batch_index)
    end = counts(dense)
    turn.say("end", group)
    rate = (end["iterations"] - begin["iterations"]) / (end["seconds"] - begin["seconds"])
    return {"rate": options.batch * rate} | {name: end[name] - begin[name] for name in end}


def counts(dense: DenseAgreement) -> dict[str, float]:
    """So far."""
    metrics = dense.metrics()
    return {
        "seconds": time.perf_counter(),
        "iterations": metrics["iterations"],
        "syncs": metrics["syncs"],
        "waited": metrics["seconds_per_sync"] * metrics["syncs"],
    }


def total(each: Sequence[dict[str, float]]) -> dict[str, float]:
    added = {name: sum(one[name] for one in each) for name in each[0]}
    syncs = added["syncs"] or float("nan")
    return {"rate": added["rate"], "gap": added["iterations"] / syncs, "sync": added["waited"] / syncs}


def step(options: argparse.Namespace) -> None:
    """Rank 0 trains, in pairs of blocks; rank 1 is ready for whatever is exchanged."""
    torch.set_num_threads(1)
    with TorchGroup.from_environment(PATIENCE, INTERFACE) as group:
        for setting in background():
            train_once, parameters = real_step(options.step_batch)
            with agreement(setting, group, parameters) as dense:
                pairs = []
                for number in range(options.pairs + 1):  # the first one warms up
                    group.barrier()
                    if group.rank:
                        dense.start()
                        dense.pause()  # goes on exchanging until the other one ends as well
                    else:
                        pairs.append(pair(dense, train_once, options.block, first=bool(number % 2)))
                group.barrier()
                if not group.rank:
                    print(json.dumps({"setting": setting, "pairs": pairs[1:]}), flush=True)


def pair(dense: DenseAgreement, train_once: Callable[[], None], block: int, first: bool) -> dict[str, float]:
    """Seconds of a step with and without the thread, which comes first or last; also the training thread's own on a
    processor, which programs beside it do not lengthen."""
    seconds, before = {}, counts(dense)
    for at_work in (first, not first):
        if at_work:
            dense.start()
        for batch_index in range(WARM_UP_STEPS + block):
            if batch_index == WARM_UP_STEPS:
                begun, busy = time.perf_counter(), time.thread_time()
            train_once()
            if at_work:
                dense.updated(batch_index)
        way = "with" if at_work else "without"
        seconds[way] = (time.perf_counter() - begun) / block
        seconds[f"cpu {way}"] = (time.thread_time() - busy) / block
        if at_work:
            after = counts(dense)
            dense.pause()
    return seconds | {name: after[name] - before[name] for name in ("iterations", "syncs", "waited")}


def real_step(batch: int) -> tuple[Callable[[], None], list[torch.Tensor]]:
    """One training step of a DLRM on given rows, and its parameters."""
    race = Race("dlrm", 1)
    network = race.network()
    optimizer = torch.optim.Adam(network.parameters())
    stacked = torch.randn(batch, race.features, DIMENSION) * 0.01
    numbers, labels = torch.randn(batch, race.numbers), torch.randint(2, (batch,)).float()

    def train_once() -> None:
        optimizer.zero_grad()
        rows = stacked.detach().requires_grad_()
        logits = network(Inputs(numbers, rows.unbind(1), rows, None, {}))
        binary_cross_entropy_with_logits(logits, labels).backward()
        optimizer.step()

    return train_once, list(network.parameters())


# --- what starts and watches them ------------------------------------------------------------------------------------


def background() -> list[str]:
    return [setting for setting, config in SETTINGS.items() if config is None or config.background]


def turns(options: argparse.Namespace) -> list[str]:
    return [setting for _ in range(options.rounds) for setting in SETTINGS]


@contextmanager
def cluster_of(trainers: int, rate: float) -> Iterator[tuple[Host, list[Host], dict[str, str]]]:
    """The sync server's host, where it serves, those of the trainers, and the environment of all."""
    with Cluster(1 + trainers, rate) as cluster:
        server, *hosts = cluster.hosts
        here = {ADDRESS: f"{server.address}:{SERVER_PORT}", "MASTER_ADDR": hosts[0].address, "MASTER_PORT": "29500"}
        server.run(member("serve"), here).wait_for("serving", PATIENCE)
        yield server, hosts, here


def member(role: str) -> list[str]:
    return [sys.executable, "-m", "benchmarks.nodes.shadow", *sys.argv[1:], "--member", role]


def started(role: str, hosts: Sequence[Host], here: dict[str, str]) -> list[Process]:
    world = {"WORLD_SIZE": str(len(hosts))}
    return [host.run(member(role), here | world | {"RANK": str(rank)}) for rank, host in enumerate(hosts)]


def said(processes: Sequence[Process]) -> list[dict]:
    """What the first one reports, when all have ended."""
    for process in processes:
        if process.wait(600):
            sys.exit(process.output())
    return [json.loads(line) for line in processes[0].output().splitlines() if line.startswith("{")]


def scaling(options: argparse.Namespace) -> None:
    found: dict[str, dict[int, dict[str, float]]] = {setting: {} for setting in SETTINGS}
    with cluster_of(max(options.trainers), options.rate) as (server, hosts, here):
        for count in options.trainers:
            processes = started("train", hosts[:count], here)
            shares = [share_used(server, processes[0], number, options.rate) for number in range(len(turns(options)))]
            rows = [row | {"link": share} for row, share in zip(said(processes), shares, strict=True)]
            for place, setting in enumerate(SETTINGS):
                mine = rows[place :: len(SETTINGS)]
                found[setting][count] = {name: statistics.median(row[name] for row in mine) for name in mine[0]}
            print(f"{count} trainers, load {os.getloadavg()[0]:.1f}", file=sys.stderr)
    print_scaling(found, options)
    plot(found, options)


def share_used(server: Host, lead: Process, number: int, rate: float) -> float:
    """Of the server's link in a turn's window, in the direction that carries more."""
    moments = []
    for word in ("begin", "end"):
        lead.wait_for(f"{word} {number};", 600)
        moments.append((time.perf_counter(), server.bytes_sent(), server.bytes_received()))
    seconds, *directions = (after - before for before, after in zip(*moments, strict=True))
    return max(directions) * 8 / (rate * 1e6 * seconds)


def print_scaling(found: dict[str, dict[int, dict[str, float]]], options: argparse.Namespace) -> None:
    floats = sum(each.numel() for each in Race("dlrm", 1).network().parameters())
    alone = one_alone(found)
    print(
        f"{machine()}\nlinks of {options.rate:g} Mbit/s, {floats:,} dense parameters, emulated compute of "
        f"{options.iteration:g} ms for {options.batch:,} examples; median of {options.rounds} windows of "
        f"{options.seconds:g} s\n"
    )
    names = ("examples/s", "of linear", "of its own one, times trainers", "gap", "s per synchronisation", "link used")
    print(f"| setting | trainers | {' | '.join(names)} |\n{'|---' * (2 + len(names))}|")
    for setting, by_count in found.items():
        own = next(row["rate"] / count for count, row in sorted(by_count.items()))
        for count, row in by_count.items():
            linear = f"{row['rate'] / (count * alone):.3f} | {row['rate'] / (count * own):.3f}"
            syncs = f"{row['gap']:.1f} | {row['sync']:.3f} | {row['link']:.0%}" if setting != NONE else " | | "
            print(f"| {setting} | {count} | {row['rate']:,.0f} | {linear} | {syncs} |")


def one_alone(found: dict[str, dict[int, dict[str, float]]]) -> float:
    """Examples/s of a trainer that never synchronises, by the smallest number of them that ran."""
    count, row = min(found[NONE].items())
    return row["rate"] / count


def plot(found: dict[str, dict[int, dict[str, float]]], options: argparse.Namespace) -> None:
    figure, (speed, link) = plots.subplots(1, 2, figsize=(10, 4))
    speed.plot(options.trainers, [count * one_alone(found) for count in options.trainers], STYLES[NONE], label="linear")
    for setting, by_count in list(found.items())[1:]:
        rates, links = ([row[name] for row in by_count.values()] for name in ("rate", "link"))
        speed.plot(list(by_count), rates, STYLES[setting], label=setting)
        if setting.startswith("easgd"):
            link.plot(list(by_count), [100 * each for each in links], STYLES[setting])
    speed.set_ylabel("examples/s (emulated compute)")
    link.set_ylabel("sync server's link used, %")
    speed.set_ylim(bottom=0)
    link.set_ylim(0, 105)
    for axes in (speed, link):
        axes.set_xlabel("trainers")
        axes.set_xticks(options.trainers)
        axes.grid(alpha=0.3)
    speed.legend()
    plots.save(figure, options.out)


def step_times(options: argparse.Namespace) -> None:
    print(f"{machine()}\nlinks of {options.rate:g} Mbit/s, batches of {options.step_batch}, {options.pairs} pairs\n")
    names = ("ms without", "ms with", "with / without, median", "quartiles", "of its processor time", "quartiles")
    print(f"| setting | {' | '.join(names)} | gap | s per synchronisation |\n{'|---' * (3 + len(names))}|")
    with cluster_of(2, options.rate) as (_, hosts, here):
        for found in said(started("step", hosts, here)):
            pairs = found["pairs"]
            cells = [f"{statistics.median(each[way] for each in pairs) * 1e3:.2f}" for way in ("without", "with")]
            for kind in ("", "cpu "):
                ratios = [each[f"{kind}with"] / each[f"{kind}without"] for each in pairs]
                low, middle, high = statistics.quantiles(ratios, n=4)
                cells += [f"**{middle:.3f}**", f"{low:.3f} to {high:.3f}"]
            syncs = sum(each["syncs"] for each in pairs)
            if syncs:
                cells += [f"{sum(each['iterations'] for each in pairs) / syncs:.2f}"]
                cells += [f"{sum(each['waited'] for each in pairs) / syncs:.4f}"]
            print(f"| {found['setting']} | {' | '.join(cells)} {'' if syncs else '| | '}|")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", action="store_true", help="step time in place of scaling")
    parser.add_argument("--rate", type=float, default=200, help="Mbit/s of each link")
    parser.add_argument("--trainers", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--iteration", type=float, default=45, help="ms of emulated compute")
    parser.add_argument("--batch", type=int, default=1024, help="examples an iteration stands for")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5, help="of a window")
    parser.add_argument("--warm-up", type=float, default=2, help="seconds before it")
    parser.add_argument("--step-batch", type=int, default=512, help="examples of a real step")
    parser.add_argument("--pairs", type=int, default=24)
    parser.add_argument("--block", type=int, default=40, help="real steps of each half of a pair")
    parser.add_argument("--out", type=Path, default=Path("docs/figures/shadow_scaling.png"))
    parser.add_argument("--member", choices=("serve", "train", "step"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.member == "serve":
        serve(max(options.trainers))
    elif options.member:
        {"train": train, "step": step}[options.member](options)
    elif why := why_not():
        sys.exit(f"no emulated cluster: {why}")
    else:
        if not options.steps:
            plots.check(parser)
        (step_times if options.steps else scaling)(options)


if __name__ == "__main__":
    main()
