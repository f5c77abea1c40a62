"""Which cores and memory policies are chosen for recorded machines, and real threads bound to real cores."""

import dataclasses
import errno
import os
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marius_oac.runtime.machine import binding, numa_memory
from marius_oac.runtime.machine.binding import ROLES, Binding, Seat, unbound
from marius_oac.runtime.machine.devices import Disk, Gpu
from marius_oac.runtime.machine.numa_memory import MemoryPolicy
from marius_oac.runtime.machine.seating import Process, choose
from marius_oac.runtime.machine.sysfs import parse_list
from marius_oac.runtime.machine.topology import Core, Node, Topology, read
from marius_oac.runtime.workers import Workers
from tests.runtime import seat_table
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
    numa_memory.log_once.cache_clear()
    return lambda: capsys.readouterr().err.splitlines()


def cpus(chosen, *roles):
    found = {chosen.cpus(role) for role in roles}
    assert len(found) == 1, "not together"
    return found.pop()


def alone(machine, disks=None, gpu=None, threads=0, table_bytes=0, over_nodes=False):
    """What one process gets."""
    (found,) = choose(machine, [Process(disks, gpu, threads, table_bytes)], over_nodes)
    return found


def test_four_sockets_as_in_the_paper(four):
    """Zhao et al., 3.1: a core an SSD next to it, one for the network on CPU 0, memory interleaved over all CPUs."""
    disks = seat_table.TIERS["four_sockets"]
    chosen = alone(four, disks, four.gpus[0])
    assert cpus(chosen, "io") == parse_list("32-35,44-47,80-83,92-95")
    assert cpus(chosen, "compute") == (11, 59) and "network" not in chosen.seats
    assert cpus(chosen, "read", "upload", "download", "write") == parse_list("0-10,48-58")
    assert cpus(chosen, "fetch") == parse_list("24-31,36-43,72-79,84-91")
    assert cpus(chosen, "plan", "settle") == parse_list("12-23,60-71")
    assert chosen.memory == MemoryPolicy("interleave", (0, 1, 2, 3))
    assert chosen.note.startswith("4 NUMA nodes: ") and chosen.note.endswith("tables are interleaved over nodes 0-3")
    over_nodes = alone(four, disks, four.gpus[0], over_nodes=True)
    assert cpus(over_nodes, "network") == (11, 59)
    assert cpus(over_nodes, "compute") == (10, 58) and cpus(over_nodes, "io") == cpus(chosen, "io")
    assert cpus(over_nodes, "read", "upload", "download", "write", "receive") == parse_list("0-9,48-57")
    assert set(cpus(over_nodes, "serve")) == set(range(96)) - {10, 58, 11, 59} - set(cpus(chosen, "io"))
    assert over_nodes.memory == MemoryPolicy("interleave", (0, 1, 2, 3))
    assert "fetch" not in over_nodes.seats and "settle" not in over_nodes.seats  # they have no threads there


def test_the_other_gpus_of_four_sockets_take_their_stages_along(four):
    chosen = alone(four, ["nvme6n1"], four.gpus[7])
    assert cpus(chosen, "compute") == (23, 71) and cpus(chosen, "read", "write") == parse_list("12-22,60-70")
    assert cpus(chosen, "io") == (47, 95) and cpus(chosen, "fetch") == parse_list("36-46,84-94")
    assert cpus(chosen, "plan") == parse_list("0-11,24-35,48-59,72-83")  # what is left


def test_two_sockets_with_two_disks(two):
    chosen = alone(two, ["nvme0n1", "nvme1n1"], two.gpus[6])
    assert chosen.cpus("io") == (31, 62, 95, 126)  # core 63 is offline
    assert chosen.cpus("compute") == (61, 125)
    assert cpus(chosen, "read", "upload", "download", "write") == parse_list("32-60,96-124")
    assert cpus(chosen, "plan", "settle") == parse_list("0-30,64-94")
    assert chosen.memory == MemoryPolicy("interleave", (0, 1))


