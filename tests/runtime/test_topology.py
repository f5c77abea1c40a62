"""What is read from recorded trees, from broken ones and from this machine."""

import dataclasses
import json
import os
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marius_oac.runtime.machine import sysfs
from marius_oac.runtime.machine.topology import read
from tests.runtime import make_machines
from tests.runtime.sysfs_trees import FOLDER, MACHINES, build, load, record

CPU, NODE = "devices/system/cpu", "devices/system/node"


@pytest.fixture
def tree(tmp_path):
    """`tree(name)` -> root of that machine's tree, to be changed at will."""
    return lambda name: build(name, tmp_path / name)


@pytest.mark.parametrize(
    "text, numbers",
    [
        ("", ()),
        ("\n", ()),
        ("0", (0,)),
        ("0-3\n", (0, 1, 2, 3)),
        ("0-2,8,64-65", (0, 1, 2, 8, 64, 65)),
        ("5,1-2", (1, 2, 5)),
        ("3-3", (3,)),
        ("0-1, 4", (0, 1, 4)),
    ],
)
def test_lists_of_cpus(text, numbers):
    assert sysfs.parse_list(text) == numbers


@pytest.mark.parametrize("text", ["a", "1-", "-1", "3-1", "0-3:2/4", "1,,2", "0x3", "0-99999999999", ","])
def test_what_is_no_list_of_cpus(text, tmp_path):
    with pytest.raises(ValueError, match="no list"):
        sysfs.parse_list(text)
    (tmp_path / "cpulist").write_text(text)
    assert sysfs.numbers(tmp_path / "cpulist") is None


@given(st.sets(st.integers(0, 300)))
def test_lists_of_cpus_there_and_back(cpus):
    assert sysfs.parse_list(sysfs.format_list(cpus)) == tuple(sorted(cpus))


@pytest.mark.parametrize("text, cpus", [("3f", range(6)), ("f,00000000", range(32, 36)), ("0", ()), ("x", None)])
def test_masks_of_cpus(tmp_path, text, cpus):
    (tmp_path / "cpumap").write_text(text)
    assert sysfs.mask(tmp_path / "cpumap") == (None if cpus is None else tuple(cpus))


def test_two_sockets(machine_tree):
    machine = read(machine_tree("two_sockets"))
    assert [node.number for node in machine.nodes] == [0, 1]
    assert machine.nodes[1].cpus == (*range(32, 63), *range(96, 127))
    assert [round(node.num_bytes / 2**30) for node in machine.nodes] == [512, 512]
    assert machine.nodes[0].distances == {0: 10, 1: 20}
    assert len(machine.cores) == 63 and {len(core.cpus) for core in machine.cores} == {2}
    assert (machine.cores[40].cpus, machine.cores[40].node) == ((40, 104), 1)
    assert [(disk.name, disk.node) for disk in machine.disks] == [("nvme0n1", 0), ("nvme1n1", 1), ("sda", 0)]
    assert [gpu.node for gpu in machine.gpus] == [0, 0, 0, 0, 1, 1, 1, 1]  # and not the board's own display
    assert [(nic.name, nic.node, nic.megabits) for nic in machine.nics] == [
        ("ens1f0np0", 0, 25000),
        ("ens9f0np0", 1, 100000),
    ]
    assert machine.gpu("0000:B1:00.0") is machine.gpus[5] and machine.gpu("0000:00:00.0") is None


def test_four_sockets(machine_tree):
    machine = read(machine_tree("four_sockets"))
    assert [len(node.cpus) for node in machine.nodes] == [24] * 4 and len(machine.cores) == 48
    assert machine.nodes[3].distances == {0: 31, 1: 21, 2: 21, 3: 10}
    assert machine.nearest(3, [0, 1, 2]) == 1 and machine.nearest(3, [0, 3]) == 3
    assert [gpu.node for gpu in machine.gpus] == [0] * 4 + [1] * 4
    assert [disk.node for disk in machine.disks] == [2] * 4 + [3] * 4
    assert [(nic.name, nic.node) for nic in machine.nics] == [("eth0", 0), ("ib0", 0), ("ib1", 1)]


def test_a_node_is_nearest_to_itself_whatever_the_firmware_says(machine_tree):
    machine = read(machine_tree("four_sockets"))
    flat = tuple(dataclasses.replace(node, distances=dict.fromkeys(range(4), 10)) for node in machine.nodes)
    machine = dataclasses.replace(machine, nodes=flat)
    assert [machine.nearest(node, range(4)) for node in range(4)] == [0, 1, 2, 3] and machine.nearest(3, [1, 2]) == 1


def test_desktop(machine_tree):
    machine = read(machine_tree("desktop"))
    assert len(machine.nodes) == 1 and machine.nodes[0].cpus == tuple(range(32))
    assert [gpu.address for gpu in machine.gpus] == ["0000:01:00.0"], "and not the processor's own display"
    assert [(nic.name, nic.up, nic.megabits) for nic in machine.nics] == [
        ("enp5s0", True, 2500),
        ("wlp6s0", False, None),
    ]
    assert {device.node for device in (*machine.disks, *machine.gpus, *machine.nics)} == {0}, "there is but one"


def test_a_virtual_machine(machine_tree):
    machine = read(machine_tree("virtual_machine"))
    assert [core.cpus for core in machine.cores] == [(0,), (1,)]
    assert [disk.name for disk in machine.disks] == ["vda"]
    assert machine.gpus == () and [(nic.name, nic.megabits) for nic in machine.nics] == [("eth0", None)]


