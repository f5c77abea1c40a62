"""Files changed with their structure in mind, sealed anew, and read by commands: `python -m tests.chaos.resealed`.

Each case takes a small valid run, graph or log (`resealed_specimens`), changes something in one of its files
(`resealed_changes`), puts every checksum right again (`resealed_seals`) and runs commands in process. They may succeed,
or refuse in one line. No traceback, no crash, no hang, no file elsewhere, and what was refused stays as it was.

Cases are numbered and derandomised: `--only run --first 17 --count 1` is the same case everywhere. They run in child
processes, one after the other, so that the end of a process is seen and the next case goes on in another.
"""

import argparse
import contextlib
import faulthandler
import io
import json
import os
import random
import resource
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from tests.chaos.children import Outcome, outcomes_of
from tests.run_folders import contents

LIMIT_S, WARM_LIMIT_S = 40, 400
MOST_LINES = 12
MOST_BYTES = 8 << 30
"""Of memory that a command may ask for: a bomb is an error that is seen."""
DERIVED = ("encoded", "neighbors-in", "neighbors-both", "neighbors-out", "features-", "buckets", ".lock", "made")


def sample(counts: dict[str, int], first: int = 0, deadline: float | None = None) -> Iterator[Outcome]:
    """The outcomes of so many cases of each specimen, from number `first` on; no more begin after the deadline, of
    `time.monotonic`."""
    with tempfile.TemporaryDirectory(prefix="marius_oac.resealed.") as folder:
        for specimen, count in counts.items():
            begin, end = first, first + count
            while begin < end and not (deadline and time.monotonic() > deadline):
                for outcome in _child(specimen, begin, end, Path(folder) / specimen.replace(" ", "-"), deadline):
                    yield outcome
                    begin = outcome.number + 1
                    if deadline and time.monotonic() > deadline:
                        break


def _child(specimen: str, begin: int, end: int, folder: Path, deadline: float | None) -> Iterator[Outcome]:
    """Outcomes of cases until one ends the process."""
    command = ["-m", "tests.chaos.resealed", "--child", str(folder), "--only", specimen,
               "--first", str(begin), "--count", str(end - begin)]  # fmt: skip
    return outcomes_of(command, specimen, begin, folder, deadline)


