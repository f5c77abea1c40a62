"""A member of a group of processes: plays the scenarios whose names it is sent, and answers what they return."""

import json
import os
import traceback

import torch
import torch._dynamo  # noqa: F401  # as optimizers do when they are first used

from marius_oac.nodes.groups.torch_group import TorchGroup
from tests.nodes import conformance

torch.testing.assert_close(torch.rand(1), torch.rand(1), rtol=0, atol=1)  # imports much, once for all members


def play(line, environment, timeout):
    """What a process of it does, in the environment that torchrun makes, until the other end of the line is closed."""
    os.environ.update(environment)
    torch.set_num_threads(1)
    with TorchGroup.from_environment(timeout=timeout, interface="lo") as group:
        group.name_of_kind, group.hear = "process", line.recv_bytes
        group.tell = lambda: line.send_bytes(b"null")
        while True:
            try:
                name = line.recv_bytes().decode()
            except EOFError:
                return
            try:
                answer = {"result": getattr(conformance, name)(group)}
            except Exception:
                line.send_bytes(json.dumps({"error": traceback.format_exc()}).encode())
                raise
            line.send_bytes(json.dumps(answer).encode())
