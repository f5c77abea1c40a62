"""Sections on what was trained and how well: summary, comparison, loss and metrics."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from marius_oac.config.parts import own_file
from marius_oac.insight.report.comparison import bits, config_differences
from marius_oac.insight.report.curves import curve
from marius_oac.insight.report.history import Evaluation, History
from marius_oac.insight.report.lines import line_figure, of_intervals
from marius_oac.insight.report.parts import (
    Figure,
    Report,
    Section,
    Table,
    columns,
    epoch_table,
    header,
    number_text,
)

HEADLINES = (
    "filtered.mrr", "filtered.hits@10", "unfiltered.mrr", "mrr", "hits@20", "hits@50", "hits@100", "auc", "log_loss",
    "accuracy", "macro_f1",
)  # fmt: skip
"""Metrics that are drawn where a run has them, and the user's own."""
_MOST_METRICS = 6
_FACTS = (
    "training.epochs", "training.batches", "training.seconds", "training.examples_per_second",
    "training.best_epoch", "memory.peak_rss_bytes", "checkpoint", "machine",
)  # fmt: skip


def summary(report: Report) -> Section:
    """What was trained, with which result, in what time, on which machine."""
    sentences = []
    for number, run in enumerate(report.runs):
        said = [f"{report.of(number)}{what(run)} {state(run)}"]
        found = [each for each in (run.bound_by_evaluation(), run.bound()) if each]
        said += [f"{each.line[:1].upper()}{each.line[1:]}." for each in found]
        sentences += [" ".join(said)] if report.several else said
    rows = [
        ["folder", *(run.name for run in report.runs)],
        *columns(report, [*_results(report)[:_MOST_METRICS], *_FACTS], _fact),
    ]
    return Section("summary", "Summary", sentences, [Table("The runs", header(report, "what"), rows, texts=True)])


def _results(report: Report) -> list[str]:
    """The names of the most important results that any of the runs has."""
    there = {name for run in report.runs for name, value in run.summary.items() if isinstance(value, float)}
    names = [f"{split}.{name}" for split in ("test", "valid") for name in HEADLINES]
    return [name for name in names if name in there]


def _fact(run: History, name: str) -> object:
    if name in run.summary:
        return run.summary[name]
    return {"training.batches": run.batches, "training.seconds": run.seconds, "training.epochs": len(run.epochs)}.get(
        name
    )


def what(run: History) -> str:
    """What a run trains, in a sentence."""
    config = run.config.model_dump(mode="json")
    model, training, data = (config.get(name) or {} for name in ("model", "training", "data"))
    kind = str(model.get("decoder") or model.get("network") or run.config.task)
    kind = own[1] if (own := own_file(kind)) else kind
    layers = (config.get("encoder") or {}).get("layers") or []
    encoder = f" under {len(layers)} encoder layer{'s' * (len(layers) > 1)}" if layers else ""
    of = f" of dimension {model['dimension']}" if "dimension" in model else ""
    files = data.get("train") or []
    graph = data.get("path")
    on = f" on {Path(graph).name}" if graph else f" on {len(files):,} file{'s' * (len(files) > 1)}" if files else ""
    together = (config.get("nodes") or {}).get("mode")
    nodes = f", over several trainers in mode `{together}`" if run.over_nodes else ""
    size = training.get("batch_size")
    batches = f" in batches of {size:,}" if isinstance(size, int) else ""
    return f"`{kind}`{of}{encoder}{on}{batches}, mode `{config['pipeline']['mode']}`{nodes}."


def state(run: History) -> str:
    """How far a run has come, in a sentence."""
    epochs, batches = len(run.epochs), f"{run.batches:,} batches"
    if not run.summary:
        return f"It has not ended: {epochs:,} epochs and {batches} so far."
    early = ", stopped early" if run.summary.get("training.stopped_early") is True else ""
    return f"It ended after {number_text(run.summary.get('training.epochs'))} epochs{early}, {batches}."


def comparison(report: Report) -> Section | None:
    """In what several runs differ; None for one run."""
    if not report.several:
        return None
    first = report.runs[0]
    rows = [
        [f"{report.letter(0)} and {report.letter(number)}", bits(first, run)]
        for number, run in enumerate(report.runs) if number
    ]  # fmt: skip
    blocks = [Table("Bits", ["runs", "verdict"], rows, texts=True)]
    changed, sentences = config_differences(report.runs), []
    if changed:
        blocks.append(Table("Keys of the configuration that differ", header(report, "key"), changed, texts=True))
    else:
        sentences.append("Their configurations are the same.")
    return Section("comparison", "Comparison", sentences, blocks)


def learning(report: Report) -> Section | None:
    """Loss and metrics by batch, time and epoch."""
    losses, by_epoch = of_intervals(report, lambda line, _: line.loss)
    table = epoch_table(report, "Mean loss by epoch", by_epoch)
    blocks: list[Figure | Table] = [*line_figure(report, "loss", "Loss", losses, table)]
    splits = {each.split for run in report.runs for each in run.evaluations}
    split = "valid" if "valid" in splits else "progressive"
    for name in drawn_metrics(report.runs):
        found = [curve(report.runs, number, *_values(run, name)) for number, run in enumerate(report.runs)]
        by_epoch = [{each.epoch + 1: each.values.get(name) for each in valid(run)} for run in report.runs]
        table = epoch_table(report, f"{name} by epoch", by_epoch)
        blocks += line_figure(report, f"metric-{name}", f"{name} ({split})", found, table, marks=True)
    return Section("learning", "Loss and metrics", [], blocks) if blocks else None


def valid(run: History) -> list[Evaluation]:
    """The evaluations that are drawn: on valid, or else progressive ones."""
    splits = {each.split for each in run.evaluations}
    split = "valid" if "valid" in splits else "progressive"
    return [each for each in run.evaluations if each.split == split]


def _values(run: History, name: str) -> tuple[list[float], list[float | None]]:
    found = [each for each in valid(run) if name in each.values]
    return [each.batch + 1 for each in found], [each.values[name] for each in found]


def drawn_metrics(runs: Sequence[History]) -> list[str]:
    """The names of the metrics that are drawn."""
    there = {name for run in runs for each in valid(run) for name in each.values}
    own = [found[1] for run in runs for text in _own_metrics(run) if (found := own_file(text))]
    return [name for name in dict.fromkeys((*HEADLINES, *own)) if name in there][:_MOST_METRICS]


def _own_metrics(run: History) -> Sequence[str]:
    return getattr(getattr(run.config, "evaluation", None), "metrics", ()) or ()