class _Cases:
    """In a child: cases of one specimen. `here` is where its paths say that it lies."""

    def __init__(self, specimen: str, folder: Path):
        from tests.chaos.resealed_specimens import SPECIMENS

        self.specimen, self._made = specimen, SPECIMENS[specimen]
        self._folder, self.here, self._pristine = folder, folder / "sandbox" / "here", folder / "pristine"
        for each in (folder / "sandbox", folder / "sandbox" / "work", folder / "out"):
            each.mkdir(exist_ok=True)
        os.chdir(folder / "sandbox" / "work")
        new = not self._pristine.exists()
        if new:
            shutil.rmtree(self.here, ignore_errors=True)
            self.here.mkdir()
            self._made.make(self.here)
            shutil.copytree(self.here, self._pristine, symlinks=True)
        for argv in self._made.commands if new else ():
            self._renew()
            code, fault = self._command(argv, WARM_LIMIT_S)
            if code != 0:
                raise RuntimeError(f"the specimen as it was made: {argv} -> {code}: {fault}")

    def _renew(self) -> None:
        for each in (self.here, self._folder / "out"):
            shutil.rmtree(each, ignore_errors=True)
        shutil.copytree(self._pristine, self.here, symlinks=True)
        (self._folder / "out").mkdir()

    def run(self, number: int, tell) -> Outcome:
        from tests.chaos.resealed_changes import change
        from tests.chaos.resealed_seals import reseal_all

        chance = random.Random(f"{self.specimen}/{number}")
        self._renew()
        files = [path for path in sorted(self.here.rglob("*"))
                 if path.is_file() and not path.name.endswith(self._made.left_alone)]  # fmt: skip
        said = []
        for _ in range(chance.choice((1, 1, 1, 2))):
            path = chance.choice(files)
            with contextlib.suppress(Exception):  # a second change of what is no such file any more
                said.append(f"{path.relative_to(self.here)}: {change(path, chance)}")
        reseal_all(self.here)
        asked = list(self._made.commands)
        chosen = sorted(chance.sample(range(len(asked)), min(2, len(asked))))
        outcome = Outcome(self.specimen, number, "; ".join(said), tuple(" ".join(asked[each][:2]) for each in chosen))
        tell(outcome, False)
        codes = []
        for each in chosen:
            code, fault = self._command(asked[each], LIMIT_S)
            codes.append(code)
            if fault:
                return Outcome(**{**asdict(outcome), "codes": tuple(codes), "fault": fault})
        return Outcome(**{**asdict(outcome), "codes": tuple(codes)})

    def _command(self, argv: tuple[str, ...], limit: int) -> tuple[int, str | None]:
        """The exit code, and what was wrong."""
        from marius_oac.cli.commands import main

        out = self._folder / "out" / str(len(list((self._folder / "out").iterdir())))
        words = [word.replace("HERE", str(self.here)).replace("OUT", str(out)) for word in argv]
        before, elsewhere = self._state(), self._elsewhere()
        streams = [io.TextIOWrapper(io.BytesIO(), "utf-8", errors) for errors in ("strict", "backslashreplace")]
        faulthandler.dump_traceback_later(limit, exit=True)
        code, raised = -1, None
        try:
            with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]):
                code = main(words)
        except SystemExit as ended:
            code = ended.code
        except BaseException:  # what a user would see as a traceback
            raised = traceback.format_exc(limit=-4)
        finally:
            faulthandler.cancel_dump_traceback_later()
        streams[1].flush()
        lines = streams[1].buffer.getvalue().decode().splitlines()
        return code, self._fault(words, code, raised, lines, before, elsewhere)

    def _fault(self, words, code, raised, lines, before, elsewhere) -> str | None:
        said = [line for line in lines if not line.startswith(("note: ", "memory plan ", "epoch ", "  "))]
        if raised:
            return raised
        if any("Traceback" in line for line in lines):
            return "\n".join(lines)
        if code not in (0, 1, 2):
            return f"exit code {code}: {lines}"
        if code and (len(said) > MOST_LINES or not lines) and words[0] != "compare":
            return f"{len(said)} lines: {lines}"
        if self._elsewhere() != elsewhere:
            return f"files elsewhere: {sorted(self._elsewhere() ^ elsewhere)}"
        changed = sorted(name for name, _ in self._state().items() ^ before.items())
        if code == 2 and words[0] == "resume":  # it may have gone on for a while
            older, newer = _checkpoints(before), _checkpoints(self._state())
            gone_on = max(newer, default="") > max(older, default="")
            changed = [] if gone_on else [name for name in changed if name in before and _checkpoints([name])]
        if code == 2 and changed:
            return f"refused, but changed: {changed[:8]}; {lines}"
        return None

    def _state(self) -> dict[str, str]:
        parts = contents(self.here)
        return {name: each for name, each in parts.items()
                if not any(part.startswith(DERIVED) for part in Path(name).parts)}  # fmt: skip

    def _elsewhere(self) -> set[str]:
        """Paths that no command has any business with."""
        given = {str(path) for path in (self._folder / "sandbox").rglob("*") if self.here not in (path, *path.parents)}
        return given | {str(path) for path in self._folder.iterdir() if path.name not in ("cache", "stderr")}


def _checkpoints(names) -> set[str]:
    """Of the run, by the paths of their files."""
    parts = (Path(name).parts for name in names)
    return {each[2] for each in parts if each[:2] == ("run", "checkpoints") and each[2].isdigit()}


def _run_child(args: argparse.Namespace) -> None:
    told = os.fdopen(os.dup(sys.stdout.fileno()), "w")

    def tell(outcome: Outcome, done: bool) -> None:
        print(json.dumps({"of": asdict(outcome), "done": done}), file=told, flush=True)

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    faulthandler.enable()
    from marius_oac.runtime import standstill

    standstill.in_command = lambda: False  # the one timer of faulthandler is that of a case
    cases = _Cases(args.only, Path(args.child))
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES))
    for number in range(args.first, args.first + args.count):
        tell(cases.run(number, tell), True)


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.resealed", description=__doc__.splitlines()[0])
    parser.add_argument("--only", help="one specimen")
    parser.add_argument("--first", type=int, default=0, help="the first case's number")
    parser.add_argument("--count", type=int, default=100, help="cases of each specimen")
    parser.add_argument("--seeds", type=int, help="the same as --count")
    parser.add_argument("--seconds", type=float, help="no case begins later; a specimen gets its share")
    parser.add_argument("--verbose", action="store_true", help="say what each case did")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.child:
        _run_child(args)
        return 0
    from tests.chaos.resealed_specimens import SPECIMENS

    names = [args.only] if args.only else list(SPECIMENS)
    count, faults, done = args.seeds or (args.count if args.seconds is None else 1 << 30), 0, 0
    began = time.monotonic()
    for place, name in enumerate(names, 1):
        deadline = began + args.seconds * place / len(names) if args.seconds else None
        for outcome in sample({name: count}, args.first, deadline):
            done += 1
            faults += outcome.fault is not None
            if outcome.fault or args.verbose:
                print(outcome, flush=True)
    print(f"{done} cases, {faults} faults, {time.monotonic() - began:.0f} s")
    return 1 if faults else 0 if done else 2


if __name__ == "__main__":
    sys.exit(main())
