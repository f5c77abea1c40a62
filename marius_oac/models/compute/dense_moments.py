"""Converts the dense state of Adam to that of k-step Adam (`nodes/dense/kstep.py`), and back.

Adam divides by the square root of v / (1 - beta2^t), k-step Adam by that of v. So a run that continues with k-step
starts with Adam's corrected moments, v being at least epsilon. This is the hot start of Zhao et al. (section 5,
"Data"), whose v_0 comes from a trained model. The conversion back gives moments whose corrected values are k-step's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

State = dict[str, torch.Tensor]

STEP, FIRST, SECOND, MERGED = "step", "exp_avg", "exp_avg_sq", "merged_sq"
"""Keys of a parameter's state: t, m and v, as torch names them; of k-step Adam also v of the last merge."""
OWN = "relations.optimizer."
"""The prefix of the state's names of an optimizer of relations that a `DenseSync` provides."""
RELATIONS = "relations"
"""The key of the relations' table, [R, Dr + state], in the dense state."""


def is_kstep(state: Mapping[str, torch.Tensor]) -> bool:
    """Whether this is a state of k-step Adam."""
    return any(name.endswith(f".{MERGED}") for name in state)


def network_to_kstep(
    state: Mapping[str, torch.Tensor], owners: Iterable[str], betas: tuple[float, float], epsilon: float
) -> State:
    """Converts a dense state from Adam with these betas to k-step Adam; `owners` are the prefixes of the moments."""
    found = dict(state)
    for owner in owners:
        step = int(state[f"{owner}.{STEP}"])
        first, second = (state[f"{owner}.{key}"] for key in (FIRST, SECOND))
        found[f"{owner}.{STEP}"] = torch.tensor(step)
        found[f"{owner}.{FIRST}"] = _corrected(first, betas[0], step)
        found[f"{owner}.{SECOND}"] = _corrected(second, betas[1], step).clamp_(min=epsilon)
        found[f"{owner}.{MERGED}"] = found[f"{owner}.{SECOND}"].clone()
    return found


def network_from_kstep(state: Mapping[str, torch.Tensor], owners: Iterable[str], betas: tuple[float, float]) -> State:
    """Converts a dense state from k-step Adam to Adam with these betas. Arguments are those of `network_to_kstep`."""
    found = dict(state)
    for owner in owners:
        step = int(found[f"{owner}.{STEP}"])
        found[f"{owner}.{STEP}"] = torch.tensor(float(step))
        for key, beta in zip((FIRST, SECOND), betas, strict=True):
            found[f"{owner}.{key}"] = state[f"{owner}.{key}"] * (1 - beta**step)
        del found[f"{owner}.{MERGED}"]
    return found


def relations_to_kstep(
    state: Mapping[str, torch.Tensor], width: int, betas: tuple[float, float], epsilon: float, batches: int
) -> State:
    """Converts the relations' dense state from Adam to k-step Adam.

    Args:
        width: Dr, floats of a relation's value in the table [R, Dr + state].
        batches: the number of trained batches, which are Adam's steps.
    """
    table = state[RELATIONS]
    second = _corrected(table[:, 2 * width :], betas[1], batches).clamp_(min=epsilon)
    own = {STEP: torch.tensor(batches), FIRST: _corrected(table[:, width : 2 * width], betas[0], batches),
           SECOND: second, MERGED: second.clone()}  # fmt: skip
    return dict(state) | {f"{OWN}{key}": tensor for key, tensor in own.items()}


def relations_from_kstep(
    state: Mapping[str, torch.Tensor], width: int, betas: tuple[float, float], batches: int
) -> State:
    """Converts the relations' dense state from k-step Adam to Adam. Arguments are those of `relations_to_kstep`."""
    moments = [state[f"{OWN}{key}"] * (1 - beta**batches) for key, beta in zip((FIRST, SECOND), betas, strict=True)]
    others = {name: tensor for name, tensor in state.items() if not name.startswith(OWN)}
    return others | {RELATIONS: torch.cat([state[RELATIONS][:, :width], *moments], 1)}


def _corrected(moment: torch.Tensor, beta: float, step: int) -> torch.Tensor:
    return moment / (1 - beta**step) if step else moment.clone()
