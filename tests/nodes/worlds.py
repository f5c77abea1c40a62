"""Members of a group, as threads or processes, that play a scenario of `conformance` together."""

import json
import multiprocessing
import multiprocessing.connection
import threading

from marius_oac.nodes.groups.thread_group import ThreadGroup
from tests.nodes import conformance, member
from tests.ports import free_ports
from tests.threads import PATIENCE

FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload([member.__name__])


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
    """Processes that torchrun could have started, on the loopback interface; forked by one that has imported torch."""

    def __init__(self, size, timeout=20.0):
        (port,) = free_ports(1)
        self.members, self.lines = [], []
        for rank in range(size):
            environment = {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank),
                           "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}  # fmt: skip
            ours, theirs = FORKED.Pipe()
            with theirs:
                self.members.append(FORKED.Process(target=member.play, args=(theirs, environment, timeout)))
                self.members[-1].start()
            self.lines.append(ours)

    def play(self, name, heard=None):
        """What the members return: the first `heard`, or all."""
        self.say(name, *range(len(self.members)))
        return self.hear(heard)

    def say(self, word, *ranks):
        """To members of these ranks."""
        for rank in ranks:
            self.lines[rank].send_bytes(word.encode())

    def hear(self, heard=None):
        """See `play`."""
        answers = [self._answer(line) for line in self.lines[:heard]]
        for answer in answers:
            assert "error" not in answer, answer["error"]
        return [answer["result"] for answer in answers]

    def _answer(self, line):
        try:
            return json.loads(line.recv_bytes())
        except EOFError:
            return {"result": "dead"}

    def await_told(self, *ranks):
        """Until each of these members has called `tell`: it is where its scenario says."""
        for rank in ranks:
            assert self._answer(self.lines[rank]) is None

    def silent(self, seconds):
        """Whether nobody answers for so long."""
        return not multiprocessing.connection.wait(self.lines, seconds)

    def close(self):
        for line in self.lines:
            line.close()
        for each in self.members:
            each.join(PATIENCE)
            assert not each.is_alive(), "a member hangs"
