"""The process of one trial: `python -m marius_oac.training.tune.child REQUEST`.

It trains, or goes on where the run was stopped. It is a run like any other: SIGINT stops it with a checkpoint, and its
exit code is that of `marius-oac train`. It is killed when the search is.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from pydantic import TypeAdapter

from marius_oac.config.task import load_config
from marius_oac.errors import CheckpointError
from marius_oac.nodes.launch.parent import end_with_parent
from marius_oac.runtime.command import end_at_once, run_command
from marius_oac.training.tune.request import Request


def _work(request: Request) -> None:
    from marius_oac.training.local import resume, train

    end_with_parent()
    os.sched_setaffinity(0, request.cpus)
    out = Path(request.out)
    if out.exists():
        try:
            resume(out)
            return
        except CheckpointError:  # it was killed before its first checkpoint
            shutil.rmtree(out)
    train(load_config(request.config, request.overrides), out)


def main() -> int:
    """Of the process."""
    request = TypeAdapter(Request).validate_json(sys.argv[1])
    return run_command("marius-oac tune", lambda: _work(request))


if __name__ == "__main__":
    sys.exit(end_at_once(main()))
