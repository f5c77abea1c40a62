"""Files that processes of one machine share: one process has a file open, and others open it through /proc.

No path is needed: it is the same file in whatever folder or mount a process is.

Guarantees: only a regular file with the expected name is opened, and it is the owner's if the owner has kept it open
until then. The kernel lets processes of the same user (and root) do that.
"""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass
from typing import IO

_BYTES = 16


@dataclass(frozen=True)
class PeerFile:
    """A file that process `pid` has open as `descriptor`."""

    pid: int
    descriptor: int

    @classmethod
    def of(cls, file: IO[bytes]) -> PeerFile:
        """That of this process, which keeps it open."""
        return cls(os.getpid(), file.fileno())

    def open(self, mode: str, name: str | None = None) -> IO[bytes]:
        """Opens the file, unbuffered.

        Args:
            mode: as for `open`.
            name: the last part of its path, for a file that has one.

        Raises:
            OSError: the owner has closed it, has ended, or may not be asked; or it is another kind of file, or has
                another name.
        """
        path = f"/proc/{self.pid}/fd/{self.descriptor}"
        if not stat.S_ISREG(os.stat(path).st_mode) or name not in (None, os.path.basename(os.readlink(path))):
            raise OSError(errno.EINVAL, "is not the file that is shared", path)
        return open(path, mode, buffering=0)


@dataclass(frozen=True)
class Nonce:
    """Random bytes in a file of process `pid`, by which another process knows that it opens files of just this one: in
    another container, or on another machine, the same `pid` is another process.

    Attributes:
        content: the bytes, as hexadecimal digits.
    """

    pid: int
    descriptor: int
    content: str

    @classmethod
    def written_to(cls, file: IO[bytes]) -> Nonce:
        """A new one of this process, at the beginning of an unbuffered file, which the caller keeps open."""
        content = os.urandom(_BYTES)
        file.write(content)
        return cls(os.getpid(), file.fileno(), content.hex())

    def seen(self) -> bool:
        """Whether this process can open files of the one that shows the nonce."""
        try:
            with PeerFile(self.pid, self.descriptor).open("rb") as file:
                return file.read(_BYTES).hex() == self.content
        except OSError:
            return False
