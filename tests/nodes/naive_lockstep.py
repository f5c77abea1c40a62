"""When a shard answers in lockstep, and which rows a patch has: the rules of docs/nodes.md, one after the other.

Every message is kept for ever, and after each one everything is found again by looking through all of them.
"""


class NaiveLockstep:
    """A shard without rows. `pull` and `push` return what is sent, None if the message must be refused:

        (trainer, "rows", batch, final)          the answer to a pull
        (trainer, "patch", batch, places)        of each table the positions in the pull whose rows have changed
        (trainer, "applied", batch)

    Args:
        trainers: their number. ahead: a trainer has so many pulls at most that are not applied.
        first: the first batch.
        changed: (table, row) -> the last batch that has changed it.
    """

    def __init__(self, trainers, ahead, first, changed):
        self.trainers, self.ahead, self.first, self.changed = trainers, ahead, first, changed
        self.pulled, self.pushed, self.answered = {}, {}, {}  # by (batch, trainer)

    def applied(self):
        """The last batch whose pushes have come of all trainers, as have those of all batches before it."""
        batch = self.first
        while all((batch, trainer) in self.pushed for trainer in range(self.trainers)):
            batch += 1
        return batch - 1

    def pull(self, trainer, batch, rows):
        """`rows`: of each table."""
        under_way = [number for number, who in self.pulled if who == trainer and number > self.applied()]
        if batch < self.first or (batch, trainer) in self.pulled or len(under_way) >= self.ahead:
            return None
        self.pulled[batch, trainer] = rows
        out = []
        for number, who in sorted(self.pulled):
            before = (number - self.first) * self.trainers + who  # pulls of earlier batches, or of trainers before it
            if (number, who) not in self.answered and sum(each < (number, who) for each in self.pulled) == before:
                self.answered[number, who] = self.applied()
                out.append((who, "rows", number, self.applied() == number - 1))
        return out

    def push(self, trainer, batch, changed):
        """`changed`: the (table, row) that it has gradients for."""
        if (batch, trainer) not in self.answered or (batch, trainer) in self.pushed:
            return None
        was = self.applied()
        self.pushed[batch, trainer] = changed
        out = []
        for number in range(was + 1, self.applied() + 1):
            for who in range(self.trainers):
                self.changed.update(dict.fromkeys(self.pushed[number, who], number))
            out += [self._news(who, number) for who in range(self.trainers)]
        return out

    def _news(self, trainer, batch):
        seen = self.answered.get((batch + 1, trainer))
        if seen is None:
            return trainer, "applied", batch
        newer = [
            [at for at, row in enumerate(rows) if self.changed.get((table, row), -1) > seen]
            for table, rows in enumerate(self.pulled[batch + 1, trainer])
        ]
        return trainer, "patch", batch + 1, newer
