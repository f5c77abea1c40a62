"""Which cores and memory policies are chosen for recorded machines, and real threads bound to real cores."""

import dataclasses
import errno
import os
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marius_oac.runtime import binding, numa_memory
from marius_oac.runtime.binding import STAGE_ROLES, Binding, Seat, choose, unbound
from marius_oac.runtime.devices import Disk, Gpu
from marius_oac.runtime.numa_memory import MemoryPolicy
from marius_oac.runtime.places import Place, place
from marius_oac.runtime.sysfs import parse_list
from marius_oac.runtime.topology import Core, Node, Topology, read
from marius_oac.runtime.workers import Workers
from tests.runtime.sysfs_trees import MACHINES


@pytest.fixture(scope="module")
def roots(machine_tree):
    return {name: machine_tree(name) for name in MACHINES}


@pytest.fixture(scope="module")
def two(roots):
    return read(roots["two_sockets"])


@pytest.fixture(scope="module")
def four(roots):
    return read(roots["four_sockets"])


@pytest.fixture
def said(capsys):
    """Lines on standard error; each line may be said once more."""
    numa_memory.say.cache_clear()
    return lambda: capsys.readouterr().err.splitlines()


def cpus(chosen, *roles):
    found = {chosen.cpus(role) for role in roles}
    assert len(found) == 1, "not together"
    return found.pop()


def test_four_sockets_as_in_the_paper(four, roots):
    """Zhao et al., 3.1: a core an SSD next to it, one for the network on CPU 0, memory interleaved over all CPUs."""
    chosen = choose(four, [place("/dev/md127", roots["four_sockets"])], four.gpu(0))
    io = [chosen.cpus(f"io:{number}") for number in range(8)]
    assert io == [(35, 83), (34, 82), (33, 81), (32, 80), (47, 95), (46, 94), (45, 93), (44, 92)]
    assert cpus(chosen, "io") == tuple(sorted(cpu for core in io for cpu in core))
    assert cpus(chosen, "network") == (11, 59) and chosen.seats["network"].why == "next to eth0"
    assert cpus(chosen, "compute") == (10, 58)
    assert cpus(chosen, "read", "upload", "download", "write") == parse_list("0-9,48-57")
    assert cpus(chosen, "fetch") == parse_list("24-31,36-43,72-79,84-91")
    assert cpus(chosen, "plan", "settle") == parse_list("12-23,60-71")
    assert chosen.memory == MemoryPolicy("interleave", (0, 1, 2, 3))
    assert chosen.disk_roles == {"/dev/md127": tuple(f"io:{number}" for number in range(8))}
    assert chosen.note.startswith("4 NUMA nodes: ") and chosen.note.endswith("tables are interleaved over nodes 0-3")


def test_the_other_gpus_of_four_sockets_take_their_stages_along(four, roots):
    chosen = choose(four, [place("/dev/nvme6n1", roots["four_sockets"])], four.gpu(7))
    assert cpus(chosen, "compute") == (23, 71) and cpus(chosen, "read", "write") == parse_list("12-22,60-70")
    assert cpus(chosen, "io:0", "io") == (47, 95) and cpus(chosen, "fetch") == parse_list("36-46,84-94")
    assert cpus(chosen, "plan") == parse_list("0-10,24-35,48-58,72-83")  # what is left, without the network's core


def test_two_sockets_with_two_disks(two, roots):
    chosen = choose(two, [place("/dev/md0", roots["two_sockets"])], two.gpu(6))
    assert chosen.cpus("io:0") == (31, 95) and chosen.cpus("io:1") == (62, 126)  # core 63 is offline
    assert chosen.cpus("network") == (61, 125) and chosen.cpus("compute") == (60, 124)
    assert cpus(chosen, "read", "upload", "download", "write") == parse_list("32-59,96-123")
    assert cpus(chosen, "plan", "settle") == parse_list("0-30,64-94")
    assert chosen.memory == MemoryPolicy("interleave", (0, 1))


def test_tables_are_local_where_all_their_users_sit_on_one_node(two, roots):
    disk = [place("/dev/nvme1n1", roots["two_sockets"])]
    assert choose(two, disk, two.gpu(4)).memory == MemoryPolicy("local", (1,))
    assert choose(two, disk, two.gpu(0)).memory == MemoryPolicy("interleave", (0, 1))  # read from 1, used on 0
    assert choose(two, [], two.gpu(4)).memory == MemoryPolicy("local", (1,))
    assert choose(two, [], None, threads=16).memory == MemoryPolicy("local", (0,))
    assert choose(two, [], None, threads=100).memory == MemoryPolicy("interleave", (0, 1))


