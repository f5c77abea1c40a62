"""What only a process of its own meets: signals, limits, streams, places that can't be written, odd surroundings."""

import shutil
from collections.abc import Mapping
from pathlib import Path

from tests.battery.cases import Case
from tests.battery.table_edges import EDGES
from tests.battery.table_logs import CTR, LOG
from tests.battery.table_settings import GRAPH

FILES = {"c.yaml": GRAPH}
CLICKS = {"c.yaml": CTR, "log.csv": LOG}
LONG = {"c.yaml": GRAPH.replace("epochs: 1", "epochs: 100000")}
NAMED = (
    "set -e; $oac prepare names.tsv --out g --valid-fraction 0 --test-fraction 0; "
    "$oac train c.yaml --out r --set data.path=g; "
)
NAMES = {"c.yaml": GRAPH, "names.tsv": "Zürich\tliegt in\tSchweiz\nБерн\tliegt in\tSchweiz\nSchweiz\tnahe\tБерн\n" * 3}
RUN = ("r", "r/**/*")
WRITTEN = {"made": RUN, "notes": None, "code": 0}

GONE = "the folder that the command was called in is gone"
FULL = ("standard output", "can't be written: No space left on device")
PACKAGE = Path(__file__).parents[2] / "marius_oac"


def sealed_package(path: Path, specimens: Mapping[str, str]) -> None:
    """The package where nothing can be kept beside its modules, whoever the user is: a file is in the way."""
    shutil.copytree(PACKAGE, path, ignore=shutil.ignore_patterns("__pycache__", "embedded"))
    for each in [path, *path.rglob("*")]:
        if each.is_dir():
            (each / "__pycache__").write_text("")


WAIT = "until compgen -G '{}' > .seen; do kill -0 $! || break; done; rm .seen; "
"""Shell: until a file is there."""


def signalled(name: str, number: str, code: int, what: str, moment: str = "r/metrics.jsonl", train: str = "") -> Case:
    """A signal while a run trains."""
    command = f"$oac train c.yaml --out r {train} & {WAIT.format(moment)} kill -{number} $!; wait $!"
    return Case(name, command, LONG, "", what, code, None, RUN)


def limited(name: str, limit: str, command: str, where: str = "", what: str = "", **more) -> Case:
    """A limit of the shell's. Python would leave half of a module's bytecode where files may not grow."""
    return Case(
        name,
        f"export PYTHONDONTWRITEBYTECODE=1; ulimit {limit}; $oac {command}",
        more.pop("files", FILES),
        where,
        what,
        **more,
    )


def within(name: str, command: str, where: str = "", what: str = "", files=None, code=2, notes=0, made=(), **variables):
    """A surrounding."""
    return Case(name, command, FILES if files is None else files, where, what, code, notes, made, variables)


