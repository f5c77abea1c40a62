"""Starts the processes of a group."""

import os
import subprocess
import sys

import torch

PATIENCE = 150


def spawn(folder, *scenarios, size=2, module="tests.own_loop.processes.ranks"):
    """The processes, which have begun."""
    environment = {**os.environ, "WORLD_SIZE": str(size)}
    return [
        subprocess.Popen(
            [sys.executable, "-m", module, str(folder), *scenarios], env={**environment, "RANK": str(rank)},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for rank in range(size)
    ]  # fmt: skip


def ended(processes):
    """Their exit codes and what they printed. None is left."""
    try:
        said = [process.communicate(timeout=PATIENCE)[0] for process in processes]
        return [(process.returncode, text) for process, text in zip(processes, said, strict=True)]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def results(folder, *scenarios, size=2):
    """Of each scenario, by name, the result of each process."""
    for code, text in ended(spawn(folder, *scenarios, size=size)):
        assert code == 0, text
    return {
        name: [torch.load(folder / f"{name}.{rank}.pt", weights_only=True) for rank in range(size)]
        for name in scenarios
    }
