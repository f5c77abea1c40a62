"""Quality against time and against epochs for sync, async, async-delta and oac: the OAC paper's Figures 2 and 3.

    python -m benchmarks.graphs.quality --data FOLDER-WITH-fb15k-237  # default: MARIUS_OAC_DATA

ComplEx with filtered validation MRR on FB15k-237. A batch and its negatives touch a sixth of all entities and 16
batches are in flight, so stale rows are the rule: `async` loses most of its updates. Moving a batch over the emulated
link takes 1.5 times its compute time, so `sync` waits most of the time. Writes a plot and prints tables.
"""

from benchmarks import plots
from benchmarks.graphs.curves import arguments, compare, plot, report
from benchmarks.graphs.runs import benchmark_graph, complex_config
from benchmarks.machine import machine


def main() -> None:
    parser = arguments(__doc__, in_flight=16, out="docs/figures/oac_quality.png")
    parser.add_argument("--epochs", type=int, default=8)
    args = parser.parse_args()
    plots.check(parser)
    print(machine(), flush=True)
    with benchmark_graph(args.data) as graph:
        config = complex_config(graph, args.epochs).replace(
            f"threads={args.threads}", "evaluation={every: 1, max_edges: 2000}", f"pipeline.in_flight={args.in_flight}"
        )
        curves = compare(config, graph, args.factor)
    report(curves)
    name = "FB15k-237" if args.data else "a generated graph"
    plot({name: curves}, args.out, f"ComplEx, {args.in_flight} batches in flight, link {args.factor} x compute")


if __name__ == "__main__":
    main()
