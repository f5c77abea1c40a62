"""Staging buffers are pinned to the byte and let go of; CUDA's calls are noted by a double."""

import gc
from contextlib import nullcontext

import pytest
import torch

from marius_oac.errors import InputError
from marius_oac.pipeline.pinned import PinnedMemory


class Runtime:
    """In the place of CUDA's runtime: what is pinned, by address; refuses more than `room` bytes."""

    def __init__(self, monkeypatch, room=1 << 40):
        self.pinned, self.room, self.calls = {}, room, []
        monkeypatch.setattr(torch.cuda, "cudart", lambda: self)
        monkeypatch.setattr(torch.cuda, "device", self.enter)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: self.calls.append("synchronize"))

    def enter(self, device):
        self.calls.append(str(device))
        return nullcontext()

    def cudaHostRegister(self, address, num_bytes, flags):
        assert address % 4096 == 0 and flags == 0
        if sum(self.pinned.values()) + num_bytes > self.room:
            return 2
        self.pinned[address] = num_bytes
        return 0

    def cudaHostUnregister(self, address):
        del self.pinned[address]
        self.calls.append("unpinned")
        return 0


def test_a_tensor_takes_its_bytes_and_no_more(monkeypatch):
    runtime, memory = Runtime(monkeypatch), PinnedMemory(torch.device("cuda:1"))
    shapes = [((3, 101), torch.float32), ((1000,), torch.int64), ((0,), torch.int64), ((7, 0), torch.float32)]
    tensors = [memory.empty(*each) for each in shapes]
    assert [(tuple(each.shape), each.dtype) for each in tensors] == shapes
    assert sorted(runtime.pinned.values()) == [1, 1, 4 * 303, 8000], "torch's own would be 2,048 and 8,192"
    assert {each.data_ptr() for each in tensors if each.numel()} <= set(runtime.pinned)
    assert set(runtime.calls) == {"cuda:1"}, "memory is pinned for the device that copies"
    for number, tensor in enumerate(tensors):
        tensor.fill_(number)
    assert [float(each.sum()) for each in tensors] == [0, 1000, 0, 0]
    memory.close()
    assert not runtime.pinned
    assert float(tensors[1].sum()) == 1000, "who holds a tensor may read it still"


def test_what_is_pinned_is_let_go_of_when_the_device_is_done(monkeypatch):
    """Copies may be under way after an error."""
    runtime, memory = Runtime(monkeypatch), PinnedMemory(torch.device("cuda"))
    kept = [memory.empty((5,), torch.int64), memory.empty((6,), torch.int64)]
    runtime.calls.clear()
    del memory
    gc.collect()
    assert runtime.calls == ["cuda", "synchronize", "unpinned", "unpinned"] and not runtime.pinned
    assert len(kept) == 2


def test_no_more_memory_to_pin_is_a_line_that_names_a_key(monkeypatch):
    runtime, memory = Runtime(monkeypatch, room=10_000), PinnedMemory(torch.device("cuda"))
    memory.empty((1000,), torch.int64)
    with pytest.raises(InputError, match=r"pipeline.in_flight: CUDA can't pin 4,000 bytes more .* \(CUDA error 2\)"):
        memory.empty((1000,), torch.float32)
    memory.close()
    assert not runtime.pinned


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_takes_it_for_pinned_memory():
    device = torch.device("cuda:0")
    memory = PinnedMemory(device)
    there, back = memory.empty((1000, 101), torch.float32), memory.empty((1000, 101), torch.float32)
    there.copy_(torch.rand(1000, 101))
    assert there.is_pinned() and back.is_pinned()
    back.copy_(there.to(device, non_blocking=True), non_blocking=True)
    memory.close()  # which waits for the device
    assert torch.equal(there, back) and not there.is_pinned()
