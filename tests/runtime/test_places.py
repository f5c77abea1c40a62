"""Which disks lie under a path: partitions, RAID, LVM, btrfs, and file systems without a disk."""

import os

import pytest

from marius_oac.runtime.machine.disks import disks_under
from marius_oac.runtime.machine.topology import read
from tests.runtime.sysfs_trees import build


@pytest.fixture
def root(tmp_path):
    """A tree that may be changed."""
    return build("two_sockets", tmp_path / "sys")


def number_of(path):
    number = path.stat().st_dev
    return f"{os.major(number)}:{os.minor(number)}"


@pytest.mark.parametrize(
    "machine, device, disks",
    [
        ("two_sockets", "nvme0n1", ("nvme0n1",)),
        ("two_sockets", "nvme0n1p1", ("nvme0n1",)),
        ("two_sockets", "nvme1n1p1", ("nvme1n1",)),  # under its NVMe subsystem
        ("two_sockets", "sda2", ("sda",)),
        ("two_sockets", "md0", ("nvme0n1", "nvme1n1")),
        ("two_sockets", "loop0", ()),
        ("four_sockets", "md127", tuple(f"nvme{number}n1" for number in range(8))),
        ("desktop", "dm-0", ("nvme0n1",)),
    ],
)
def test_a_folder_by_the_number_of_its_file_system(tmp_path, machine, device, disks):
    root = build(machine, tmp_path / "sys")
    (root / f"dev/block/{number_of(tmp_path)}").symlink_to((root / "class/block" / device).resolve())
    assert disks_under(tmp_path / "runs/not/there/yet", root, tmp_path / "nowhere") == disks


def test_btrfs_numbers_its_file_systems_itself(root, tmp_path):
    mounts = tmp_path / "mountinfo"
    line = f"40 1 {number_of(tmp_path)} /home /home rw - btrfs /dev/nvme0n1p1 rw,subvol=/home"
    mounts.write_text(f"39 1 0:21 / /proc rw - proc proc rw\n{line}\n")
    assert disks_under(tmp_path, root, mounts) == ("nvme0n1",)
    devices = root / "fs/btrfs/0a1b/devices"
    devices.mkdir(parents=True)
    for name in ("nvme0n1p1", "nvme1n1p1"):
        (devices / name).symlink_to(os.readlink(root / f"class/block/{name}").replace("../../", "../../../../"))
    assert disks_under(tmp_path, root, mounts) == ("nvme0n1", "nvme1n1")


@pytest.mark.parametrize("source", ["overlay overlay rw", "nfs4 server:/export rw", "zfs pool/data rw", "tmpfs"])
def test_file_systems_without_a_disk_that_is_known(machine_tree, tmp_path, source):
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"40 1 {number_of(tmp_path)} / / rw - {source}\n")
    assert disks_under(tmp_path, machine_tree("two_sockets"), mounts) == ()


def test_this_machine(tmp_path):
    assert set(disks_under(tmp_path)) <= {disk.name for disk in read().disks}
    assert disks_under("/proc") == ()
