"""The command `marius-oac`: parses arguments, loads the configuration, and makes one call."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marius_oac import __version__
from marius_oac.cli.completion import add_completion, print_completion
from marius_oac.cli.data_arguments import KINDS, add_init, add_prepare
from marius_oac.cli.kuberay_arguments import add_kuberay, print_manifest
from marius_oac.cli.local_nodes import before_resuming, before_training
from marius_oac.cli.machine_arguments import add_check, add_config
from marius_oac.cli.nodes_arguments import add_nodes, on_ray
from marius_oac.cli.predict_arguments import add_predict
from marius_oac.cli.report_arguments import add_report, add_watch, make_report, watch_run
from marius_oac.cli.tune_arguments import add_tune
from marius_oac.errors import ConfigError, InputError
from marius_oac.runtime import present_folder
from marius_oac.runtime.command import Parser, check_present_folder, check_system, end_at_once, run_command
from marius_oac.runtime.console import answer, answer_rows, report
from marius_oac.runtime.imports import imports

if TYPE_CHECKING:
    from marius_oac.config.task import TaskConfig
    from marius_oac.nodes.launch.cluster import Place
    from marius_oac.nodes.launch.launch import Request

_PREDICT = "Predict tails of (head, relation, ?), heads of (?, relation, tail), node classes or click probabilities."


def _prepare(args: argparse.Namespace) -> None:
    from marius_oac.data.reading.edge_file import ReadOptions
    from marius_oac.prepare.dgl.prepare import prepare_source
    from marius_oac.prepare.prepare import PrepareRequest

    read = ReadOptions(
        columns=_columns(args),
        relations=not args.no_relations,
        header=args.header,
        delimiter=args.delimiter,
        comment=args.comment,
        quotes=args.quotes,
    )
    names = [each.name for each in fields(PrepareRequest) if hasattr(args, each.name)]
    report(prepare_source(PrepareRequest(read=read, **{name: getattr(args, name) for name in names})))


def _columns(args: argparse.Namespace) -> tuple[str, ...] | None:
    return tuple(args.columns.split(",")) if args.columns else None


def _init(args: argparse.Namespace) -> None:
    from marius_oac.prepare.init.config import InitRequest, init
    from marius_oac.prepare.init.log import LogRequest

    log = LogRequest(args.label, tuple(args.positive), args.delimiter, args.split)
    kind = KINDS.get(args.task)
    init(InitRequest(sources=args.source, out=args.out, is_graph=kind, columns=_columns(args), log=log))


def _train(args: argparse.Namespace) -> int | None:
    with imports():
        from marius_oac.config.task import kernel_groups, load_config
        from marius_oac.kernels.ahead import compiling

    overrides = list(args.set)
    if args.data:
        overrides.append(f"data.train={json.dumps(args.data)}")
    if args.progressive:
        overrides.append("training.progressive=true")
    try:
        config = load_config(args.config, overrides)
    except ConfigError as error:
        given = {
            "--set data.train": ("--data", args.data),
            "--set training.progressive": ("--progressive", args.progressive),
        }
        option, value = given.get(error.where or "", ("", None))
        if value and error.message.startswith("unknown key"):
            raise InputError("is for click logs (task: ctr)", option) from None
        raise
    if how := on_ray(args):
        from marius_oac.nodes.training.on_ray import start_training

        return start_training(config, args.out, trace=args.trace, **how)
    if (request := _request(args)).wanted:
        return _train_on_nodes(request, args, config)
    with compiling(kernel_groups(config)):  # while libraries are imported
        with imports():
            from marius_oac.training.local import train

        report(train(config, args.out, trace=args.trace))
    return None


def _resume(args: argparse.Namespace) -> int | None:
    if how := on_ray(args):
        from marius_oac.nodes.training.on_ray import start_resuming

        resumed = _resumed(args)
        resumed["data_path"] = args.data_path and str(args.data_path.absolute())
        return start_resuming(args.run, args.set, resumed=resumed, **how)
    if _request(args).wanted:
        return _resume_on_nodes(args)
    with imports():
        from marius_oac.training.local import resume

    report(resume(args.run, args.set, **_resumed(args)))
    return None


def _resumed(args: argparse.Namespace) -> dict[str, Any]:
    return {"data": args.data or (), "checkpoint": args.checkpoint, "trace": args.trace, **_opened(args)}


def _opened(args: argparse.Namespace) -> dict[str, Any]:
    """The options of every command that opens a run."""
    return {"data_path": args.data_path, "trust": args.trust}


def _request(args: argparse.Namespace) -> Request:
    from marius_oac.nodes.launch.launch import Request

    return Request(args.argv, args.nodes, args.local_nodes, args.node, args.dry_run)


def _train_on_nodes(request: Request, args: argparse.Namespace, config: TaskConfig) -> int:
    from marius_oac.config.task import kernel_groups
    from marius_oac.kernels.ahead import compiling
    from marius_oac.nodes.launch.launch import on_nodes

    def train(place: Place) -> object:
        with compiling(kernel_groups(config, over_nodes=True)):
            with imports():
                from marius_oac.nodes.training.cluster import train_on_nodes

            return train_on_nodes(config, place, args.out, trace=args.trace)

    before_training(request, config, args.out)
    return on_nodes(request, train)


def _resume_on_nodes(args: argparse.Namespace) -> int:
    from marius_oac.nodes.launch.launch import on_nodes

    def resume(place: Place) -> object:
        with imports():
            from marius_oac.nodes.training.cluster import resume_on_nodes

        return resume_on_nodes(args.run, place, args.set, **_resumed(args))

    before_resuming(_request(args), args.run, args.data or (), args.data_path)
    return on_nodes(_request(args), resume)


def _tune(args: argparse.Namespace) -> None:
    with imports():
        from marius_oac.insight.tune.search import TuneRequest, tune

    shared = {name: getattr(args, name) for name in ("config", "space", "trials", "out", "keep")}
    report(tune(TuneRequest(overrides=tuple(args.set), **shared)))


def _attach(args: argparse.Namespace) -> None:
    with imports():
        from marius_oac.config.cluster import ClusterConfig
        from marius_oac.nodes.training.elastic import attach

    report(f"trained {attach(ClusterConfig.load(args.nodes), args.set, trust=args.trust):,} batches")


def _eval(args: argparse.Namespace) -> None:
    with imports():
        from marius_oac.runs.memory.plan import keep_freed_memory
        from marius_oac.training.trained import evaluate_run

    keep_freed_memory()
    answer(evaluate_run(args.run, args.data or args.split, args.set, args.checkpoint, **_opened(args)))


def _predict(args: argparse.Namespace) -> None:
    with imports():
        from marius_oac.runs.memory.plan import keep_freed_memory
        from marius_oac.tasks.trained import Question
        from marius_oac.training.trained import predict_run

    if args.out and not args.data:
        raise InputError("goes with --data; without, answers go to standard output", "--out")
    keep_freed_memory()
    asked = {key: getattr(args, key) for key in ("out", "node", "head", "relation", "tail", "top", "filtered")}
    found = predict_run(args.run, Question(data=args.data or (), **asked), args.checkpoint, **_opened(args))
    if isinstance(found, Path):
        report(found)
        return
    answer_rows((f"{score:.6g}", name) for name, score in found)


def _export(args: argparse.Namespace) -> None:
    with imports():
        from marius_oac.training.trained import export_run

    report(export_run(args.run, args.format, args.out, args.checkpoint, **_opened(args)))


def _compare(args: argparse.Namespace) -> int:
    with imports():
        from marius_oac.training.trained import compare_runs

    comparison = compare_runs(args.first, args.second, data_path=args.data_path)
    report(comparison)
    return 0 if comparison.same else 1


def _verify(args: argparse.Namespace) -> int:
    with imports():
        from marius_oac.runs.verification import verify

    found = verify(args.run)
    answer(found)
    return 0 if found.sound else 2


def _config(args: argparse.Namespace) -> None:
    from marius_oac.config.reference import as_json_schema, as_text

    answer((as_json_schema if args.format == "json-schema" else as_text)(args.section))


def _datasets(args: argparse.Namespace) -> None:
    from marius_oac.data.logs.known import describe_datasets

    answer(describe_datasets())


def _nodes(args: argparse.Namespace) -> int:
    from marius_oac.nodes.launch.check import check
    from marius_oac.nodes.launch.launch import Request

    request = Request(args.argv, args.file, args.local_nodes)
    found = check(request.cluster(), here=request.local is not None)
    report(found)
    return 0 if found.ok else 1


def _parser() -> Parser:
    parser = Parser(prog="marius-oac", description="Train embedding tables: asynchronous speed, synchronous results.")
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=Parser)

    def command(name: str, function: Callable[[argparse.Namespace], int | None], text: str) -> Parser:
        added = commands.add_parser(name, help=text, description=text)
        added.set_defaults(function=function)
        return added

    add_prepare(command("prepare", _prepare, "Prepare a graph folder from edge files or a known data set."))
    add_init(command("init", _init, "Write a first configuration for a click log or a graph."))
    command("datasets", _datasets, "List known data sets: address, format and licence.")
    completing = command("completion", lambda args: print_completion(parser, args.shell), "Print a shell's completion.")
    add_completion(completing)
    add_config(command("config", _config, "List all keys of the configuration and nodes.yaml: default and meaning."))
    add_check(command("nodes", _nodes, "Check whether nodes can train together (exit code: 0 yes, 1 no)."))
    training = command("train", _train, "Train graph embeddings, a node classifier or a click model.")
    resuming = command("resume", _resume, "Resume a run after Ctrl-C or a crash, or train more epochs.")
    _add_training(training, resuming)
    tuning = command("tune", _tune, "Search hyperparameters with Optuna, by results on validation data.")
    add_tune(tuning)
    _add_set(tuning)
    kuberay = command("kuberay", print_manifest, "Print a Kubernetes manifest that trains as a Ray job (KubeRay).")
    add_kuberay(kuberay)
    _add_set(kuberay)
    attaching = command("attach", _attach, "Attach to a run on several nodes as a worker. Ctrl-C detaches.")
    attaching.add_argument("nodes", type=Path, help="nodes.yaml of the run, with `elastic_workers` set")
    _add_set(attaching)
    evaluating = command("eval", _eval, "Evaluate a run: MRR, mean rank, Hits@k; accuracy; AUC, log loss.")
    evaluating.add_argument("run", type=Path, help="run folder")
    _add_data(evaluating, "click log: files to evaluate instead of a split")
    evaluating.add_argument(
        "--split", choices=("train", "valid", "test"), default="test", help="split to evaluate (default: test)"
    )
    _add_set(evaluating)
    predicting = command("predict", _predict, _PREDICT)
    _add_data(predicting, "click log: files with the examples to predict")
    add_predict(predicting)
    exporting = command("export", _export, "Export the embeddings with their names.")
    exporting.add_argument("run", type=Path, help="run folder")
    exporting.add_argument(
        "--format",
        choices=("safetensors", "npy", "parquet"),
        default="safetensors",
        help="file format (default: safetensors)",
    )
    exporting.add_argument("--out", type=Path, help="output folder (default: RUN/export-FORMAT)")
    comparing = command("compare", _compare, "Compare two runs bit by bit (exit code: 0 identical, 1 different).")
    comparing.add_argument("first", type=Path, help="run folder")
    comparing.add_argument("second", type=Path, help="run folder to compare it with")
    add_report(command("report", make_report, "Write an HTML report of runs: curves, stages, comparison of results."))
    add_watch(command("watch", watch_run, "Show a run while it trains, in the terminal or as a page."))
    verifying = command("verify", _verify, "Verify the checksums of a run (exit code: 0 intact, 2 damaged).")
    verifying.add_argument("run", type=Path, help="run folder")
    _add_opening(commands.choices)
    return parser


def _add_training(training: Parser, resuming: Parser) -> None:
    training.add_argument("config", type=Path, help="configuration file (YAML)")
    training.add_argument("--out", type=Path, help="run folder to create (default: runs/NAME, by the name of the data)")
    resuming.add_argument("run", type=Path, help="run folder")
    training.add_argument(
        "--progressive", action="store_true", help="click log: predict each file before training on it"
    )
    for added, text in ((training, "files"), (resuming, "additional files")):
        _add_data(added, f"click log: {text} or patterns to train on")
        _add_set(added)
        added.add_argument("--trace", action="store_true", help="write trace.json, a trace to view at ui.perfetto.dev")
        add_nodes(added)


def _add_opening(commands: Mapping[str, Parser]) -> None:
    """The options of all commands that open a run."""
    for name in ("resume", "attach", "eval", "predict", "export", "report"):
        commands[name].add_argument(
            "--trust", action="store_true", help="run the run's own code, FILE.py, even if you never trained with it"
        )
    for name in ("resume", "eval", "predict", "export", "compare", "report"):
        _add_data_path(commands[name])
    result = "or 'best' (default: the run's result)"
    of_resume = "'best', or 'start' to start over (default: the newest); later ones are removed"
    for name in ("resume", "eval", "predict", "export"):
        choices = of_resume if name == "resume" else result
        commands[name].add_argument("--checkpoint", metavar="NAME", help=f"folder in RUN/checkpoints, {choices}")


def _add_data(parser: Parser, text: str) -> None:
    parser.add_argument("--data", action="extend", nargs="+", metavar="FILE", help=text)


def _add_data_path(parser: Parser) -> None:
    what = "new place of the run's data, if it was moved: the graph folder, or a folder with the log's files"
    parser.add_argument("--data-path", type=Path, metavar="FOLDER", help=f"{what}; it must be the same data")


def _add_set(parser: Parser) -> None:
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="set a configuration key; repeatable"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code. Errors that are not the user's are raised with their traceback."""

    def work() -> int | None:
        check_system()
        present_folder.ignored_by_drawings()
        words = sys.argv[1:] if argv is None else list(argv)
        args = _parser().parse_args(words)
        args.argv = words
        check_present_folder()
        return args.function(args)

    return run_command("marius-oac", work)


def program() -> int:
    """The command as a process of its own, which ends at once."""
    return end_at_once(main())