def test_tables_that_a_node_has_no_room_for_are_interleaved(two):
    half = two.node(1).num_bytes // 2
    assert choose(two, [], two.gpu(4), table_bytes=half).memory.kind == "local"
    assert choose(two, [], two.gpu(4), table_bytes=half + 1).memory == MemoryPolicy("interleave", (0, 1))


def test_memory_that_may_not_be_used_is_left_out(two):
    assert choose(dataclasses.replace(two, memory_nodes=(0,)), [], two.gpu(4)).memory.nodes == (0,)
    assert choose(dataclasses.replace(two, memory_nodes=()), [], two.gpu(4)).memory is None


def test_the_cpu_computes_on_one_node_where_it_can(two, roots):
    disk = [place("/dev/nvme1n1", roots["two_sockets"])]
    chosen = choose(two, disk, None, threads=20)
    assert chosen.cpus("compute") == parse_list("52-61,116-125")  # next to the disk, ten cores of two
    assert cpus(chosen, "read", "write", "fetch") == parse_list("32-51,96-115")
    assert cpus(chosen, "plan") == parse_list("0-31,64-95")
    for threads in (0, 63):  # a node's 31 cores have 62 CPUs, and one core stays with the other stages
        everywhere = choose(two, disk, None, threads)
        assert cpus(everywhere, "compute", "read", "write", "plan", "settle") == parse_list("0-61,64-125")
        assert everywhere.cpus("io:0") == (62, 126) and everywhere.memory.kind == "interleave"
    assert choose(two, disk, None, 62).cpus("compute") == parse_list("1-31,65-95")
    assert "network" not in everywhere.seats


def test_a_tier_over_several_folders(two, roots):
    tier = [place(f"/dev/{name}", roots["two_sockets"]) for name in ("nvme1n1", "sda", "md0")]
    chosen = choose(two, tier, two.gpu(0))
    assert chosen.disk_roles == {"/dev/nvme1n1": ("io:0",), "/dev/sda": ("io:1",), "/dev/md0": ("io:2", "io:0")}
    assert [chosen.cpus(f"io:{number}") for number in range(3)] == [(62, 126), (31, 95), (30, 94)]
    assert chosen.cpus("io:7") == chosen.cpus("io")  # a disk that the topology didn't know


def test_one_node_is_left_alone(roots):
    for name in ("desktop", "virtual_machine"):
        machine = read(roots[name])
        chosen = choose(machine, [place("/dev/nvme0n1", roots[name])], machine.gpu(0))
        assert chosen == unbound("one NUMA node: threads and memory are left alone")
        assert not any(chosen.bind_thread(role) for role in (*STAGE_ROLES, "io", "io:3", "network"))


def test_cores_on_one_node_alone_are_left_alone(roots):
    machine = read(roots["two_sockets"], allowed=[3, 4, 64])
    assert choose(machine, [], machine.gpu(5)).note.startswith("the CPUs that may be used are all on node 0: ")
    assert choose(read(roots["two_sockets"], allowed=[]), []).seats == {}


def test_devices_of_unknown_nodes(two):
    disks = tuple(dataclasses.replace(disk, node=None) for disk in two.disks)
    gpu = dataclasses.replace(two.gpu(0), node=None)
    machine = dataclasses.replace(two, disks=disks, nics=())
    chosen = choose(machine, [Place("/a", "nvme0n1", "ext4", ("nvme0n1",))], gpu)
    assert "its node is unknown" in chosen.seats["io:0"].why and "is unknown" in chosen.seats["compute"].why
    free = set(machine.allowed) - set(chosen.cpus("io:0"))
    assert set(cpus(chosen, "compute", "read", "write", "fetch", "plan")) == free
    assert "network" not in chosen.seats and chosen.memory.kind == "interleave"


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_every_choice_keeps_the_rules(four, two, roots, data):
    machine, name = data.draw(st.sampled_from([(four, "four_sockets"), (two, "two_sockets")]))
    every = [cpu for core in machine.cores for cpu in core.cpus]
    few = data.draw(st.one_of(st.lists(st.sampled_from(every), max_size=10), st.just(every)))
    machine = dataclasses.replace(machine, allowed=tuple(sorted(set(few))))
    disks = data.draw(st.lists(st.sampled_from([disk.name for disk in machine.disks]), unique=True))
    gpu = data.draw(st.sampled_from([None, *machine.gpus]))
    threads = data.draw(st.integers(0, 200))
    chosen = choose(machine, [place(f"/dev/{disk}", roots[name]) for disk in disks], gpu, threads)
    if len(machine.usable_nodes()) < 2:
        assert chosen.seats == {} and chosen.memory is None
        return
    for role in (*STAGE_ROLES, *(f"io:{number}" for number in range(len(disks)))):
        assert chosen.cpus(role) and set(chosen.cpus(role)) <= set(machine.allowed)
    nodes = {disk.name: disk.node for disk in machine.disks}
    homes = [machine.nearest(nodes[disk], machine.usable_nodes()) for disk in disks]
    for number, home in enumerate(homes):
        assert set(chosen.cpus(f"io:{number}")) <= set(machine.node(home).cpus)
        if len(machine.allowed_cores(home)) > homes.count(home):  # there are cores enough, and one for the rest
            own = set(chosen.cpus(f"io:{number}"))
            assert own in [set(core) for core in machine.allowed_cores(home)]
            others = [role for role in chosen.seats if role not in ("io", f"io:{number}")]
            assert not any(own & set(chosen.cpus(role)) for role in others)
    for node in machine.usable_nodes():  # the disks leave a core to the others wherever there are two
        own = [set(core) for core in machine.allowed_cores(node)]
        if disks and len(own) > 1:
            assert not set().union(*own) <= set(chosen.cpus("io"))
    assert set(chosen.memory.nodes) <= set(machine.memory_nodes)


