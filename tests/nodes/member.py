"""A member of a group of processes: plays the scenarios whose names it reads, one a line, and writes what they return.

`python -m tests.nodes.member TIMEOUT`, in the environment that torchrun makes.
"""

import json
import sys
import traceback

import torch

from marius_oac.nodes.torch_group import TorchGroup
from tests.nodes import conformance


def main():
    torch.set_num_threads(1)
    with TorchGroup.from_environment(timeout=float(sys.argv[1]), interface="lo") as group:
        group.name_of_kind = "process"
        for line in sys.stdin:
            try:
                result = getattr(conformance, line.strip())(group)
            except Exception:
                print(json.dumps({"error": traceback.format_exc()}), flush=True)
                raise
            print(json.dumps({"result": result}), flush=True)


if __name__ == "__main__":
    main()
