"""Plants mutants and runs the tests that reach them: `python -m tests.mutants [FILES] [--budget S] [--seed N]`.

The first run measures which tests reach which functions, by running the quick tests once, or those files of tests
that `--record` names. Results go, a line of JSON for each mutant, to WORK/results.jsonl; those that are there already
are not tried again. Exit code 1 if any lives.
"""

import argparse
import ast
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tests.mutants.kinds import Mutant, all_mutants, sampled
from tests.mutants.reach import ROOT, Reach
from tests.mutants.trials import Workshop

HEAD = f"{'file':44} planted  killed  timed out  alive"


class Sweep:
    """What mutants are planted in, which tests try them, and what became of them."""

    def __init__(self, workshop: Workshop, reach: Reach, most_s: float, told):
        self._workshop, self._reach, self._most_s, self._told = workshop, reach, most_s, told
        self._sound: dict[str, bool] = {}

    def tests_of(self, mutant: Mutant) -> list[str]:
        """The tests to run, those of the module's own file first; of the others, the shortest, within the limit."""
        seconds, stem = self._reach.seconds, Path(mutant.path).stem
        found = {test for test in self._reach.of_function(mutant.path, mutant.function) if self._sound.get(test, True)}

        def far(test: str) -> tuple:
            file = Path(test.partition("::")[0])
            own = file.stem == f"test_{stem}"
            return not own, file.parent.name != Path(mutant.path).parent.name, seconds[test]

        chosen, total = [], 0.0
        for test in sorted(found, key=far):
            total += seconds[test]
            if total > self._most_s and chosen:
                break
            chosen.append(test)
        first = {}
        for place, test in enumerate(chosen):
            first.setdefault(test.partition("::")[0], place)
        return sorted(chosen, key=lambda test: first[test.partition("::")[0]])

    def try_one(self, mutant: Mutant, tests: list[str]) -> dict:
        """Its outcome: killed, timed out, alive, or without a test."""
        took = 0.0
        source = (self._workshop.copy / mutant.path).read_bytes()
        while True:
            tests = [test for test in tests if self._sound.get(test, True)]
            if not tests:
                return {**mutant.record(), "outcome": "without a test", "killer": "", "seconds": took, "tests": 0}
            limit = 45 + 5 * sum(self._reach.seconds.get(test, 10.0) for test in tests)
            with self._workshop.changed(mutant.path, mutant.applied(source)):
                ended = self._workshop.run(tests, limit, mutant.path, mutant.kernel)
            took += ended.seconds
            if ended.outcome != "failed" or self._is_sound(ended.killer):
                break
        outcome = {"passed": "alive", "hung": "timed out"}.get(ended.outcome, "killed")
        killer = ended.killer or ended.outcome
        return {**mutant.record(), "outcome": outcome, "killer": killer, "seconds": took, "tests": len(tests)}

    def _is_sound(self, test: str) -> bool:
        """Whether a test passes where nothing is changed."""
        if "::" not in test:
            return True
        if test not in self._sound:
            self._sound[test] = self._workshop.run([test], 300).outcome == "passed"
            if not self._sound[test]:
                self._told(f"fails where nothing is changed, and is left out: {test}")
        return self._sound[test]


def measure(workshop: Workshop, tests: list[str]) -> list[Path]:
    """Files of what tests reach; measured where there is none, with these files of tests (none: all)."""
    files = sorted(workshop.folder.glob("reach*.txt"))
    if not files:
        part, file = workshop.folder / "reach.part", workshop.folder / "reach.txt"
        part.unlink(missing_ok=True)
        environment = {**os.environ, **workshop.environment(), "MUTANTS_REACH": str(part)}
        command = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.mutants.reach", *tests)
        subprocess.run(command, cwd=workshop.copy, env=environment, check=False)
        files = [part.rename(file)]
    return files


def _key(result: dict) -> tuple:
    return tuple(result[name] for name in ("path", "function", "kind", "before", "text", "line"))


def sources() -> list[str]:
    """The files of the package that hold more than a text."""
    paths = sorted((ROOT / "marius_oac").rglob("*.py"))
    return [str(path.relative_to(ROOT)) for path in paths if ast.parse(path.read_bytes()).body[1:]]


def drawn(files: list[str], each: int, seed: int, workshop: Workshop) -> Iterator[Mutant]:
    """`each` mutants of every file, of files with kernels twice as many."""
    for path in files or sources():
        mutants = all_mutants(path, (workshop.copy / path).read_bytes())
        yield from itertools.islice(sampled(mutants, seed), each * (1 + any(mutant.kernel for mutant in mutants)))


def alive(results: list[dict], workshop: Workshop) -> Iterator[Mutant]:
    """Those that live by their last result."""
    for key, result in {_key(result): result for result in results}.items():
        if result["outcome"] in ("alive", "without a test"):
            source = (workshop.copy / result["path"]).read_bytes()
            yield from (each for each in all_mutants(result["path"], source) if _key(each.record()) == key)


def table(results: list[dict]) -> str:
    lines = [HEAD]
    for path in sorted({result["path"] for result in results}):
        of_file = [result["outcome"] for result in results if result["path"] == path]
        killed, late = of_file.count("killed"), of_file.count("timed out")
        lines.append(f"{path:44} {len(of_file):7} {killed:7} {late:10} {len(of_file) - killed - late:6}")
    return "\n".join(lines)


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", help="of the package (default: all)")
    parser.add_argument("--budget", type=float, default=1200.0, metavar="SECONDS", help="default: 1200")
    parser.add_argument("--seed", type=int, default=0, help="of the choice of mutants")
    parser.add_argument("--each", type=int, default=6, metavar="N", help="mutants of a file; of kernels, twice as many")
    parser.add_argument("--most", type=float, default=60.0, metavar="SECONDS", help="of tests for a mutant")
    parser.add_argument("--work", type=Path, required=True, help="a folder for the copy, the caches and the results")
    parser.add_argument("--record", nargs="*", default=[], metavar="TESTS", help="to measure (default: all quick)")
    parser.add_argument("--tests", nargs="*", help="try the mutants that live again, with these files of tests")
    args = parser.parse_args(argv)
    args.work.mkdir(parents=True, exist_ok=True)
    workshop = Workshop(args.work.resolve())
    reach = Reach(measure(workshop, args.record))
    workshop.load()
    until, file = time.monotonic() + args.budget, args.work / "results.jsonl"
    results = [json.loads(line) for line in file.read_text("utf-8").splitlines()] if file.exists() else []
    sweep = Sweep(workshop, reach, args.most, print)
    if args.tests:
        chosen = [(mutant, args.tests) for mutant in alive(results, workshop)]
    else:
        tried = {_key(result) for result in results}
        chosen = [(mutant, None) for mutant in drawn(args.files, args.each, args.seed, workshop)
                  if _key(mutant.record()) not in tried]  # fmt: skip
    for mutant, tests in chosen:
        if time.monotonic() > until:
            break
        result = sweep.try_one(mutant, tests or sweep.tests_of(mutant))
        results.append(result)
        with file.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(result) + "\n")
        if result["outcome"] != "killed":
            what = f"{mutant.kind}: {mutant.before} -> {mutant.text}"
            print(f"{result['outcome']}: {mutant.path}:{mutant.line} {what}", flush=True)
    results = list({_key(result): result for result in results}.values())
    print(table(results))
    return 1 if any(result["outcome"] in ("alive", "without a test") for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