CASES = [
    # Signals.
    signalled("signal-int", "INT", 130, "stopped at batch"),
    signalled("signal-term", "TERM", 143, "stopped at batch"),
    signalled("signal-hup", "HUP", 129, "stopped at batch"),
    signalled("signal-term-early", "TERM", 143, "stopped", "r/config.yaml"),
    signalled("signal-term-on-disk", "TERM", 143, "stopped at batch", train="--set storage.memory=1MiB"),
    signalled("signal-int-async", "INT", 130, "stopped at batch", train="--set pipeline.mode=async"),
    signalled("signal-term-sync", "TERM", 143, "stopped at batch", train="--set pipeline.mode=sync"),
    Case("signal-usr1", "$oac config & kill -CONT $!; wait $!", {}, code=0),
    Case("signal-pipe", "$oac config | true; exit ${PIPESTATUS[0]}", {}, code=0),
    Case("signal-stop-and-continue", "$oac eval $run & kill -STOP $!; kill -CONT $!; wait $!", {}, code=0),
    # Streams.
    Case("stream-stdout-full-config", "$oac config > /dev/full", {}, "standard output",
            "can't be written: No space left"),
    Case("stream-stdout-full-predict", "$oac predict $run --head 1 --relation 0 > /dev/full", {}, *FULL),
    Case("stream-stdout-full-eval", "$oac eval $clicks > /dev/full", {}, "standard output",
            "can't be written: No space"),
    Case("stream-stdout-full-verify", "$oac verify $run > /dev/full", {}, "standard output",
            "can't be written: No space"),
    Case("stream-stdout-full-init", "$oac init log.csv > /dev/full", {"log.csv": LOG}, *FULL),
    Case("stream-stdout-full-help", "$oac train --help > /dev/full", {}, "standard output",
            "can't be written: No space"),
    Case("stream-stdout-closed-train", "$oac train c.yaml --out r >&-", FILES, **WRITTEN),
    Case("stream-stdout-closed-compare", "$oac compare $run $run >&-", {}, code=0),
    Case("stream-all-closed", "$oac train c.yaml --out r <&- >&- 2>&-", FILES, **WRITTEN),
    Case("stream-stderr-closed-mistake", "$oac train nothing.yaml 2>&-", {}, code=2),
    Case("stream-stderr-full-mistake", "$oac train nothing.yaml 2> /dev/full", {}, code=2),
    Case("stream-stderr-full-train", "$oac train c.yaml --out r 2> /dev/full", FILES, **WRITTEN),
    Case("stream-pipe-of-predict", "$oac predict $run --head 1 --relation 0 | head -1; exit ${PIPESTATUS[0]}", {},
            code=0),
    Case("stream-stdin-closed", "$oac eval $run <&-", {}, code=0),
    Case("stream-out-is-a-stream", "$oac predict $clicks --data $log --out /dev/stdout", {},
         "/dev/stdout", "its suffix says what is written"),
    # Limits.
    limited("limit-file-size-prepare", "-f 1", "prepare g.tsv --out g", "g",
            "can't be written: File too large", files={"g.tsv": EDGES * 999}),
    limited("limit-file-size-train", "-f 4", "train c.yaml --out r", "r/checkpoints/0000000025",
            "can't be written: File too large", made=RUN, notes=None),
    limited("limit-file-size-export", "-f 1", "export $run --out e", "e",
            "can't be written: File too large", files={}),
    limited("limit-memory-clicks", "-v 6000000", "train c.yaml --out r", "",
            "there is no address space for", files=CLICKS, notes=None, made=RUN),
    limited("limit-memory-libraries", "-v 700000", "predict $run --head 1 --relation 0", "",
            "there is not enough memory, or address space (ulimit -v), for a library", files={}),
    limited("limit-stack", "-s 512", "eval $run", files={}, code=0),
    limited("limit-core-and-locked", "-c 0; ulimit -l 0", "eval $run", files={}, code=0),
    # Places.
    within("place-cwd-gone", "mkdir d; cd d; rmdir ../d; $oac train c.yaml", ".", GONE),
    within("place-cwd-gone-eval", "mkdir d; cd d; rmdir ../d; $oac eval $run", ".", GONE, files={}),
    within("place-cwd-gone-config", "mkdir d; cd d; rmdir ../d; $oac config", ".", GONE, files={}),
    within("place-no-cache", "$oac eval nothing", "nothing", "there is no such run", notes=1,
           files={"site/marius_oac": sealed_package}, PYTHONPATH="$here/site", HOME="/dev/null"),
    within("place-temporary-gone", "$oac eval $clicks", files={}, code=0, TMPDIR="$here/nowhere"),
    within("place-temporary-a-file", "$oac eval $clicks", files={"f": "x"}, code=0, TMPDIR="$here/f"),
    within("place-temporary-full-device", "$oac eval $clicks", files={}, code=0, TMPDIR="/dev/full"),
    within("place-home-missing", "$oac eval $run", files={}, code=0, HOME="/nonexistent/home"),
    within("place-home-unset", "$oac eval $run", files={}, code=0, HOME=None),
    within("place-home-a-file", "$oac eval $run", files={"f": "x"}, code=0, HOME="$here/f"),
    within("place-out-in-proc", "$oac train c.yaml --out /proc/r", "/proc/r", "can't be written: No such file",
            notes=None),
    within("place-out-in-dev-full", "$oac train c.yaml --out /dev/full/r", "/dev/full/r",
            "can't be written: Not a directory", notes=None),
    within("place-out-is-dev-full", "$oac train c.yaml --out /dev/full", "/dev/full", "exists already"),
    within("place-storage-in-proc", "$oac train c.yaml --out r --set storage.memory=1MiB --set storage.path=/proc/p",
           "/proc/p", "can't be written: No such file", notes=None),
    within("place-other-modules", "$oac eval $run", files={"yaml.py": "raise SystemExit(9)", "numpy.py": "1/0"},
            code=0),
    # Surroundings.
    within("locale-c", "$oac train caf\u00e9.yaml", "café.yaml", "no such file", files={}, LANG="C", LC_ALL="C"),
    within("locale-posix-prepare", "$oac prepare names.tsv --out g", files=NAMES, code=0, made=("g",
            "g/**/*"), LC_ALL="POSIX"),
    within("encoding-ascii-config", "$oac config", files={}, code=0, PYTHONIOENCODING="ascii"),
    within("encoding-ascii-mistake", "$oac train caf\u00e9.yaml", "caf\\xe9.yaml", "no such file", files={},
            PYTHONIOENCODING="ascii"),
    within("encoding-ascii-predict",
            NAMED + "PYTHONIOENCODING=ascii $oac predict r --head Zürich --relation 'liegt in'",
           files=NAMES, code=0, notes=None, made=("g", "g/**/*", *RUN)),
    within("encoding-c-locale-predict",
           NAMED + "LC_ALL=C PYTHONCOERCECLOCALE=0 PYTHONUTF8=0 $oac predict r --head Zürich --relation 'liegt in'",
           files=NAMES, code=0, notes=None, made=("g", "g/**/*", *RUN)),
    within("encoding-utf16", "$oac eval $run", files={}, code=0, PYTHONIOENCODING="utf-16"),
    within("encoding-bytes-in-name", "$oac train $'\\xff.yaml'", "\\udcff.yaml", "no such file", files={}),
    within("encoding-bytes-in-setting", "$oac train c.yaml --set $'seed=\\xff'", "--set seed",
            "'\\udcff' is not a YAML value"),
    within("locale-unknown", "env LC_ALL=xx_YY.UTF-99 $oac eval $run", files={}, code=0),
    within("variables-none", "env -i $oac eval $run", files={}, code=0),
    within("variables-columns", "$oac eval $run", files={}, code=0, COLUMNS="1", TERM="dumb"),
    within("variables-rank", "$oac train c.yaml --out r", made=RUN, notes=None, code=0, RANK="x", WORLD_SIZE="y"),
    within("variables-secret-short", "$oac attach n.yaml",
           files={"n.yaml": "elastic_workers: 1\nnodes: [{address: 10.0.0.1}]\n"},
           where="MARIUS_OAC_SECRET", what="has 5 characters; 32 or more are needed", MARIUS_OAC_SECRET="short"),
    within("variables-state-a-file", "$oac eval $run", files={"f": "x"}, code=0, XDG_STATE_HOME="$here/f"),
    within("python-warnings", "$python -W error -m marius_oac eval $run", files={}, code=0),
    within("python-isolated", "$python -I -m marius_oac config", files={}, code=0),
    within("python-optimised", "$python -OO -m marius_oac train nothing.yaml", "nothing.yaml", "no such file",
            files={}),
]  # fmt: skip
