"""Checksums of a large file by blocks, so that a part of it can be read and checked without the rest.

The digest of a block is its XXH3 (128 bits); that of the file is the XXH3 of the digests of its blocks, one after
another. So a list of a file's block digests is proven by the file's own digest, and a block by the list.
"""

from __future__ import annotations

import xxhash

BLOCK_BYTES = 1 << 16
"""Of a file, from its beginning; the last block may be shorter. Part of the format of checkpoints: manifests hold 32
digits for each block, 1/2048 of the file, and who reads a range reads at most a block too much at each end."""
MOST_BLOCKS = 1 << 17
"""Of a file. Blocks of one above 8 GiB are twice as large, or four times, and so on, so that no file takes more than
4 MiB of a manifest. Part of the format, too."""
DIGEST_BYTES = 16


def block_bytes(size: int) -> int:
    """Returns the size of the blocks of a file of this size in bytes."""
    block = BLOCK_BYTES
    while size > block * MOST_BLOCKS:
        block *= 2
    return block


def block_digest(content: bytes | memoryview) -> bytes:
    """Returns the digest of a block."""
    digest: bytes = xxhash.xxh3_128_digest(content)
    return digest


class BlockDigests:
    """The digest of a file in the making.

    Args:
        size: of the whole file in bytes.

    Attributes:
        blocks: the digests of the full blocks so far.
    """

    def __init__(self, size: int) -> None:
        self._size = block_bytes(size)
        self.blocks, self._left, self._block = bytearray(), self._size, xxhash.xxh3_128()

    def update(self, content: object, /) -> None:
        """Adds bytes, or a contiguous array."""
        view = memoryview(content)  # type: ignore[arg-type]
        if not view.nbytes:
            return
        view, at = view.cast("B"), 0
        while at < len(view):
            part = view[at : at + self._left]
            self._block.update(part)
            self._left -= len(part)
            at += len(part)
            if not self._left:
                self.blocks += self._block.digest()
                self._left, self._block = self._size, xxhash.xxh3_128()

    def all_blocks(self) -> bytes:
        """Returns the digests of all blocks, the last one as it is now."""
        return bytes(self.blocks) + (self._block.digest() if self._left < self._size else b"")

    def hexdigest(self) -> str:
        """Returns the digest of the file, hexadecimal."""
        digest: str = xxhash.xxh3_128_hexdigest(self.all_blocks())
        return digest


def num_blocks(size: int) -> int:
    """Returns the number of blocks of a file of this size in bytes."""
    return -(-size // block_bytes(size))
