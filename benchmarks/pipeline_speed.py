"""Speed of the whole pipeline, in triples/s, against plain PyTorch and the bare matrix products of the same batches.

    python -m benchmarks.pipeline_speed --cores 1
    python -m benchmarks.pipeline_speed --cores 2 --setting b --decoder complex

The process is bound to so many cores, so every thread of the pipeline shares them. The contestants take turns of some
40 batches; ratios are medians of the ratios within a turn, so a busy machine slows all alike. `step_speed.py` holds the
contestants but the pipeline, which trains a generated graph from its store: plan, read, validate, compute, write.
"""

import argparse
import datetime
import os
import statistics
import time

import numpy as np
import torch
from threadpoolctl import ThreadpoolController

from benchmarks.step_speed import (
    DIMENSION,
    ENTITIES,
    RELATIONS,
    SETTINGS,
    draw,
    plain_step,
    products_by_numpy,
    products_by_torch,
)
from marius_oac import blas
from marius_oac.config import Config
from marius_oac.data.batches import EdgePlanner
from marius_oac.models.link_prediction import LinkPredictionStep, entity_width, relation_width
from marius_oac.pipeline.runner import Pipeline
from marius_oac.runtime.telemetry import Telemetry
from marius_oac.storage.contract import RowLayout
from marius_oac.storage.initial import RowInitial
from marius_oac.storage.memory import MemoryStore


class OurPipeline:
    """The pipeline over uniform edges of as many entities and relations as FB15k-237 has."""

    def __init__(self, decoder: str, setting: str, cores: int, mode: str, in_flight: int):
        size, chunks, count = SETTINGS[setting]
        config = Config.build(
            {
                "data": {"path": "none"},
                "model": {"decoder": decoder, "dimension": DIMENSION},
                "training": {"batch_size": size, "negatives": {"count": count, "chunks": chunks}},
                "pipeline": {"mode": mode, "in_flight": in_flight},
            }
        )
        generator = np.random.default_rng(0)
        edges = np.stack([generator.integers(bound, size=400_000) for bound in (ENTITIES, RELATIONS, ENTITIES)], 1)
        relations = generator.normal(0, 1e-3, (RELATIONS, relation_width(config))).astype(np.float32)
        self.step = LinkPredictionStep(config, RELATIONS, torch.device("cpu"), cores, relations)
        planner = EdgePlanner(edges, ENTITIES, RELATIONS, config)
        initial = RowInitial("normal", 1e-3, 0, "entities")
        self.store = MemoryStore("entities", ENTITIES, RowLayout(*entity_width(config)), initial)
        self.telemetry = Telemetry()
        self.pipeline = Pipeline(
            planner, [self.store], self.step, config.pipeline, torch.device("cpu"), self.telemetry, lambda result: None
        )
        self.next = 0

    def run(self, batches: int) -> None:
        self.next = self.pipeline.run(self.next, self.next + batches)

    def close(self) -> None:
        self.step.close()
        self.store.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="Triples/s of the whole pipeline against its limit and PyTorch.")
    parser.add_argument("--cores", type=int, default=1)
    parser.add_argument("--setting", choices=sorted(SETTINGS), default="a")
    parser.add_argument("--decoder", choices=("distmult", "complex"), default="distmult")
    parser.add_argument("--in-flight", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=15, help="turns; their median is reported")
    options = parser.parse_args()
    os.sched_setaffinity(0, set(sorted(os.sched_getaffinity(0))[: options.cores]))
    torch.set_num_threads(options.cores)
    torch.manual_seed(0)
    torch.sparse.check_sparse_tensor_invariants.disable()
    size, chunks, count = SETTINGS[options.setting]
    turn = max(4, 40_000 // size)
    generator = np.random.default_rng(0)
    plain = plain_step(options.decoder, [draw(generator, size, chunks, count) for _ in range(20)])
    ours = {
        mode: OurPipeline(options.decoder, options.setting, options.cores, mode, options.in_flight)
        for mode in ("oac", "sync")
    }

    def each(run):
        return lambda: [run(i % 20) for i in range(turn)]

    contestants = {
        "products, torch": each(products_by_torch(options.setting)),
        "products, NumPy": each(products_by_numpy(options.setting)),
        "plain PyTorch": each(plain),
        "pipeline, oac": lambda: ours["oac"].run(turn),
        "pipeline, sync": lambda: ours["sync"].run(turn),
    }
    seconds = {name: [] for name in contestants}
    with ThreadpoolController().limit(limits=options.cores, user_api="blas"):
        for repeat in range(options.repeats + 1):
            for name, run in contestants.items():
                began = time.perf_counter()
                run()
                if repeat:
                    seconds[name].append((time.perf_counter() - began) / turn)
    print(
        f"{datetime.date.today()}, torch {torch.__version__}, {options.cores} cores, {blas.kernels()} kernels, "
        f"load {os.getloadavg()[0]:.1f}; "
        f"{options.decoder}, dimension {DIMENSION}, batches of {size:,} in {chunks} chunks, {count} negatives"
    )
    products = [min(pair) for pair in zip(seconds["products, torch"], seconds["products, NumPy"], strict=True)]
    print(f"  {'':<18}{'triples/s':>11}{'ms':>8}{'x torch products':>18}{'x faster products':>19}{'x plain':>9}")
    for name, mine in seconds.items():
        ratios = [
            statistics.median(other / own for own, other in zip(mine, rival, strict=True))
            for rival in (seconds["products, torch"], products, seconds["plain PyTorch"])
        ]
        middle = statistics.median(mine)
        print(f"  {name:<18}{size / middle:>11,.0f}{middle * 1e3:>8.2f}", end="")
        print(f"{ratios[0]:>18.2f}{ratios[1]:>19.2f}{ratios[2]:>9.2f}")
    stages = ours["oac"].telemetry.total()
    done = ours["oac"].next
    print("  oac, ms per batch: " + ", ".join(f"{stage} {stages[stage] / done * 1e3:.2f}" for stage in stages))
    for pipeline in ours.values():
        pipeline.close()


if __name__ == "__main__":
    main()
