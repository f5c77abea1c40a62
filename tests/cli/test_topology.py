"""`marius-oac topology`: what it prints of recorded machines and of this one."""

import json

import pytest

from marius_oac.runtime.machine import report as machine
from marius_oac.runtime.machine.report import LocalProcess, report, run_binding
from tests.run_folders import says
from tests.runtime.sysfs_trees import build

DESKTOP = """\
1 socket, 1 NUMA node, 24 cores (8 performance, 16 efficiency) with 32 CPUs, 63.6 GiB of memory

node 0   CPUs 0-31   memory 63.6 GiB
  caches   L1 16 x 32 KiB and 8 x 48 KiB, L2 8 x 2 MiB and 4 x 4 MiB, L3 36 MiB
  disk     nvme0n1  2 TB NVMe Samsung SSD 990 PRO 2TB  0000:02:00.0
  GPU      display  Intel a780                         0000:00:02.0
  GPU      cuda:0   NVIDIA 2684                        0000:01:00.0
  network  enp5s0   2.5 Gb/s                           0000:05:00.0
  network  wlp6s0   down                               0000:06:00.0

A run that computes on NVIDIA 2684 at 0000:01:00.0
  with a disk tier in /dev/dm-0: nvme0n1 (dm-0)
  one NUMA node: threads and memory are left alone"""

FOUR_SOCKETS = """\
A run that computes on NVIDIA 1db5 at 0000:1a:00.0
  with a disk tier in /dev/md127: nvme0n1, nvme1n1, nvme2n1, nvme3n1, nvme4n1, nvme5n1, nvme6n1, nvme7n1 (md127)
  io                             CPUs 32-35,44-47,80-83,92-95, nodes 2-3  I/O of nvme0n1 to nvme7n1, a core each
  compute                        CPUs 11,59, node 0                       next to NVIDIA 1db5 at 0000:1a:00.0
  read, upload, download, write  CPUs 0-10,48-58, node 0                  next to compute
  fetch                          CPUs 24-31,36-43,72-79,84-91, nodes 2-3  next to the disks
  plan, settle                   CPUs 12-23,60-71, node 1                 what is left
  tables                         interleaved over nodes 0-3"""

TWO_SOCKETS = """\
A run that computes on NVIDIA 20b2 at 0000:b1:00.0, with its tables in memory
  compute                        CPUs 62,126, node 1        next to NVIDIA 20b2 at 0000:b1:00.0
  read, upload, download, write  CPUs 32-61,96-125, node 1  next to compute
  plan                           CPUs 0-31,64-95, node 0    what is left
  tables                         local to node 1"""

TWO_TRAINERS = """\
Trainer 0 of 2, which computes on NVIDIA 1db5 at 0000:1d:00.0
with a disk tier in /dev/nvme0n1: nvme0n1
io CPUs 35,83, node 2 I/O of nvme0n1, a core each
network CPUs 11,59, node 0 next to eth0
compute CPUs 10,58, node 0 next to NVIDIA 1db5 at 0000:1d:00.0
read, upload, download, write, receive CPUs 0-9,48-57, node 0 next to compute
plan CPUs 24-34,72-82, node 2 what is left
serve CPUs 0-9,24-34,48-57,72-82, nodes 0,2 its part of all cores that are nobody's own
tables interleaved over nodes 0,2

Trainer 1 of 2, which computes on NVIDIA 1db5 at 0000:5e:00.0"""


def test_a_desktop_has_nothing_to_do(command, machine_tree):
    code, out, err = command("topology", "--sysfs", machine_tree("desktop"), "--path", "/dev/dm-0")
    assert (code, err) == (0, []) and "\n".join(out) == DESKTOP


def test_four_sockets_as_in_the_paper(command, machine_tree):
    code, out, _ = command("topology", "--sysfs", machine_tree("four_sockets"), "--path", "/dev/md127")
    assert code == 0 and "\n".join(out).endswith(f"\n\n{FOUR_SOCKETS}")
    assert out[0] == "4 sockets, 4 NUMA nodes, 48 cores with 96 CPUs, 1022 GiB of memory"
    assert "node 3   CPUs 36-47,84-95   memory 256 GiB   distance 21 to nodes 1-2, 31 to node 0" in out


def test_two_sockets_and_the_device_of_a_run(command, machine_tree):
    root = machine_tree("two_sockets")
    code, out, _ = command("topology", "--sysfs", root, "--device", "cuda:5")
    assert code == 0 and "\n".join(out).endswith(f"\n\n{TWO_SOCKETS}") and out[1] == "offline: CPUs 63,127"
    assert command("topology", "--sysfs", root, "--device", "cuda")[1] == command("topology", "--sysfs", root)[1]
    cpu = command("topology", "--sysfs", root, "--device", "cpu")[1]
    everything = "  compute, read, upload, download, write, plan  CPUs 0-62,64-126, nodes 0-1  "
    assert cpu[-2] == f"{everything}all cores that are nobody's own"
    assert cpu[-1].split() == ["tables", "interleaved", "over", "nodes", "0-1"]


