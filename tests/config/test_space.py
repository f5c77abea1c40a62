"""The file that a search goes by, and its values as `--set` takes them."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marius_oac.config.errors import parse
from marius_oac.config.link_prediction import Config
from marius_oac.config.space import Choices, Range, SpaceConfig, at, override, written
from marius_oac.errors import ConfigError

BASE = Path(__file__).parents[2] / "examples" / "codex-s.yaml"
NAMES = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), max_size=9)
NUMBERS = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)


def load(tmp_path, text, overrides=()):
    path = tmp_path / "space.yaml"
    path.write_text(text)
    return SpaceConfig.load(path, BASE, overrides)


@given(NUMBERS | st.booleans() | st.none() | NAMES | st.text("-e.: 0123x#'", max_size=6))
def test_a_value_is_read_back_as_it_was(value):
    key, _, text = override("a.b", value).partition("=")
    assert key == "a.b" and "\n" not in text
    found, _ = parse(text, "--set")
    assert (found, type(found)) == (value, type(value))


def test_lists_and_ranges(tmp_path):
    space = load(tmp_path, "space:\n  training.batch_size: [100, 200]\n  seed: {low: 1, high: 9, step: 2}\n"
                           "  training.optimizer.learning_rate: {low: 0.1, high: 1, log: true}\n")  # fmt: skip
    batch_size, seed, rate = space.space.values()
    assert batch_size == Choices(choices=(100, 200))
    assert seed == Range(low=1, high=9, step=2) and seed.integers
    assert rate == Range(low=0.1, high=1, log=True) and not rate.integers
    assert (space.sampler, space.pruner, space.seed) == ("tpe", "median", 0)
    assert SpaceConfig.model_validate(space.model_dump(mode="json")) == space


def test_a_config_at_a_point_can_be_written_and_read(tmp_path):
    config = at({"training.optimizer.learning_rate": 1e-05, "model.decoder": "distmult"}, BASE, ("seed=3",))
    (tmp_path / "best.yaml").write_text(written(config, "Trial 3.\nMade by hand."))
    assert (tmp_path / "best.yaml").read_text().startswith("# Trial 3.\n# Made by hand.\nseed: 3\n")
    assert Config.load(tmp_path / "best.yaml") == config
    assert (config.training.optimizer.learning_rate, config.seed) == (1e-05, 3)


def test_values_that_only_go_with_those_of_another_key_are_left_to_the_trials(tmp_path):
    assert load(tmp_path, "space: {training.negatives.chunks: [2, 5000], seed: {low: 3, high: 3}}").space


BAD = {
    "space: {a: 5}": "1: space.a: must be a list of values, or a mapping of low and high, not 5",
    "space:\n  seed: {low: 3, high: 1}": "2: space.seed.high: 1 is below low, 3",
    "space:\n  seed: {low: 3}": "2: space.seed.high: this key is required",
    "space: {training.batch_sizes: [1]}": "unknown key 'batch_sizes'; did you mean 'batch_size'?",
    "space: {training.batch_size: [x, true]}": "space.training.batch_size: must be an integer, not 'x'",
    "space: {}": "space: must name at least one",
    "sampler: tp\nspace: {seed: [1]}": "1: sampler: must be 'tpe', 'gp' or 'random', not 'tp'",
    "space: {seed: {low: yes, high: 3}}": "space.seed.low: must be a number, not true",
    "spac: 1": "unknown key 'spac'; did you mean 'space'?",
    "space: {seed: {low: 1, high: 3, lo: 4}}": "space.seed.lo: unknown key 'lo'; did you mean 'low'?",
    "space: {seed: {low: 1, high: 3, step: 0}}": "space.seed.step: must be above 0",
    "space: {seed: {low: 0.5, high: 3.5}}": "space.seed: must be an integer, not 0.5",
    "space: {seed: {low: 0, high: 3, log: true}}": "space.seed.log: needs a `low` above 0",
    "space: [1]": "space: must be a section of keys, not [1]",
    "space: {seed: []}": "space.seed: must name at least one",
    "- 1": "must be a mapping of keys",
}


@pytest.mark.parametrize("text", BAD)
def test_mistakes_are_told_in_a_line_with_their_place(tmp_path, text):
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    assert BAD[text] in str(caught.value) and str(caught.value).startswith(str(tmp_path / "space.yaml"))


def test_the_config_itself_is_checked_first(tmp_path):
    with pytest.raises(ConfigError, match="--set sed: unknown key"):
        load(tmp_path, "space: {seed: [1]}", ("sed=1",))