def test_tables_are_local_where_all_their_users_sit_on_one_node(two):
    disk = ["nvme1n1"]
    assert alone(two, disk, two.gpus[4]).memory == MemoryPolicy("local", (1,))
    assert alone(two, disk, two.gpus[0]).memory == MemoryPolicy("interleave", (0, 1))  # read from 1, used on 0
    assert alone(two, None, two.gpus[4]).memory == MemoryPolicy("local", (1,))
    assert alone(two, None, None, threads=16).memory == MemoryPolicy("local", (0,))
    assert alone(two, None, None, threads=100).memory == MemoryPolicy("interleave", (0, 1))


def test_tables_that_a_node_has_no_room_for_are_interleaved(two):
    half = two.node(1).num_bytes // 2
    assert alone(two, None, two.gpus[4], table_bytes=half).memory.kind == "local"
    assert alone(two, None, two.gpus[4], table_bytes=half + 1).memory == MemoryPolicy("interleave", (0, 1))


def test_memory_that_may_not_be_used_is_left_out(two):
    assert alone(dataclasses.replace(two, memory_nodes=(0,)), None, two.gpus[4]).memory.nodes == (0,)
    assert alone(dataclasses.replace(two, memory_nodes=()), None, two.gpus[4]).memory is None


def test_the_cpu_computes_on_one_node_where_it_can(two):
    disk = ["nvme1n1"]
    chosen = alone(two, disk, None, threads=20)
    assert chosen.cpus("compute") == parse_list("52-61,116-125")  # next to the disk, ten cores of two
    assert cpus(chosen, "read", "write", "fetch") == parse_list("32-51,96-115")
    assert cpus(chosen, "plan") == parse_list("0-31,64-95")
    for threads in (0, 63):  # a node's 31 cores have 62 CPUs, and one core stays with the other stages
        everywhere = alone(two, disk, None, threads)
        assert cpus(everywhere, "compute", "read", "write", "plan", "settle") == parse_list("0-61,64-125")
        assert everywhere.cpus("io") == (62, 126) and everywhere.memory.kind == "interleave"
    assert alone(two, disk, None, 62).cpus("compute") == parse_list("1-31,65-95")
    assert "network" not in everywhere.seats


def test_a_tier_over_several_folders(two):
    chosen = alone(two, ["nvme1n1", "sda", "nvme0n1"], two.gpus[0])
    assert chosen.cpus("io") == (30, 31, 62, 94, 95, 126)


def test_one_node_is_left_alone(roots):
    for name in ("desktop", "virtual_machine"):
        machine = read(roots[name])
        chosen = alone(machine, ["nvme0n1"], next(iter(machine.gpus), None))
        assert chosen == unbound("one NUMA node: threads and memory are left alone")
        assert not any(chosen.bind_thread(role) for role in ROLES)


def test_cores_on_one_node_alone_are_left_alone(roots):
    machine = read(roots["two_sockets"], allowed=[3, 4, 64])
    assert alone(machine, None, machine.gpus[5]).note.startswith("the CPUs that may be used are all on node 0: ")
    assert alone(read(roots["two_sockets"], allowed=[])).seats == {}


def test_devices_of_unknown_nodes(two):
    disks = tuple(dataclasses.replace(disk, node=None) for disk in two.disks)
    gpu = dataclasses.replace(two.gpus[0], node=None)
    machine = dataclasses.replace(two, disks=disks, nics=())
    chosen = alone(machine, ["nvme0n1"], gpu)
    free = set(machine.allowed) - set(chosen.cpus("io"))
    assert set(cpus(chosen, "compute", "read", "write", "fetch", "plan")) == free
    assert "network" not in chosen.seats and chosen.memory.kind == "interleave"


def cores_of(seat):
    return set(seat.cpus)


@st.composite
def runs(draw, machine):
    """Some CPUs of a machine, and processes of a run there."""
    every = [cpu for core in machine.cores for cpu in core.cpus]
    few = draw(st.one_of(st.lists(st.sampled_from(every), max_size=10), st.just(every)))
    machine = dataclasses.replace(machine, allowed=tuple(sorted(set(few))))
    disks = draw(st.lists(st.sampled_from([disk.name for disk in machine.disks]), unique=True))
    over_nodes = draw(st.booleans())
    does = st.sampled_from([(True, True), (True, False), (False, True)] if over_nodes else [(True, True)])
    process = st.builds(
        lambda tier, gpu, threads, size, what: Process(tier, gpu if what[0] else None, threads, size, *what),
        st.sampled_from([disks, disks[:1], None]), st.sampled_from([None, *machine.gpus]), st.integers(0, 200),
        st.integers(0, 1 << 40), does,
    )  # fmt: skip
    return machine, draw(st.lists(process, min_size=1, max_size=9)), over_nodes


