"""What `compute.precision: bfloat16` gains in speed: step and `oac`, against float32, in turns.

    python -m benchmarks.precision --setting a|b|deepfm|dlrm --cores 1|2

Settings are those of `graphs.step_speed` (a, b) and of `clicks.step` and `clicks.speed` (deepfm, dlrm).
"""

import argparse
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.clicks import speed, step
from benchmarks.generate.log import LogSpec, write_day
from benchmarks.graphs import step_speed
from benchmarks.machine import machine
from benchmarks.turns import Contestant, take_turns

PRECISIONS = ("float32", "bfloat16")
ROWS, KEYS = 400_000, 1_000_000  # of a generated log

Factories = dict[str, Callable[[], Contestant]]


def of_links(options: argparse.Namespace) -> Factories:
    found: Factories = {}
    for precision in PRECISIONS:
        race = step_speed.Race(options.decoder, options.setting, options.cores, 4, (_override(precision),))
        found[f"step {precision}"] = partial(step_speed.OurStep, race)
        found[f"oac {precision}"] = partial(step_speed.OurPipeline, race, "oac")
    return found


def of_clicks(options: argparse.Namespace, folder: Path) -> Factories:
    features, numbers, _ = step.SETTINGS[options.setting]
    spec, found = LogSpec(categorical=features, numeric=numbers, keys=KEYS, skew=1.05), Factories()
    path = folder / "day.parquet"
    write_day(path, 0, ROWS, spec)
    for precision in PRECISIONS:
        overrides = (_override(precision),)
        found[f"step {precision}"] = partial(step.OurStep, step.Race(options.setting, options.cores, overrides))
        race = speed.Race(options.setting, str(path), spec, options.cores, 4, overrides)
        found[f"oac {precision}"] = partial(speed.OurPipeline, race, "oac")
    return found


def _override(precision: str) -> str:
    return f"compute.precision={precision}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Speed of training with products in bfloat16, against float32.")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--setting", choices=(*step_speed.SETTINGS, "deepfm", "dlrm"), default="a")
    parser.add_argument("--decoder", choices=("distmult", "complex"), default="complex", help="of a and b")
    parser.add_argument("--rounds", type=int, default=9, help="their median is reported")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if options.setting in step_speed.SETTINGS:
            size, factories = step_speed.SETTINGS[options.setting][0], of_links(options)
        else:
            size, factories = step.BATCH, of_clicks(options, Path(folder))
        times = take_turns(factories, options.cores, max(4, 60_000 // size), options.rounds)
    print(f"{machine()}\nsetting {options.setting}, {options.cores} cores")
    print(f"  {'':<16}{'examples/s':>11}{'ms':>8}{'CPU ms':>8}{'x float32':>11}")
    for name, mine in times.items():
        cpu = sorted(mine.cpu_seconds)[len(mine.cpu_seconds) // 2]
        ratio = mine.times_faster(times[f"{name.split()[0]} {PRECISIONS[0]}"])
        print(f"  {name:<16}{size / mine.middle:>11,.0f}{mine.middle * 1e3:>8.2f}{cpu * 1e3:>8.2f}{ratio:>11.2f}")


if __name__ == "__main__":
    main()
