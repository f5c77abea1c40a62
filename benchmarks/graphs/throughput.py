"""Edges per second of sync, async, async-delta and oac over an emulated link that is slower than the computing.

    python -m benchmarks.graphs.throughput --data FOLDER-WITH-fb15k-237  # default: MARIUS_OAC_DATA
    python -m benchmarks.graphs.throughput --repeats 9 --factor 1.5 --in-flight 8

A synchronous run without the link gives the compute time of a batch; then the bandwidth is set so that moving a batch
one way takes `factor` times as long. The modes take turns, and ratios are medians of the ratios within a turn, so a
busy machine slows all alike. The link's waiting burns no CPU. "Limit" is one batch per slowest stage: nothing that
moves each batch over this link can be faster.
"""

import argparse
import os
import statistics

from benchmarks.graphs.runs import TimedSession, benchmark_graph, compute_seconds
from benchmarks.machine import machine
from benchmarks.slow_link import SlowLink
from marius_oac.config.link_prediction import Config

MODES = ("sync", "async", "async-delta", "oac")


def make_config(path: str, args: argparse.Namespace) -> Config:
    return Config.build(
        {
            "device": "cpu",
            "threads": args.threads,
            "data": {"path": path},
            "model": {"decoder": "complex", "dimension": args.dimension},
            "training": {"batch_size": args.batch_size, "negatives": {"count": args.negatives}},
            "pipeline": {"in_flight": args.in_flight},
        }
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=os.environ.get("MARIUS_OAC_DATA"))
    parser.add_argument("--factor", type=float, default=1.5, help="transfer time of a batch over its compute time")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--batches", type=int, default=40, help="per mode and repeat")
    parser.add_argument("--batch-size", type=int, default=2000)
    parser.add_argument("--negatives", type=int, default=500)
    parser.add_argument("--dimension", type=int, default=100)
    parser.add_argument("--in-flight", type=int, default=8)
    parser.add_argument("--threads", type=int, default=1, help="that compute; the link keeps the rest idle")
    args = parser.parse_args()
    print(machine(), flush=True)
    with benchmark_graph(args.data) as graph:
        config = make_config(str(graph.path), args)
        compute = compute_seconds(config, graph)
        limit = args.batch_size / (args.factor * compute)
        transfer = args.factor * compute
        print(f"compute {1e3 * compute:.1f} ms a batch of {args.batch_size}, {1e3 * transfer:.1f} ms a transfer")
        configs = {mode: config.replace(f"pipeline.mode={mode}") for mode in MODES}
        timed = {mode: TimedSession(configs[mode], graph, probe=SlowLink(transfer)) for mode in MODES}
        turns = []
        for number in range(args.repeats):
            order = MODES[number % len(MODES) :] + MODES[: number % len(MODES)]
            turns.append({mode: timed[mode].run(args.batches) for mode in order})
        report(turns, limit, args.batches)
        for each in timed.values():
            each.session.__exit__(None, None, None)


def report(turns: list[dict], limit: float, batches: int) -> None:
    print(f"\n| mode | edges/s | of the limit | / sync | / async | compute | validate |\n|{'---|' * 7}")
    for mode in MODES:
        rates = [turn[mode][0] for turn in turns]
        ratios = [statistics.median(turn[mode][0] / turn[base][0] for turn in turns) for base in ("sync", "async")]
        stages = [
            statistics.median(turn[mode][1].get(stage, 0.0) for turn in turns) for stage in ("compute", "validate")
        ]
        rate = statistics.median(rates)
        print(f"| {mode} | {rate:,.0f} | {rate / limit:.2f} | {ratios[0]:.2f} | {ratios[1]:.3f} | "
              f"{1e3 * stages[0]:.2f} ms | {1e3 * stages[1]:.2f} ms |")  # fmt: skip
    print(f"| limit | {limit:,.0f} | 1.00 | | | | |\n\nmedians of {len(turns)} turns of {batches} batches per mode")


if __name__ == "__main__":
    main()
