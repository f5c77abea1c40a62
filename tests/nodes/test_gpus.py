"""Which GPU each trainer of a machine computes on, where nothing says it; two never share one."""

import threading
from types import SimpleNamespace

import pytest
import torch

from marius_oac.config.cluster import ClusterConfig
from marius_oac.config.link_prediction import Config
from marius_oac.errors import InputError
from marius_oac.nodes.groups import torch_group
from marius_oac.nodes.groups.thread_group import ThreadGroup
from marius_oac.nodes.launch.cluster import find_place
from marius_oac.nodes.sharded import place as node_place
from marius_oac.nodes.sharded.place import check_gpus, config_of
from tests.nodes.test_cluster import HERE, THREE, torchrun
from tests.nodes.worlds import together

PLAIN = Config.build({"data": {"path": "g"}})


@pytest.fixture
def gpus(monkeypatch):
    """`gpus(n)`: as if there were so many."""

    def there_are(count):
        cards = [SimpleNamespace(pci_domain_id=0, pci_bus_id=0x41 + n, pci_device_id=0) for n in range(count)]
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: cards[device.index])

    return there_are


def local(count, config=PLAIN):
    places = [find_place(ClusterConfig.local(count, 8), None, HERE, torchrun(count, n, count)) for n in range(count)]
    return [config_of(config, place) for place in places]


def refused(configs):
    """What each member of a group of these says."""

    def check(member):
        with pytest.raises(InputError) as caught:
            check_gpus(configs[member.rank], member)
        return str(caught.value)

    return set(together(ThreadGroup.members(len(configs)), check))


def test_nodes_of_one_box_take_one_gpu_after_the_other(gpus):
    gpus(4)
    configs = local(4)
    assert [config.device for config in configs] == ["cuda:0", "cuda:1", "cuda:2", "cuda:3"]
    together(ThreadGroup.members(4), lambda member: check_gpus(configs[member.rank], member))


def test_what_is_said_holds(gpus):
    gpus(8)
    places = [find_place(THREE, None, HERE, torchrun(6, number, 3)) for number in range(3)]
    assert [config_of(PLAIN, place).device for place in places] == ["cuda:4", "cuda:5", "cuda:6"]
    assert {config.device for config in local(4, PLAIN.replace("device=cpu"))} == {"cpu"}


def test_without_a_gpu_all_are_on_the_cpu(gpus):
    gpus(0)
    configs = local(3)
    assert {config.device for config in configs} == {"auto"}
    together(ThreadGroup.members(3), lambda member: check_gpus(configs[member.rank], member))


@pytest.mark.parametrize("device", ["auto", "cuda:0"])
def test_more_trainers_than_gpus_are_refused_in_one_line(gpus, device):
    gpus(1)
    (said,) = refused(local(4, PLAIN.replace(f"device={device}")))
    assert "and each trainer needs its own: start fewer, say which with `gpus`, or --set device=cpu" in said
    assert "would share the GPU 0000:41:00.0" in said and "\n" not in said


def test_those_of_other_machines_may_have_the_same(gpus, monkeypatch):
    gpus(1)
    kernels = iter("ab")
    monkeypatch.setattr(node_place, "running_kernel", lambda: next(kernels))
    together(ThreadGroup.members(2), lambda member: check_gpus(PLAIN, member))


def test_an_abort_ends_what_nccl_has_put_on_the_gpu(monkeypatch):
    """A kernel of NCCL waits for its peers for ever; gloo's connections are closed as well."""
    ended, told = [], []

    class Both:
        def _get_backend(self, device):
            return SimpleNamespace(abort=lambda: ended.append(device.type))

    class Gloo:
        def _get_backend(self, device):
            raise RuntimeError("No backend type associated with device type cuda")

    def receive(tensor, peer, process_group, tag):
        ended.append(type(process_group).__name__)
        raise RuntimeError("timed out")

    monkeypatch.setattr(torch_group.dist, "irecv", receive)
    shared = SimpleNamespace(groups={}, lock=threading.Lock(), heartbeat=SimpleNamespace(abort=told.append))
    group = torch_group.TorchGroup(0, ["a", "b"], "", Both(), shared, [0, 1])
    torch_group.TorchGroup(0, ["a", "b"], "channel", Gloo(), shared, [0, 1], 7)
    group.abort()
    assert ended == ["cuda", "Both", "Gloo"] and told == [0, 7]
