"""Large files, written while the next block is read, with asyncio and aiofiles.

Guarantees of `write_files`:
- Two blocks are held at a time: one is written, its files in parallel, while the next one is made. A file's
  blocks are written in their order.
- When it raises, reading and writing have ended, and none of its threads is left.
- The first Ctrl-C that raises KeyboardInterrupt ends it after the blocks that are held. The event loop runs in its own
  thread, because signals don't reach it there and the caller may already run an event loop, as in a notebook.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import aiofiles
import numpy as np

from marius_oac.runtime.channel import Closed
from marius_oac.runtime.files.npy import npy_header
from marius_oac.runtime.workers import Workers

Content = bytes | np.ndarray


def write_files(paths: Sequence[Path], blocks: Iterable[Mapping[Path, Content]]) -> None:
    """Writes new files and flushes them to the disk.

    Args:
        paths: the paths of the files.
        blocks: path -> content to add to that file; an array's bytes in C order. Iterated over in another thread.

    Raises:
        OSError: a file can't be written. What `blocks` raises is raised as it is.
    """
    stopped = threading.Event()

    def work() -> None:
        asyncio.run(_write(paths, iter(blocks), stopped))

    with Workers(on_failure=stopped.set) as workers:
        workers.start("files", 1, work, when_all_done=lambda: None)
        workers.join()


def write_npy_files(
    folder: Path,
    arrays: Mapping[str, tuple[tuple[int, ...], np.dtype | type]],
    blocks: Iterable[Mapping[str, np.ndarray]],
) -> None:
    """Writes NAME.npy for each of `arrays`, by their shapes and types, from blocks of rows. As `write_files`."""
    paths = {name: folder / f"{name}.npy" for name in arrays}
    headers = {paths[name]: npy_header(*about) for name, about in arrays.items()}
    rows = ({paths[name]: content for name, content in block.items()} for block in blocks)
    write_files(list(paths.values()), chain([headers], rows))


async def _write(paths: Sequence[Path], blocks: Iterator[Mapping[Path, Content]], stopped: threading.Event) -> None:
    async with AsyncExitStack() as stack:
        files = {path: await stack.enter_async_context(aiofiles.open(path, "wb")) for path in paths}
        # One thread makes all blocks: among several, malloc would give their memory back and get it anew each time.
        maker = stack.enter_context(ThreadPoolExecutor(1))
        make = partial(asyncio.get_running_loop().run_in_executor, maker, _next, blocks)
        block = await make()
        while block is not None:
            if stopped.is_set():
                raise Closed
            added = (files[path].write(content) for path, content in block.items())
            block, *_ = await _all(make(), *added)
        for file in files.values():
            await file.flush()
            await asyncio.to_thread(os.fsync, file.fileno())


def _next(blocks: Iterator[Mapping[Path, Content]]) -> dict[Path, Content] | None:
    block = next(blocks, None)
    if block is None:
        return None
    return {path: each if isinstance(each, bytes) else np.ascontiguousarray(each) for path, each in block.items()}


async def _all(*work: Awaitable[Any]) -> list[Any]:
    """The results; waits for all also when one fails: a thread can't be called off, and its file must stay open."""
    results = await asyncio.gather(*work, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results