def test_a_tier_without_a_disk_that_is_known(machine_tree):
    text = report(["/dev/loop0"], root=machine_tree("two_sockets"))
    assert "  with a disk tier in /dev/loop0: no disk is known under it (loop0)" in text.splitlines()
    (line,) = [line for line in text.splitlines() if line.startswith("  io ")]
    assert "any CPU that may be used" in line and line.endswith("no disk is known under it")


def test_devices_of_unknown_nodes_stand_apart(tmp_path):
    root = build("four_sockets", tmp_path / "sys", caches=False)
    for path in root.rglob("numa_node"):
        path.write_text("-1\n")
    for path in root.rglob("local_cpulist"):
        path.write_text("0-95\n")
    text = report(["/dev/nvme0n1"], root=root)
    assert text.index("of unknown node") < text.index("nvme0n1") < text.index("cuda:0")
    assert "a core each (the node of nvme0n1 is unknown)" in text


def test_several_trainers(command, machine_tree):
    """Each on a GPU of its own, beside the others; for programs, too."""
    argv = ("topology", "--sysfs", machine_tree("four_sockets"), "--path", "/dev/nvme0n1", "--trainers", "2")
    code, out, _ = command(*argv, "--device", "cuda:3")
    text = "\n".join(" ".join(line.split()) for line in out)
    assert code == 0 and TWO_TRAINERS in text
    code, out, _ = command(*argv, "--json")
    found = json.loads("\n".join(out))
    assert [each["device"] for each in found["bindings"]] == ["0000:1a:00.0", "0000:1b:00.0"]
    assert "binding" not in found and found["bindings"][1]["seats"]["compute"]["cpus"] == [10, 58]
    code, out, _ = command(*argv, "--device", "cpu")
    assert code == 0 and sum("computes on the CPU" in line for line in out) == 2


def test_for_programs(command, machine_tree):
    code, out, _ = command("topology", "--sysfs", machine_tree("two_sockets"), "--path", "/dev/md0", "--json")
    found = json.loads("\n".join(out))
    assert code == 0 and found["binding"]["seats"]["io"]["cpus"] == [31, 62, 95, 126]
    assert found["binding"]["device"] == "0000:17:00.0" and found["places"][0]["disks"] == ["nvme0n1", "nvme1n1"]
    assert found["binding"]["memory"] == {"kind": "interleave", "nodes": [0, 1]} and len(found["gpus"]) == 8


def test_this_machine(command, tmp_path):
    code, out, err = command("topology", "--path", tmp_path)
    assert (code, err) == (0, []) and "NUMA node" in out[0]
    assert any(line.startswith(f"  with a disk tier in {tmp_path}: ") for line in out)
    if not out[0].count("1 NUMA node,"):
        pytest.skip("several NUMA nodes: what binding does is this machine's own")
    assert out[-1] == "  one NUMA node: threads and memory are left alone"


@pytest.mark.parametrize(
    "argv, line",
    [
        (["--device", "gpu"], "--device: 'gpu' is not auto, cpu, cuda or cuda:N"),
        (["--device", "cuda:8"], "--device: there is no cuda:8: 8 GPUs of NVIDIA's or AMD's here"),
        (["--path", "/dev/sdz"], "/dev/sdz: no such block device"),
        (["--trainers", "0"], "--trainers: must be at least 1, not 0"),
        (
            ["--trainers", "4", "--device", "cuda:5"],
            "--trainers: 4 need a GPU each, from cuda:5 on, but there are 8",
        ),
        (
            ["--path", "data"],
            "data: on another machine's tree only block devices can be looked at, such as /dev/nvme0n1",
        ),
    ],
)
def test_mistakes_are_named(command, machine_tree, argv, line):
    code, out, err = command("topology", "--sysfs", machine_tree("two_sockets"), *argv)
    assert (code, out, err) == (2, [], [f"marius-oac: {line}"])


def test_folders_that_are_no_tree_or_may_not_be_entered(command, tmp_path):
    code, _, err = command("topology", "--sysfs", tmp_path / "nowhere")
    assert code == 2 and says(err, "nowhere", "no tree of the layout of /sys")
    code, _, err = command("topology", "--path", "x" * 5000)
    assert code == 2 and says(err, "File name too long")


def test_the_binding_of_a_run(machine_tree, monkeypatch):
    four = machine.read(machine_tree("four_sockets"))
    monkeypatch.setattr(machine, "read", lambda: four)
    assert run_binding([LocalProcess(gpu="0000:5F:00.0")]).cpus("compute") == (23, 71)
    assert run_binding([LocalProcess(threads=8)]).cpus("compute") == (8, 9, 10, 11, 56, 57, 58, 59)
    hidden = run_binding([LocalProcess(gpu="0000:99:00.0")])  # a container shows the GPU to CUDA, but not in its /sys
    assert hidden.seats["compute"].why == "the node of the GPU at 0000:99:00.0 is unknown"


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
