"""Which disks lie under a path: partitions, RAID, LVM, btrfs, and file systems without a disk."""

import os

import pytest

from marius_oac.runtime.machine.disks import place
from marius_oac.runtime.machine.sysfs import SYSFS
from marius_oac.runtime.machine.topology import read
from tests.runtime.sysfs_trees import build


@pytest.fixture
def root(tmp_path):
    """A tree that may be changed."""
    return build("two_sockets", tmp_path / "sys", caches=False)


@pytest.mark.parametrize(
    "device, disks",
    [
        ("nvme0n1", ("nvme0n1",)),
        ("nvme0n1p1", ("nvme0n1",)),
        ("nvme1n1p1", ("nvme1n1",)),  # under its NVMe subsystem
        ("sda2", ("sda",)),
        ("md0", ("nvme0n1", "nvme1n1")),
        ("loop0", ()),
    ],
)
def test_devices_by_name(machine_tree, device, disks):
    root = machine_tree("two_sockets")
    found = place(f"/dev/{device}", root)
    assert (found.path, found.device, found.disks) == (f"/dev/{device}", device, disks)
    assert place("/dev/nosuch", root).device == ""


def test_disks_are_in_natural_order(machine_tree):
    found = place("/dev/md127", machine_tree("four_sockets"))
    assert found.disks == tuple(f"nvme{number}n1" for number in range(8))
    assert place("/dev/dm-0", machine_tree("desktop")).disks == ("nvme0n1",)


def number_of(path):
    number = path.stat().st_dev
    return f"{os.major(number)}:{os.minor(number)}"


def test_a_folder_by_the_number_of_its_file_system(root, tmp_path):
    link = root / f"dev/block/{number_of(tmp_path)}"
    link.symlink_to("../../devices/virtual/block/md0")
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"22 1 {number_of(tmp_path)} / /data rw,relatime shared:1 - xfs /dev/md0 rw\n")
    found = place(tmp_path / "runs/not/there/yet", root, mounts)
    assert (found.device, found.file_system, found.disks) == ("md0", "xfs", ("nvme0n1", "nvme1n1"))
    assert place(tmp_path, root, tmp_path / "nowhere").file_system == ""


def test_btrfs_numbers_its_file_systems_itself(root, tmp_path):
    mounts = tmp_path / "mountinfo"
    line = f"40 1 {number_of(tmp_path)} /home /home rw - btrfs /dev/nvme0n1p1 rw,subvol=/home"
    mounts.write_text(f"39 1 0:21 / /proc rw - proc proc rw\n{line}\n")
    assert place(tmp_path, root, mounts).disks == ("nvme0n1",)
    devices = root / "fs/btrfs/0a1b/devices"
    devices.mkdir(parents=True)
    for name in ("nvme0n1p1", "nvme1n1p1"):
        (devices / name).symlink_to(os.readlink(root / f"class/block/{name}").replace("../../", "../../../../"))
    found = place(tmp_path, root, mounts)
    assert (found.device, found.file_system, found.disks) == ("nvme0n1p1", "btrfs", ("nvme0n1", "nvme1n1"))


@pytest.mark.parametrize("source", ["overlay overlay rw", "nfs4 server:/export rw", "zfs pool/data rw", "tmpfs"])
def test_file_systems_without_a_disk_that_is_known(machine_tree, tmp_path, source):
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"40 1 {number_of(tmp_path)} / / rw - {source}\n")
    found = place(tmp_path, machine_tree("two_sockets"), mounts)
    assert (found.device, found.file_system, found.disks) == ("", source.split()[0], ())


def test_this_machine(tmp_path):
    found = place(tmp_path)
    assert set(found.disks) <= {disk.name for disk in read().disks}
    if (SYSFS / f"dev/block/{number_of(tmp_path)}").exists():
        assert found.device
    assert place("/proc").disks == () and place("/proc").file_system == "proc"
