"""A cluster on one machine: hosts that are network namespaces, with links of a given rate to one switch.

    with Cluster(3, rate_mbit=100) as cluster:
        first, *others = cluster.hosts
        process = first.run([sys.executable, "-c", "print(1)"], {"MASTER_ADDR": first.address})
        assert process.wait(timeout=10) == 0, process.output()
        print(first.bytes_sent())

A host has a name, an address, an interface `eth0` and its own loopback, host name, /etc/hosts and /sys/class/net;
files, memory and processor are the machine's. Its link carries `rate_mbit` each way (`tc tbf` on both ends). Processes
are real, and so are bytes, waits, refused connections and broken ones. What is not: a link's delay (next to none),
and compute, which the hosts share.

Guarantees:
- Nothing of it is reachable from outside: the switch is a bridge in a namespace of its own without a way out, and no
  interface, address or route of the machine is touched.
- When the context ends, by an error or Ctrl-C too, all processes in the hosts are killed, whatever sessions they are
  in, and the namespaces are gone. What an owner leaves that was killed is removed by the next cluster that starts.

Needs root (CAP_SYS_ADMIN, CAP_NET_ADMIN), iproute2 and util-linux: `why_not()` says what is missing.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import select
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path

INTERFACE = "eth0"
_PREFIX = "oac-"
_NAMESPACES = Path("/run/netns")
_QUEUE_MS, _BURST_MS = 25, 1  # how long packets queue at most before the link; how much may pass it at once
# The kernel's packets of 64 KiB, with the headers of the segments that a network card would make of them, must fit, or
# they are segmented at ten times the processor time.
_LEAST_BURST = 72_000
_numbers = count()

# Runs in the host's network: gives the command its host name, its host table, and the /sys that shows its interfaces,
# with the machine's control groups, so that it knows its limits of memory.
_ENTER = """set -e
echo "$1" > /proc/sys/kernel/hostname
mount --bind "$2/hosts" /etc/hosts
mount --rbind /sys/fs/cgroup "$2/groups"
mount -t sysfs sysfs /sys
mount --rbind "$2/groups" /sys/fs/cgroup
shift 2
exec "$@"
"""


class Process:
    """A command that runs in a host; its standard output and error go to one file, `log`."""

    def __init__(self, popen: subprocess.Popen, log: Path) -> None:
        self._popen, self.log = popen, log
        self._last_words: str | None = None

    @property
    def pid(self) -> int:
        return self._popen.pid

    def wait(self, timeout: float) -> int:
        """The exit code, minus the signal that killed it; TimeoutError, with what it said, after `timeout` seconds."""
        try:
            return self._popen.wait(timeout)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"still running after {timeout} s; it said: {self.output()[-2000:]}") from None

    def wait_for(self, text: str, timeout: float) -> None:
        """Waits until it has written `text`: TimeoutError after `timeout` seconds, RuntimeError if it ends without."""
        deadline = time.monotonic() + timeout
        # tail(1) is told by the kernel of what is written: it says when to look.
        with subprocess.Popen(["tail", "-c", "+1", "-f", self.log], stdout=subprocess.PIPE) as tail, self._end() as end:
            try:
                while text not in self.output():
                    ready, _, _ = select.select([tail.stdout, end], [], [], max(0, deadline - time.monotonic()))
                    if tail.stdout in ready:
                        os.read(tail.stdout.fileno(), 1 << 16)
                    elif text not in self.output():
                        what = f"has ended, code {self._popen.wait()}," if ready else f"runs for {timeout} s"
                        error = RuntimeError if ready else TimeoutError
                        raise error(f"it {what} without saying {text!r}, but: {self.output()[-2000:]}")
            finally:
                tail.kill()

    @contextmanager
    def _end(self) -> Iterator[int]:
        """A descriptor that is readable when the process has ended."""
        end = os.open(os.devnull, os.O_RDONLY) if self._popen.returncode is not None else os.pidfd_open(self.pid)
        try:
            yield end
        finally:
            os.close(end)

    def output(self) -> str:
        """What it has written so far; also when the cluster is gone."""
        return self._last_words if self._last_words is not None else self.log.read_text("utf-8", "replace")

    def kill(self) -> None:
        """kill -9 of it and of all that it started in its session; the kernel still ends its connections."""
        if self._popen.poll() is None:
            os.killpg(self.pid, signal.SIGKILL)
            self._popen.wait()


class Host:
    """One of the cluster's hosts.

    Attributes:
        name: also its host name. address: IPv4. interface: of the link.
    """

    interface = INTERFACE

    def __init__(self, name: str, address: str, namespace: str, port: str, hub: str, folder: Path) -> None:
        self.name, self.address, self.namespace = name, address, namespace
        self._port, self._hub, self._folder = port, hub, folder
        self._processes: list[Process] = []

    def run(self, argv: Sequence[str | Path], env: Mapping[str, str] | None = None) -> Process:
        """Starts a command, with `env` beside this process's environment; its working directory is this process's."""
        log = self._folder / f"{self.name}-{len(self._processes)}.log"
        enter = ["nsenter", f"--net={_NAMESPACES / self.namespace}", "unshare", "--mount", "--uts"]
        words = [*enter, "sh", "-c", _ENTER, "sh", self.name, str(self._folder), *map(str, argv)]
        with log.open("wb") as out:
            popen = subprocess.Popen(
                words, env={**os.environ, **(env or {})}, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                start_new_session=True,
            )  # fmt: skip
        self._processes.append(Process(popen, log))
        return self._processes[-1]

    def bytes_sent(self) -> int:
        """Bytes that have left over the link, with the headers of all segments, as a network card would send them.
        (The interface's own counter counts a packet of up to 64 KiB with one header.)"""
        return _bytes_out(self.namespace, INTERFACE)

    def bytes_received(self) -> int:
        """Bytes that have come over the link, counted alike."""
        return _bytes_out(self._hub, self._port)

    def kill(self) -> None:
        """kill -9 of every process in the host. `unplug` it first, and it is gone without a word, as in a power cut."""
        for process in self._processes:  # one that has just been started may not be in the namespace yet
            process.kill()
        _kill_all(self.namespace)

    def unplug(self) -> None:
        """Nothing comes through any more, and nobody is told."""
        # Off the switch, but with the link up: with the link down both ends would be told, after a while.
        _ip([f"link set {self._port} nomaster"], self._hub)

    def plug(self) -> None:
        """Undoes `unplug`; for some seconds hosts may still be unreachable to each other, until they ask again."""
        _ip([f"link set {self._port} master switch"], self._hub)


class Cluster:
    """Hosts h0, h1 ... while its context lasts.

    Args:
        hosts: how many, 1 to 200.
        rate_mbit: of each host's link, each way, in 10**6 bits a second; one for all, or one a host.

    Attributes:
        hosts: list of `Host`.
    """

    def __init__(self, hosts: int, rate_mbit: float | Sequence[float]) -> None:
        if not 1 <= hosts <= 200:
            raise ValueError(f"hosts must be 1 to 200, not {hosts}")
        rates = [rate_mbit] * hosts if isinstance(rate_mbit, int | float) else list(rate_mbit)
        if len(rates) != hosts or not all(rate > 0 for rate in rates):
            raise ValueError(f"rate_mbit must be above 0, one for all or {hosts}, not {rate_mbit}")
        self._rates = rates
        self._prefix = f"{_PREFIX}{os.getpid()}-{_started(os.getpid())}-{next(_numbers)}-"
        self._hub = f"{self._prefix}hub"
        self.hosts: list[Host] = []

    def __enter__(self) -> Cluster:
        remove_stale()
        atexit.register(self._remove)  # for an interrupt that comes just before `__exit__`
        try:
            self._build(Path(tempfile.mkdtemp(prefix=self._prefix)))
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._remove()

    def _build(self, folder: Path) -> None:
        (folder / "groups").mkdir()
        self.hosts = [
            Host(f"h{i}", f"10.213.0.{i + 1}", f"{self._prefix}h{i}", f"port{i}", self._hub, folder)
            for i in range(len(self._rates))
        ]
        names = ["127.0.0.1 localhost", *(f"{host.address} {host.name}" for host in self.hosts)]
        (folder / "hosts").write_text("\n".join(names) + "\n")
        _ip([f"netns add {self._hub}"])
        _ip(["link add switch type bridge mcast_snooping 0", *_up("switch")], self._hub)
        for host, rate in zip(self.hosts, self._rates, strict=True):
            port, namespace = host._port, host.namespace
            _ip([f"netns add {namespace}"])
            veth = f"link add {port} type veth peer name {INTERFACE} netns {namespace}"
            _ip([veth, f"link set {port} master switch", *_up(port)], self._hub)
            _ip(["link set lo up", *_up(INTERFACE), f"addr add {host.address}/24 dev {INTERFACE}"], namespace)
            burst = max(_LEAST_BURST, round(rate * 1e6 / 8 * _BURST_MS / 1e3))
            for where, device in ((namespace, INTERFACE), (self._hub, port)):
                rule = f"rate {round(rate * 1e6)}bit burst {burst} latency {_QUEUE_MS}ms"
                _command("tc", "-n", where, *f"qdisc add dev {device} root tbf {rule}".split())

    def _remove(self) -> None:
        with _uninterrupted():
            for host in self.hosts:
                for process in host._processes:
                    process.kill()
                    process._last_words = process.output()
            _remove_all(self._prefix)
        atexit.unregister(self._remove)


def why_not() -> str | None:
    """Why there can't be a cluster here, in words; None: there can."""
    missing = [tool for tool in ("ip", "tc", "nsenter", "unshare") if not shutil.which(tool)]
    if missing:
        return f"an emulated cluster needs {', '.join(missing)} (iproute2, util-linux)"
    done = subprocess.run(["unshare", "--net", "--mount", "--uts", "true"], capture_output=True, text=True)
    return f"an emulated cluster needs root: {done.stderr.strip()}" if done.returncode else None


def remove_stale() -> None:
    """Removes what clusters have left whose owners are gone."""
    for name in sorted({*_named(_NAMESPACES, _PREFIX), *_named(Path(tempfile.gettempdir()), _PREFIX)}):
        owner = re.match(rf"{_PREFIX}(\d+)-(\d+)-", name)
        if owner and _started(int(owner[1])) != owner[2]:
            with _uninterrupted():
                _remove_all(owner[0])


def _named(folder: Path, prefix: str) -> list[str]:
    return sorted(each.name for each in folder.glob(f"{prefix}*"))


def _remove_all(prefix: str) -> None:
    for name in _named(_NAMESPACES, prefix):
        try:
            _kill_all(name)
            _ip([f"netns del {name}"])
        except RuntimeError:
            if (_NAMESPACES / name).exists():  # else another process has removed the same dead owner's
                raise
    temporary = Path(tempfile.gettempdir())
    for name in _named(temporary, prefix):
        shutil.rmtree(temporary / name, ignore_errors=True)


def _kill_all(namespace: str) -> None:
    """Kills the processes of a namespace and waits until they are gone, which takes a few rounds where they fork."""
    while pids := [int(pid) for pid in _command("ip", "netns", "pids", namespace).split()]:
        for pid in pids:
            try:
                end = os.pidfd_open(pid)
            except ProcessLookupError:
                continue
            try:
                signal.pidfd_send_signal(end, signal.SIGKILL)
                select.select([end], [], [])
            except ProcessLookupError:
                pass
            finally:
                os.close(end)


def _started(pid: int) -> str | None:
    """When a process began, in clock ticks: tells it from a later one with its number; None: there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (FileNotFoundError, ProcessLookupError):
        return None


def _up(device: str) -> list[str]:
    """Without an address made up for IPv6 first, so that every byte is a process's."""
    return [f"link set {device} addrgenmode none", f"link set {device} up"]


def _ip(lines: Sequence[str], namespace: str | None = None) -> None:
    _command("ip", *(["-n", namespace] if namespace else []), "-batch", "-", text="\n".join(lines))


def _bytes_out(namespace: str, device: str) -> int:
    return json.loads(_command("tc", "-n", namespace, "-s", "-j", "qdisc", "show", "dev", device))[0]["bytes"]


def _command(*words: str, text: str = "") -> str:
    # In a session of its own: a Ctrl-C at the terminal is for Python, which cleans up.
    done = subprocess.run(words, input=text, capture_output=True, text=True, start_new_session=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)} {text!r}: {done.stderr.strip()}")
    return done.stdout


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """A Ctrl-C in here comes when it ends."""
    if threading.current_thread() is not threading.main_thread():  # which alone is interrupted
        yield
        return
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if came:
            signal.raise_signal(signal.SIGINT)
