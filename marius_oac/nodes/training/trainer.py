"""The process of a run that a Ray actor starts: `python -m marius_oac.nodes.training.trainer` trains as its standard
input says, which is one JSON object:

- `do`: `train`, with the text of a `config`, `out` and `trace`; or `resume`, with the `run` and `resumed`, the
  arguments of `resume_on_nodes`.
- `terminal`: whether its standard error is relayed to one.
- what `nodes.launch.on_ray.job` needs.

Nothing in it is executed or unpickled.
"""

import sys

if not sys.flags.safe_path:
    del sys.path[0]  # see `marius_oac.__main__`

import json  # noqa: E402
from collections.abc import Mapping  # noqa: E402
from typing import Any  # noqa: E402

from marius_oac.runtime.command import end_at_once, run_command  # noqa: E402
from marius_oac.runtime.console import report, shown_on_a_terminal  # noqa: E402
from marius_oac.runtime.imports import imports  # noqa: E402
from marius_oac.runtime.resuming import started_with  # noqa: E402


def _work(job: Mapping[str, Any]) -> int:
    from marius_oac.nodes.launch.on_ray.job import placed

    if job["terminal"]:
        shown_on_a_terminal()
    with placed(job) as place, started_with(job["options"]):
        from marius_oac.config.errors import parse
        from marius_oac.config.task import build_config, kernel_groups
        from marius_oac.kernels.ahead import compiling

        if job["do"] == "train":
            config = build_config(parse(job["config"], "config")[0])
            with compiling(kernel_groups(config, over_nodes=True)):
                with imports():
                    from marius_oac.nodes.training.cluster import train_on_nodes

                result = train_on_nodes(config, place, job["out"], trace=job["trace"])
        else:
            from marius_oac.nodes.training.cluster import resume_on_nodes

            result = resume_on_nodes(job["run"], place, job["set"], **job["resumed"])
    if not place.rank and result is not None:
        report(result)
    return 0


def main() -> int:
    """Trains; returns the exit code."""
    return run_command("marius-oac", lambda: _work(json.loads(sys.stdin.buffer.read())))


if __name__ == "__main__":
    sys.exit(end_at_once(main()))
