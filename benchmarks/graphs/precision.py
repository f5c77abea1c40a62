"""What `compute.precision: bfloat16` gains in speed of link prediction: step and `oac`, against float32, in turns.

    python -m benchmarks.graphs.precision --setting a|b --decoder distmult|complex --cores 1|2

Settings are those of `step_speed`.
"""

import argparse
from functools import partial

from benchmarks.graphs.step_speed import SETTINGS, OurPipeline, OurStep, Race
from benchmarks.machine import machine
from benchmarks.turns import take_turns

PRECISIONS = ("float32", "bfloat16")


def main() -> None:
    parser = argparse.ArgumentParser(description="Speed of training with products in bfloat16, against float32.")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--setting", choices=sorted(SETTINGS), default="a", help="batch and negatives")
    parser.add_argument("--decoder", choices=("distmult", "complex"), default="distmult")
    parser.add_argument("--rounds", type=int, default=9, help="their median is reported")
    options = parser.parse_args()
    size, factories = SETTINGS[options.setting][0], {}
    for precision in PRECISIONS:
        race = Race(options.decoder, options.setting, options.cores, 4, (f"compute.precision={precision}",))
        factories[f"step {precision}"] = partial(OurStep, race)
        factories[f"oac {precision}"] = partial(OurPipeline, race, "oac")
    times = take_turns(factories, options.cores, max(4, 60_000 // size), options.rounds)
    print(f"{machine()}\n{options.decoder}, setting {options.setting}, {options.cores} cores")
    print(f"  {'':<16}{'triples/s':>11}{'ms':>8}{'CPU ms':>8}{'x float32':>11}")
    for name, mine in times.items():
        cpu = sorted(mine.cpu_seconds)[len(mine.cpu_seconds) // 2]
        ratio = mine.times_faster(times[f"{name.split()[0]} {PRECISIONS[0]}"])
        print(f"  {name:<16}{size / mine.middle:>11,.0f}{mine.middle * 1e3:>8.2f}{cpu * 1e3:>8.2f}{ratio:>11.2f}")


if __name__ == "__main__":
    main()
