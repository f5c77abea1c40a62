"""A loop over torchdata's StatefulDataLoader goes on from the loader's state at the first batch that is not trained."""

import gc

import pytest

from tests.own_loop.resumed import BATCHES, Training, drawing, equal, key_batches

# The latter by torchdata.
pytestmark = pytest.mark.filterwarnings("ignore:This process", "ignore:.set_vital. is deprecated")


@pytest.fixture
def training():
    """Makes a training over such a loader, whose batches it keeps in `collated`, where no processes collate."""
    torchdata = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is not installed")
    loaders = []

    def make(workers=0, **given):
        made, collated = Training(**given), []

        def collate(batch):
            collated.append(batch)
            return drawing(batch) if workers == 0 else {**batch, "drawn": 0.5}

        loader = torchdata.StatefulDataLoader(
            key_batches(BATCHES), batch_size=None, shuffle=True, collate_fn=collate, num_workers=workers,
            multiprocessing_context="fork" if workers else None,
        )  # fmt: skip
        loaders.append(loader)
        made.loader, made.collated = lambda: loader, collated
        return made

    yield make
    for each in loaders:
        each._iterator = None  # whose threads and processes end with it
    gc.collect()


def run(training, folder, stop=0, **given):
    """A training that goes on from the folder's checkpoint, if there is one, and is saved and left after so many."""
    made = training(**given)
    with made.engine as engine:
        engine.load(folder)
        made.run(lambda count: count == stop and not engine.save(folder))
    return made


def run_a_pass(training, folder, **given):
    """Trains one pass, and saves after it."""
    made = training(**given)
    with made.engine as engine:
        made.run(passes=1)
        engine.save(folder)


@pytest.mark.parametrize(
    "workers, counts", [(0, (5, BATCHES, BATCHES + 3)), pytest.param(2, (5,), marks=pytest.mark.slow)]
)
def test_a_loop_goes_on_where_it_was_saved(training, tmp_path, workers, counts):
    whole = run(training, tmp_path / "none", workers=workers).result()
    for count in counts:
        run(training, tmp_path / str(count), count, workers=workers)
        assert equal(run(training, tmp_path / str(count), workers=workers, in_flight=2).result(), whole)
    run_a_pass(training, tmp_path / "pass", workers=workers)
    assert equal(run(training, tmp_path / "pass", workers=workers).result(), whole)


def test_batches_before_the_first_untrained_one_are_not_drawn_again(training, tmp_path):
    run(training, tmp_path, 9, in_flight=1)
    left = run(training, tmp_path).collated
    assert 2 * BATCHES - 9 <= len(left) <= 2 * BATCHES - 9 + 4, "a few, between which there are no states"