@settings(deadline=None, max_examples=100)
@given(st.data())
def test_every_choice_keeps_the_rules(four, two, data):
    machine = data.draw(st.sampled_from([four, two]))
    machine, processes, over_nodes = data.draw(runs(machine))
    every = choose(machine, processes, over_nodes)
    assert every == choose(machine, processes, over_nodes) and len(every) == len(processes)
    if len(machine.usable_nodes()) < 2:
        assert all(each.seats == {} and each.memory is None for each in every)
        return
    for process, chosen in zip(processes, every, strict=True):
        wanted = {"plan", "read", "upload", "compute", "download", "write"} if process.trains else set()
        if process.trains and process.disks is not None and not over_nodes:
            wanted |= {"fetch", "settle"}
        wanted |= {"receive"} | ({"serve"} if process.serves else set()) if over_nodes else set()
        wanted |= {"io"} if process.disks else set()
        assert set(chosen.seats) - {"network"} == wanted, "a role that nobody has, or a thread without one"
        assert all(seat.cpus and cores_of(seat) <= set(machine.allowed) for seat in chosen.seats.values())
        assert chosen.memory is None or set(chosen.memory.nodes) <= set(machine.memory_nodes)
    apart = ("io", "network")
    shared = set().union(*(cores_of(each.seats[role]) for each in every for role in apart if role in each.seats))
    own = [set().union(*(cores_of(each.seats[role]) for role in each.seats if role not in apart)) for each in every]
    for node in machine.usable_nodes():
        cores = [set(core) for core in machine.allowed_cores(node)]
        assert len(cores) < 2 or not set().union(*cores) <= shared, "disks and network leave a core to the others"
        users = [sum(bool(core & one) for one in own) for core in cores if not core & shared]
        assert not users or max(users) <= 1 or min(users) >= 1, "a core of two processes, and another of none"


def test_every_process_finds_its_own_part(four):
    """Zhao et al.'s machine with a process for each of eight GPUs: none of them shares a core with another."""
    tier = seat_table.TIERS["four_sockets"]
    every = choose(four, [Process(tier, four.gpus[number]) for number in range(8)], over_nodes=True)
    assert [each.cpus("compute") for each in every[:4]] == [(1, 49), (4, 52), (7, 55), (10, 58)]
    assert [each.seats["compute"].nodes for each in every] == [(0,)] * 4 + [(1,)] * 4
    assert {each.cpus("io") for each in every} == {parse_list("32-35,44-47,80-83,92-95")}
    assert {each.cpus("network") for each in every} == {(11, 59)}
    feeding = [each.cpus("read") for each in every]
    assert len(set().union(*feeding)) == sum(map(len, feeding)) == 2 * (11 + 12 - 8)
    plans = [each.seats["plan"].nodes for each in every]
    assert plans == [(2,)] * 4 + [(3,)] * 4, "of the nodes without GPUs that which is nearer"
    assert every[0].memory == MemoryPolicy("interleave", (0, 2, 3)) and every[7].memory.nodes == (1, 2, 3)


