"""Members of a group, as threads or processes, that play a scenario of `conformance` together."""

import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

from marius_oac.nodes.thread_group import ThreadGroup
from tests.nodes import conformance
from tests.threads import PATIENCE


class ThreadWorld:
    def __init__(self, size, **settings):
        self.groups = ThreadGroup.members(size, **settings)

    def play(self, name):
        return [outcome for outcome in together(self.groups, getattr(conformance, name))]

    def close(self):
        for group in self.groups:
            group.close()


def together(members, work):
    """What `work(member)` returns for each, run by a thread each; the first error is raised after all have ended."""
    outcomes = [None] * len(members)
    errors = []

    def run(rank, member):
        member.name_of_kind = "thread"
        try:
            outcomes[rank] = work(member)
        except BaseException as error:
            errors.append(error)
            member.abort()

    threads = [threading.Thread(target=run, args=each) for each in enumerate(members)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive(), "a member hangs"
    if errors:
        raise errors[0]
    return outcomes


class ProcessWorld:
    """Processes that torchrun could have started, on the loopback interface."""

    def __init__(self, size, timeout=20.0):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.members = [
            subprocess.Popen(
                [sys.executable, "-m", "tests.nodes.member", str(timeout)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2],
                env=os.environ | {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank),
                                  "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"},
            )
            for rank in range(size)
        ]  # fmt: skip

    def play(self, name, heard=None):
        """What the members return: the first `heard`, or all."""
        self.say(name, *range(len(self.members)))
        return self.hear(heard)

    def say(self, line, *ranks):
        """To members of these ranks."""
        for rank in ranks:
            self.members[rank].stdin.write(line + "\n")
            self.members[rank].stdin.flush()

    def hear(self, heard=None):
        """See `play`."""
        answers = [json.loads(member.stdout.readline() or '{"result": "dead"}') for member in self.members[:heard]]
        for answer in answers:
            assert "error" not in answer, answer["error"]
        return [answer["result"] for answer in answers]

    def close(self):
        for member in self.members:
            member.stdin.close()
        for member in self.members:
            member.wait(PATIENCE)
            member.stdout.close()
