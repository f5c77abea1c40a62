"""Dense state as Adam keeps it and as k-step Adam does (`nodes/dense/kstep.py`), and from one to the other.

Adam divides by the root of v / (1 - beta2^t), k-step Adam by that of v itself. So a run that goes on with k-step begins
with Adam's corrected moments, v at least epsilon: the hot start of Zhao et al. (section 5, "Data"), whose v_0 is that
of a trained model. A run that goes back has moments whose corrections give these again.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

State = dict[str, torch.Tensor]

STEP, FIRST, SECOND, MERGED = "step", "exp_avg", "exp_avg_sq", "merged_sq"
"""Of a parameter: t, m and v, as torch calls them; k-step: v of the last merge."""
OWN = "relations.optimizer."
"""Begins the names of the state of an optimizer of relations that their agreement brings along."""
RELATIONS = "relations"
"""The key of the relations' table, [R, Dr + state], in the dense state."""


def is_kstep(state: Mapping[str, torch.Tensor]) -> bool:
    """Whether this is what k-step Adam keeps."""
    return any(name.endswith(f".{MERGED}") for name in state)


def network_to_kstep(state: Mapping[str, torch.Tensor], betas: tuple[float, float], epsilon: float) -> State:
    """A network's dense state with the moments of k-step, from those of Adam with these betas."""
    found = dict(state)
    for owner in _owners(state):
        step = int(state[f"{owner}.{STEP}"])
        first, second = (state[f"{owner}.{key}"] for key in (FIRST, SECOND))
        found[f"{owner}.{STEP}"] = torch.tensor(step)
        found[f"{owner}.{FIRST}"] = _corrected(first, betas[0], step)
        found[f"{owner}.{SECOND}"] = _corrected(second, betas[1], step).clamp_(min=epsilon)
        found[f"{owner}.{MERGED}"] = found[f"{owner}.{SECOND}"].clone()
    return found


def network_from_kstep(state: Mapping[str, torch.Tensor], betas: tuple[float, float]) -> State:
    """A network's dense state with the moments of Adam with these betas, from those of k-step."""
    found = {name: tensor for name, tensor in state.items() if not name.endswith(f".{MERGED}")}
    for owner in _owners(state):
        step = int(state[f"{owner}.{STEP}"])
        found[f"{owner}.{STEP}"] = torch.tensor(float(step))
        for key, beta in zip((FIRST, SECOND), betas, strict=True):
            found[f"{owner}.{key}"] = state[f"{owner}.{key}"] * (1 - beta**step)
    return found


def relations_to_kstep(
    state: Mapping[str, torch.Tensor], width: int, betas: tuple[float, float], epsilon: float, batches: int
) -> State:
    """The relations' dense state with the moments of k-step; `batches`, which Adam counts, have been trained."""
    if RELATIONS not in state:
        return dict(state)
    table = state[RELATIONS]
    second = _corrected(table[:, 2 * width :], betas[1], batches).clamp_(min=epsilon)
    own = {STEP: torch.tensor(batches), FIRST: _corrected(table[:, width : 2 * width], betas[0], batches),
           SECOND: second, MERGED: second.clone()}  # fmt: skip
    return dict(state) | {f"{OWN}{key}": tensor for key, tensor in own.items()}


def relations_from_kstep(
    state: Mapping[str, torch.Tensor], width: int, betas: tuple[float, float], batches: int
) -> State:
    """The relations' dense state with the moments of Adam, from those of k-step."""
    if RELATIONS not in state:
        return dict(state)
    moments = [state[f"{OWN}{key}"] * (1 - beta**batches) for key, beta in zip((FIRST, SECOND), betas, strict=True)]
    return {RELATIONS: torch.cat([state[RELATIONS][:, :width], *moments], 1)}


def _owners(state: Mapping[str, torch.Tensor]) -> list[str]:
    """Whose moments there are."""
    return [name.removesuffix(f".{SECOND}") for name in state if name.endswith(f".{SECOND}")]


def _corrected(moment: torch.Tensor, beta: float, step: int) -> torch.Tensor:
    return moment / (1 - beta**step) if step else moment.clone()
