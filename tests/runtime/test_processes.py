"""The binding of a run's processes on a recorded machine."""

from marius_oac.runtime.machine import processes as machine
from marius_oac.runtime.machine.processes import LocalProcess, run_binding


def test_the_binding_of_a_run(machine_tree, monkeypatch):
    four = machine.read(machine_tree("four_sockets"))
    monkeypatch.setattr(machine, "read", lambda: four)
    assert run_binding([LocalProcess(gpu="0000:5F:00.0")]).cpus("compute") == (23, 71)
    assert run_binding([LocalProcess(threads=8)]).cpus("compute") == (8, 9, 10, 11, 56, 57, 58, 59)
    hidden = run_binding([LocalProcess(gpu="0000:99:00.0")])  # a container shows the GPU to CUDA, but not in its /sys
    assert hidden.seats["compute"].nodes == (0, 1, 2, 3)


def test_only_processes_on_the_same_cores_are_beside_each_other(machine_tree, monkeypatch):
    """Of another machine, or of another cpuset of this one: they have cores of their own anyhow."""
    two = machine.read(machine_tree("two_sockets"))
    monkeypatch.setattr(machine, "read", lambda: two)
    every = [
        LocalProcess("a", "0-127"),
        LocalProcess("b", "0-127"),
        LocalProcess("a", "0-3"),
        LocalProcess("a", "0-127"),
    ]
    found = [run_binding(every, number, over_nodes=True) for number in range(4)]
    assert found[1].cpus("compute") == found[2].cpus("compute") == run_binding([LocalProcess()]).cpus("compute")
    assert not set(found[0].cpus("compute")) & set(found[3].cpus("compute")) and found[1].trainers == 1
