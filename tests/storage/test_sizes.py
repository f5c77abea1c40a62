"""What tables of pages take, and a batch for which the memory is too small."""

import numpy as np
import pytest

from marius_oac.config.sections import StorageConfig
from marius_oac.errors import ConfigError
from marius_oac.storage.contract import RowLayout
from marius_oac.storage.disk.files import MOST_PAGES_A_JOB, num_threads
from marius_oac.storage.disk.layout import FRAME_BYTES, PAGE_TABLE_BYTES
from marius_oac.storage.sizes import PagedSizes, check_batch, page_bytes, paged_sizes

PAGE = 4096
LAYOUT = RowLayout(30, 1)
PER_PAGE = PAGE // LAYOUT.row_bytes


def config(frames, page=PAGE):
    return StorageConfig(memory=frames * (PAGE + FRAME_BYTES), page=page)


def test_frames_are_those_of_the_budget_or_of_all_pages():
    layouts, rows = {"a": LAYOUT, "b": LAYOUT}, {"a": 10 * PER_PAGE + 1, "b": 3 * PER_PAGE}
    moving = num_threads("direct", config(1).depth) * MOST_PAGES_A_JOB * PAGE
    for budget, frames in ((5, 5), (14, 14), (99, 14)):
        found = paged_sizes(config(budget), layouts, rows)
        assert found == PagedSizes(frames * (PAGE + FRAME_BYTES), 14 * PAGE_TABLE_BYTES, moving, 14 * PAGE)


def test_a_batch_may_use_every_frame_and_no_more():
    rows = np.arange(0, 6 * PER_PAGE, PER_PAGE)
    rows = np.sort(np.concatenate([rows, rows + 1]))
    check_batch(config(6), LAYOUT, rows)
    check_batch(StorageConfig(), LAYOUT, rows)
    with pytest.raises(ConfigError, match="a batch uses 6 pages of 4,096 bytes and the memory holds 5"):
        check_batch(config(5), LAYOUT, rows)


def test_a_page_holds_the_widest_row():
    wide = RowLayout(PAGE // 4, 0)
    with pytest.raises(ConfigError, match="storage.page: a row has 4,104 bytes, a page only 4,096"):
        page_bytes(config(5), [LAYOUT, wide])
    assert page_bytes(config(5), [LAYOUT]) == PAGE
    assert page_bytes(config(5, None), [LAYOUT, wide]) == 8 * PAGE, "seven rows, and less than an eighth is left over"
