"""Sweeps over what can happen to files: `python -m tests.chaos [crash|faults|flips|resealed] [--budget S] [--seed N]`.

Each sweep runs cases in child processes until it has none left, or its share of the time is over, and prints what was
wrong in each that went wrong; a table of numbers comes last. Exit code 1 if anything was lost, hung, or raised; 2 if a
sweep has run no case.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.chaos import resealed, syscall_faults
from tests.chaos.children import HEAD, Outcome, Tally, run_cases

SWEEPS = {"crash": "crash_states", "faults": "syscall_faults", "flips": "flips"}
RESEALED = "resealed"


def _resealed(seconds: float, first: int, told) -> Tally:
    from tests.chaos.resealed_specimens import SPECIMENS

    tally, began = Tally(RESEALED), time.monotonic()
    for place, name in enumerate(SPECIMENS, 1):
        deadline = began + seconds * place / len(SPECIMENS)
        for outcome in resealed.sample({name: 1 << 30}, first, deadline):
            tally.add(outcome)
            told(outcome)
    tally.seconds = time.monotonic() - began
    return tally


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__.splitlines()[0])
    parser.add_argument("sweeps", nargs="*", help=f"of {', '.join((*SWEEPS, RESEALED))} (default: all)")
    parser.add_argument("--budget", type=float, default=1200.0, metavar="SECONDS", help="for all (default: 1200)")
    parser.add_argument("--seed", type=int, default=0, help="of the order of cases, and of what is left to chance")
    parser.add_argument("--first", type=int, default=0, help="the first case of each sweep")
    parser.add_argument("--count", type=int, default=1 << 30, help="cases of each sweep, but of `resealed`")
    parser.add_argument("--verbose", action="store_true", help="say what each case did")
    args = parser.parse_args(argv)
    wanted = args.sweeps or [*SWEEPS, RESEALED]
    if unknown := {*wanted} - {*SWEEPS, RESEALED}:
        parser.error(f"there is no sweep {', '.join(sorted(unknown))}")

    def told(outcome: Outcome) -> None:
        if outcome.fault or args.verbose:
            print(f"seed {args.seed}: {outcome}", flush=True)

    tallies, until = [], time.monotonic() + args.budget
    with tempfile.TemporaryDirectory(prefix="marius_oac.chaos.") as folder:
        for place, name in enumerate(wanted):
            share = (until - time.monotonic()) / (len(wanted) - place)
            if name == RESEALED:
                tallies.append(_resealed(share, args.first, told))
            else:
                rest = (args.first, args.count, share, told)
                given = syscall_faults.environment(Path(folder)) if name == "faults" else {}
                tallies.append(run_cases(SWEEPS[name], args.seed, Path(folder), *rest, given))
    print(HEAD, *(tally.row() for tally in tallies), sep="\n")
    if empty := [tally.of for tally in tallies if not tally.cases]:
        print(f"no case of {', '.join(empty)} was run: the budget is too small, or --first too large", file=sys.stderr)
        return 2
    return 1 if any(tally.faults for tally in tallies) else 0


if __name__ == "__main__":
    sys.exit(main())