def test_trainers_on_cpus_use_all_of_them(two):
    """Eight with the threads that `--local-nodes 8` gives each of them here, and eight with as many as they get."""
    for threads in (126 // 8, 0):
        every = choose(two, [Process(threads=threads)] * 8, over_nodes=True)
        computing = [set(each.cpus("compute")) for each in every]
        assert len(set().union(*computing)) == sum(map(len, computing)) == 126
        assert [each.memory for each in every] == [MemoryPolicy("local", (number % 2,)) for number in range(8)]
        assert {each.trainers for each in every} == {8} and every[0].threads() == 16


def test_which_thread_sits_where_on_every_recorded_machine(roots):
    """With 1, 2, 4 and 8 trainers: what has changed is looked at line by line, and written by seat_table.py."""
    assert seat_table.text(roots).splitlines() == seat_table.FILE.read_text().splitlines()


def test_tables_of_one_node_need_room_for_all_of_them(two):
    room = two.node(0).num_bytes // 2
    for bytes_each, kind in ((room // 4, "local"), (room // 4 + 1, "interleave")):
        every = choose(two, [Process(table_bytes=bytes_each)] * 8, over_nodes=True)
        assert every[0].memory.kind == kind and every[0].memory.nodes == (0,)


def test_a_process_that_only_serves_has_a_part_of_its_own(two):
    trainer, server = choose(two, [Process(serves=False), Process(trains=False)], over_nodes=True)
    assert set(server.seats) == {"receive", "serve"} and "compute" not in server.seats
    assert not set(server.cpus("serve")) & set(trainer.cpus("compute")) and "serve" not in trainer.seats
    assert trainer.memory is None and server.memory.kind == "local" and server.trainers == 1


def test_threads_of_several_trainers_on_one_node_are_divided(roots):
    machine = read(roots["desktop"])
    first, second = choose(machine, [Process(), Process(trains=False), Process()])[:2]
    assert first.trainers == 2 and first == second
    assert first.threads() == max(1, len(os.sched_getaffinity(0)) // 2)


def test_every_role_of_a_real_choice_holds_for_real_threads():
    """This machine's CPUs, taken for those of two nodes."""
    here = read()
    if len(here.allowed) < 2:
        pytest.skip("one CPU is no two nodes")
    half = len(here.allowed) // 2
    parts = here.allowed[:half], here.allowed[half:]
    nodes = tuple(Node(number, cpus, 1 << 30, {0: 10, 1: 10}) for number, cpus in enumerate(parts))
    cores = tuple(Core((cpu,), int(cpu in parts[1])) for cpu in here.allowed)
    gpu = Gpu("0000:01:00.0", 1)
    disks = (Disk("nvme0n1", 0),)
    machine = Topology(nodes, cores, here.allowed, (0, 1), disks, (gpu,), ())
    chosen = alone(machine, ["nvme0n1"], gpu)
    found = {}

    def bind(role):
        assert chosen.bind_thread(role)
        found[role] = tuple(sorted(os.sched_getaffinity(0)))

    with Workers(lambda: None, bind) as workers:
        for role in chosen.seats:
            workers.start(role, 1, lambda: None, lambda: None)
        workers.join()
    assert found == {role: chosen.cpus(role) for role in chosen.seats} and len(found) == 9
    assert found["io"][0] in parts[0] and found["compute"][0] in parts[1]


def test_unknown_roles_are_a_defect_everywhere(two):
    for chosen in (unbound("nothing"), alone(two, None, two.gpus[0])):
        for role in ("reader", "io:0", ""):
            with pytest.raises(ValueError, match="no role"):
                chosen.bind_thread(role)


def test_a_real_thread_is_bound_and_the_others_are_not():
    allowed = os.sched_getaffinity(0)
    last = max(allowed)
    chosen = Binding({"read": Seat((last,), (0,))}, None, "")
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
    chosen = Binding({"read": Seat((1 << 14,), (0,))}, None, "")
    assert not chosen.bind_thread("read") and not chosen.bind_thread("read") and not chosen.bind_thread("write")
    assert os.sched_getaffinity(0) == before
    assert said() == [
        f"binding: threads for read are left unbound: CPUs {1 << 14}: Invalid argument",
        "binding: threads for write are left unbound",
    ]

    def refuse(*_):
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(binding.os, "sched_setaffinity", refuse)
    numa_memory.log_once.cache_clear()
    assert not chosen.bind_thread("read") and said()[0].endswith("Operation not permitted")


def test_a_thread_is_bound_for_a_while(said):
    allowed = os.sched_getaffinity(0)
    chosen = Binding({"network": Seat((max(allowed),), (0,))}, None, "")
    with chosen.bound("network"):
        child = []
        thread = threading.Thread(target=lambda: child.append(os.sched_getaffinity(0)))
        thread.start()
        thread.join()
        assert child == [os.sched_getaffinity(0)] == [{max(allowed)}]
    assert os.sched_getaffinity(0) == allowed
    with chosen.bound("compute"):
        assert os.sched_getaffinity(0) == allowed
    assert said() == []  # a role without a seat is nobody's loss here
