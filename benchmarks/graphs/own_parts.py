"""What a part of the user's own costs: a step with DistMult, softmax and Adagrad of the package, and of a user's file.

    python -m benchmarks.graphs.own_parts --setting b --cores 2

Those of the file (`tests/models/own_parts.py`) compute the same, but for a decoder of differences of vectors [B, K, D].
A decoder or a loss trains by autograd, on one core.
`turns` says how the contestants share the machine.
"""

import argparse
from dataclasses import replace
from functools import partial
from pathlib import Path

from benchmarks.graphs.step_speed import SETTINGS, OurStep, Race
from benchmarks.machine import machine
from benchmarks.turns import take_turns
from marius_oac.models.compute.user_code import admit

FILE = Path(__file__).parents[2] / "tests" / "models" / "own_parts.py"
PARTS = {
    "decoder": {"model.decoder": "Bilinear"},
    "decoder, differences": {"model.decoder": "Near"},
    "loss": {"training.loss.kind": "Softmax"},
    "row optimizer": {"training.optimizer.kind": "Adagrad"},
}


def own_step(race: Race) -> OurStep:
    admit(race.config(), trust=True)
    return OurStep(race)


def main() -> None:
    parser = argparse.ArgumentParser(description="What a decoder, a loss or a row optimizer of one's own costs.")
    parser.add_argument("--cores", type=int, default=1)
    parser.add_argument("--setting", choices=sorted(SETTINGS), default="a", help="batch and negatives")
    parser.add_argument("--rounds", type=int, default=7, help="their median is reported")
    options = parser.parse_args()
    base = Race("distmult", options.setting, options.cores, 1)
    races = {"nothing": base}
    for name, parts in PARTS.items():
        races[name] = replace(base, overrides=tuple(f"{key}={FILE}:{part}" for key, part in parts.items()))
    size = SETTINGS[options.setting][0]
    factories = {name: partial(own_step, race) for name, race in races.items()}
    times = take_turns(factories, options.cores, max(2, 4_000 // size), options.rounds)
    print(f"{machine()}\n{options.cores} cores, setting {options.setting}")
    print(f"  {'of the file':<20}{'ms':>8}{'CPU ms':>8}{'x CPU':>8}")
    middle = {name: sorted(mine.cpu_seconds)[len(mine.cpu_seconds) // 2] for name, mine in times.items()}
    for name, mine in times.items():
        print(f"  {name:<20}{mine.middle * 1e3:>8.2f}{middle[name] * 1e3:>8.2f}", end="")
        print(f"{middle[name] / middle['nothing']:>8.2f}")


if __name__ == "__main__":
    main()