def test_every_role_of_a_real_choice_holds_for_real_threads():
    """This machine's CPUs, taken for those of two nodes."""
    here = read()
    if len(here.allowed) < 2:
        pytest.skip("one CPU is no two nodes")
    half = len(here.allowed) // 2
    parts = here.allowed[:half], here.allowed[half:]
    nodes = tuple(Node(number, cpus, 1 << 30, {0: 10, 1: 10}) for number, cpus in enumerate(parts))
    cores = tuple(Core((cpu,), int(cpu in parts[1]), 0) for cpu in here.allowed)
    gpu = Gpu("0000:01:00.0", "NVIDIA", "a GPU", 1)
    disks = (Disk("nvme0n1", "NVMe", "", 1 << 40, False, None, 0),)
    machine = Topology(nodes, cores, (), (), here.allowed, (0, 1), disks, (gpu,), ())
    chosen = choose(machine, [Place("/a", "nvme0n1", "ext4", ("nvme0n1",))], gpu)
    found = {}

    def bind(role):
        assert chosen.bind_thread(role)
        found[role] = tuple(sorted(os.sched_getaffinity(0)))

    with Workers(lambda: None, bind) as workers:
        for role in (*STAGE_ROLES, "io:0", "io"):
            workers.start(role, 1, lambda: None, lambda: None)
        workers.join()
    assert found == {role: chosen.cpus(role) for role in found} and len(found) == len(STAGE_ROLES) + 2
    assert found["io:0"][0] in parts[0] and found["compute"][0] in parts[1]


def test_unknown_roles_are_a_defect_everywhere(two):
    for chosen in (unbound("nothing"), choose(two, [], two.gpu(0))):
        for role in ("reader", "io:", "io:x", ""):
            with pytest.raises(ValueError, match="no role"):
                chosen.bind_thread(role)


def test_a_real_thread_is_bound_and_the_others_are_not():
    allowed = os.sched_getaffinity(0)
    last = max(allowed)
    chosen = Binding({"read": Seat((last,), (0,), "a test")}, None, "")
    found = []

    def work():
        found.append(chosen.bind_thread("read"))
        found.append(os.sched_getaffinity(0))
        child = threading.Thread(target=lambda: found.append(os.sched_getaffinity(0)))
        child.start()
        child.join()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [True, {last}, {last}] and os.sched_getaffinity(0) == allowed


def test_a_thread_that_cannot_be_bound_runs_on_and_says_so_once(said, monkeypatch):
    before = os.sched_getaffinity(0)
    chosen = Binding({"read": Seat((1 << 14,), (0,), "no such CPU")}, None, "")
    assert not chosen.bind_thread("read") and not chosen.bind_thread("read") and not chosen.bind_thread("write")
    assert os.sched_getaffinity(0) == before
    assert said() == [
        f"binding: threads for read are left unbound: CPUs {1 << 14}: Invalid argument",
        "binding: threads for write are left unbound",
    ]

    def refuse(*_):
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(binding.os, "sched_setaffinity", refuse)
    numa_memory.say.cache_clear()
    assert not chosen.bind_thread("read") and said()[0].endswith("Operation not permitted")