def test_no_files_at_all(tmp_path):
    (tmp_path / CPU).mkdir(parents=True)
    machine = read(tmp_path)
    assert (machine.cores, machine.disks, machine.gpus, machine.nics) == ((), (), (), ())
    assert len(machine.nodes) == 1 and machine.nodes[0].num_bytes is None


def test_a_container_that_shows_cpus_alone(tree):
    root = tree("two_sockets")
    for gone in (f"{NODE}", "bus", "block", "class", "dev"):
        shutil.rmtree(root / gone)
    machine = read(root)
    assert [node.number for node in machine.nodes] == [0] and len(machine.nodes[0].cpus) == 126
    assert len(machine.cores) == 63 and machine.disks == machine.gpus == machine.nics == ()


def test_cpus_that_are_offline_may_not_be_used(tree):
    root = tree("desktop")
    (root / f"{CPU}/online").write_text("0-30\n")
    assert read(root).allowed == tuple(range(31))


def test_lists_that_are_missing_are_made_up_for(tree):
    root = tree("two_sockets")
    whole = read(root)
    for gone in (f"{CPU}/online", f"{NODE}/online", f"{NODE}/node0/cpulist", f"{NODE}/node1/cpulist"):
        (root / gone).unlink()
    (root / f"{NODE}/node0/cpumap").write_text("00000000,ffffffff,00000000,ffffffff\n")
    (root / f"{NODE}/node1/cpumap").write_text("7fffffff,00000000,7fffffff,00000000\n")
    assert read(root) == whole


def test_no_content_of_a_file_stops_the_reader(tmp_path):
    root = build("two_sockets", tmp_path / "sys")
    files = [root / f"{NODE}/node1/{name}" for name in ("cpulist", "distance", "meminfo")]
    files += (root / f"{CPU}/cpu5/topology").iterdir()
    files += root.rglob("numa_node")
    for content in (b"", b"rubbish\n", b"\xff\xfe", b"-1", b"9-2", b"7" * 5000):
        for path in files:
            path.write_bytes(content)
        machine = read(root)
        assert sorted(cpu for core in machine.cores for cpu in core.cpus) == sorted({*range(128)} - {63, 127})
        assert sorted(cpu for node in machine.nodes for cpu in node.cpus) == sorted({*range(128)} - {63, 127})


def test_nodes_with_gaps_in_their_numbers_and_one_of_memory_alone(tree):
    root = tree("two_sockets")
    (root / f"{NODE}/node1").rename(root / f"{NODE}/node8")
    (root / f"{NODE}/online").write_text("0,8-9\n")
    (root / f"{NODE}/node9").mkdir()
    for number, cpus, row in ((0, None, "10 20 17"), (8, None, "20 10 28"), (9, "", "17 28 10")):
        (root / f"{NODE}/node{number}/distance").write_text(f"{row}\n")
        if cpus is not None:
            (root / f"{NODE}/node{number}/cpulist").write_text(f"{cpus}\n")
    machine = read(root)
    assert [node.number for node in machine.nodes] == [0, 8, 9] and machine.node(9).cpus == ()
    assert machine.node(8).distances == {0: 20, 8: 10, 9: 28}
    assert machine.usable_nodes() == [0, 8] and machine.memory_nodes == (0, 8)


def test_the_node_of_a_device_that_the_firmware_left_out(tree):
    root = tree("two_sockets")
    disk = root / "devices/pci0000:64/0000:64:02.0/0000:65:00.0"
    found = {}
    for case, (own, own_cpus, bridge) in {
        "bridge": ("-1", "0-127", "1"),
        "cpus": ("-1", "32-35", "-1"),
        "nobody": ("-1", "0-127", "-1"),
        "no such node": ("7", "0-127", "-1"),
    }.items():
        (disk / "numa_node").write_text(own)
        (disk / "nvme/nvme0/numa_node").write_text(own)
        (disk / "local_cpulist").write_text(own_cpus)
        (disk.parent / "numa_node").write_text(bridge)
        (disk.parent / "local_cpulist").write_text("0-127")
        found[case] = read(root).disks[0].node
    assert found == {"bridge": 1, "cpus": 1, "nobody": None, "no such node": None}


def test_allowed_cpus_bound_what_may_be_used(machine_tree):
    machine = read(machine_tree("two_sockets"), allowed=[0, 64, 2, 32, 63, 500])
    assert machine.allowed == (0, 2, 32, 64)  # 63 is offline, 500 is not there
    assert machine.allowed_cores(0) == [(0, 64), (2,)] and machine.allowed_cores(1) == [(32,)]


def test_this_machine():
    machine = read()
    assert set(machine.allowed) == os.sched_getaffinity(0)
    assert set(machine.allowed) <= {cpu for core in machine.cores for cpu in core.cpus}
    assert {core.node for core in machine.cores} <= {node.number for node in machine.nodes}


def test_this_machine_recorded_is_this_machine(tmp_path):
    """What `record` takes along is all that the reader looks at."""
    (tmp_path / "machine.json").write_text(json.dumps(record(sysfs.SYSFS, "here")))
    copy = read(build(tmp_path / "machine", tmp_path / "sys"))
    here = read()
    assert (copy.cores, copy.disks, copy.gpus, copy.nics) == (here.cores, here.disks, here.gpus, here.nics)
    assert [node.cpus for node in copy.nodes] == [node.cpus for node in here.nodes]


def test_the_described_machines_are_what_is_stored():
    for name in ("two_sockets", "four_sockets", "desktop"):
        machine = getattr(make_machines, name)()
        assert load(name) == {"made": machine.made, "links": machine.links, "files": machine.files}
    assert sorted(path.stem for path in FOLDER.iterdir()) == sorted(MACHINES)
    assert all(len(load(name)["made"]) > 50 for name in MACHINES)
