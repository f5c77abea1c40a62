"""What a process raises where agreeing with the others fails."""

from types import SimpleNamespace

import pytest

from marius_oac.errors import InputError, NodeLost
from marius_oac.torch.processes.home import Processes


class Source:
    """Hears of an error while it is waited for, if there is one."""

    def __init__(self, error):
        self.error, self.heard, self.failed, self.aborted, self.waited = None, error, [], 0, []
        self.stopped = SimpleNamespace(wait=self.wait, is_set=lambda: True)

    def wait(self, seconds):
        self.waited.append(seconds)
        self.error = self.heard

    def fail(self, error):
        self.error = self.error or error
        self.failed.append(error)

    def abort(self):
        self.aborted += 1


def processes(source, raised, timeout=5.0):
    def gather(call, value):
        raise raised

    broken, told = [], []
    home = object.__new__(Processes)
    home._agreement, home._source, home._silence = SimpleNamespace(timeout=timeout, gather=gather), source, 3.0
    home._outer, home._on_broken = SimpleNamespace(fail=told.append), broken.append
    return home, broken, told


GONE, TOLD = NodeLost("of another rank", "is gone"), InputError("the learning rate differs", "batch 4")


@pytest.mark.parametrize(
    ("raised", "heard", "wanted", "waited"),
    [(GONE, TOLD, TOLD, 1), (GONE, None, GONE, 1), (GONE, KeyError(), GONE, 1), (TOLD, GONE, TOLD, 0)],
)
def test_who_is_gone_may_have_said_why(raised, heard, wanted, waited):
    source = Source(heard)
    home, broken, told = processes(source, raised)
    with pytest.raises(type(wanted)) as found:
        home._agreed("asks for batches")
    assert found.value is wanted and broken == [wanted] and home._broken
    assert source.failed == [wanted] and source.aborted == 1 and len(told) == 1
    assert len(source.waited) == waited and all(0 < each <= 3 for each in source.waited)


def test_nobody_is_waited_for_longer_than_the_group_waits():
    source = Source(None)
    with pytest.raises(NodeLost):
        processes(source, GONE, timeout=0.0)[0]._agreed("asks for batches")
    assert source.waited[0] <= 0
