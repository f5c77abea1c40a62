"""Files that processes of one machine share: one process has a file open, and others open it through /proc.

No path is needed, so it may have no name, and is the same file in whatever folder or mount a process is.

Guarantees: whoever opens a file through its owner has that very file, or none. Only what is a regular file is opened.
The kernel lets processes of the same user (and root) do that. The owner keeps the file open until the others have it.
"""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass

_BYTES = 16


@dataclass(frozen=True)
class PeerFile:
    """A file that process `pid` has open as `descriptor`."""

    pid: int
    descriptor: int

    def path(self) -> str:
        """Where any process of the machine may open it.

        Raises:
            OSError: the owner has closed it, has ended, or may not be asked; or it is no regular file.
        """
        path = f"/proc/{self.pid}/fd/{self.descriptor}"
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise OSError(errno.EINVAL, "is no regular file", path)
        return path


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
    def made(cls) -> Nonce:
        """A new one of this process, in a file in memory, whose descriptor the caller closes."""
        content, descriptor = os.urandom(_BYTES), os.memfd_create("nonce")
        os.write(descriptor, content)
        return cls(os.getpid(), descriptor, content.hex())

    def seen(self) -> bool:
        """Whether this process can open files of the one that shows the nonce."""
        try:
            with open(PeerFile(self.pid, self.descriptor).path(), "rb") as file:
                return file.read(_BYTES).hex() == self.content
        except OSError:
            return False
