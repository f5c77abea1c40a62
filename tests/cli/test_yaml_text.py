"""YAML as `init` writes it."""

import pytest
import yaml

from marius_oac.prepare.init.yaml_text import scalar


@pytest.mark.parametrize("value, written", [
    (3, "3"), (0.5, "0.5"), ("user", "user"), ("1", "'1'"), ("a: b", "'a: b'"), ("é", "é"), ("a\x1bb", r'"a\eb"'),
    (["a", "2", 2], "[a, '2', 2]"), ({"name": "age", "missing": "median"}, "{name: age, missing: median}"),
])  # fmt: skip
def test_values_are_written_plainly_on_one_line(value, written):
    assert scalar(value) == written
    assert yaml.safe_load(written) == value
