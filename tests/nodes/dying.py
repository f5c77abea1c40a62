"""The command `marius-oac`, some of whose trainers end themselves at a moment of a batch that they were dealt.

    dying.py NODE BATCHES COMMAND...

The three trainers of NODE compute that many batches. Of the next one the first has the token, the second has been
told by one server that it has its gradients, the third by all of them.
"""

import os
import signal
import sys
from functools import partial

from marius_oac.cli import commands as cli
from marius_oac.nodes.launch import launch
from marius_oac.nodes.shards.dispatched_rows import DispatchedRows
from marius_oac.nodes.training import rowless as node_rowless
from marius_oac.nodes.transport.messages import Done, Push

train, write, send = node_rowless.Rowless.train, DispatchedRows.write, DispatchedRows._send


class Dying:
    """`moment`: 0 to 2, as above."""

    def __init__(self, moment, batches):
        self.moment, self.left = moment, batches

    def write(self, rows, batch):
        self.left -= 1
        if self.left < 0 and self.moment == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        write(rows, batch)

    def send(self, rows, node, message):
        if self.left < 0 and isinstance(message, Push | Done):
            if isinstance(message, Push) and not node:
                send(rows, node, message)
            rows._wait(lambda: isinstance(message, Done) or rows._taken[message.batch_index])
            if self.moment == (1 if isinstance(message, Push) else 2):
                os.kill(os.getpid(), signal.SIGKILL)
            if not node and isinstance(message, Push):
                return
        send(rows, node, message)


def main():
    node, batches, *command = sys.argv[1:]

    def trained(rowless):
        if rowless._place.node.name == node:
            dying = Dying(rowless._place.local, int(batches))
            DispatchedRows.write = lambda *given: dying.write(*given)
            DispatchedRows._send = lambda *given: dying.send(*given)
        return train(rowless)

    node_rowless.Rowless.train = trained
    launch.Request = partial(launch.Request, program=[__file__, node, batches])
    return cli.main(command)


if __name__ == "__main__":
    sys.exit(main())
