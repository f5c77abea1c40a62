"""The section that says how dense parameters agree: what is impossible is refused in one line."""

import pytest
from pydantic import ValidationError

from marius_oac.config.dense import DenseConfig


def test_defaults_are_what_they_say():
    config = DenseConfig()
    assert (config.kind, config.lockstep) == ("allreduce", True)
    assert (DenseConfig(kind="kstep").k, DenseConfig(kind="kstep").warm_up) == (10, 1000)
    assert DenseConfig(kind="ma").iterations_between == 1
    assert DenseConfig(kind="ma", background=False).iterations_between == 5
    assert DenseConfig(kind="ma", sync_every=7).iterations_between == 7
    assert [DenseConfig(kind=kind).lockstep for kind in ("kstep", "easgd", "ma", "bmuf")] == [True, False, False, False]
    for field in DenseConfig.model_fields.values():
        assert field.description.endswith((".", ")."))


def test_what_is_dumped_can_be_loaded():
    for config in (
        DenseConfig(),
        DenseConfig(kind="bmuf", momentum=0.9, nesterov=True),
        DenseConfig(kind="kstep", k=3),
    ):
        assert DenseConfig(**config.model_dump(mode="json")) == config


@pytest.mark.parametrize(
    "values, message",
    [
        ({"k": 5}, "k: is for kind kstep, and the kind is 'allreduce'"),
        ({"kind": "ma", "warm_up": 0}, "warm_up: is for kind kstep, and the kind is 'ma'"),
        ({"kind": "kstep", "alpha": 0.1}, "alpha: is for kind easgd or ma or bmuf, and the kind is 'kstep'"),
        ({"kind": "kstep", "background": False}, "background: is for kind easgd or ma or bmuf"),
        ({"kind": "easgd", "eta": 0.5}, "eta: is for kind bmuf, and the kind is 'easgd'"),
        ({"kind": "bmuf", "nesterov": True}, "nesterov: needs a momentum above 0"),
        ({"kind": "ma", "alpha": 0}, "greater than 0"),
        ({"kind": "ma", "sync_every": 0}, "greater than 0"),
        ({"kind": "kstep", "beta2": 1.0}, "less than 1"),
        ({"kind": "adamw"}, "'allreduce', 'kstep', 'easgd', 'ma' or 'bmuf'"),
    ],
)
def test_impossible_combinations_are_refused(values, message):
    with pytest.raises(ValidationError) as caught:
        DenseConfig(**values)
    (error,) = caught.value.errors()
    assert message in error["msg"] and "\n" not in error["msg"]
