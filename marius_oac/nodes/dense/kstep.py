"""k-step Adam: every trainer makes its own updates, and every k steps they merge (Zhao et al., Algorithm 2).

With learning rate a, gradient g_i of trainer i, N trainers, t = 1, 2, ...:

    g_i = g_i + w x_i, with a weight decay w (not in the paper; as in torch's Adam)
    m_i = beta1 m_i + (1 - beta1) g_i
    v_i = beta2 v_i + (1 - beta2) g_i^2
    t mod k != 0:  x_i = x_i - a m_i / sqrt(v)
    t mod k == 0:  v = mean over i of v_i,  then x_i = mean over j of (x_j - a m_j / sqrt(v))

v, the second moment in the denominator, is frozen between merges, while each trainer's own v_i is updated. m is never
merged. v and v_i begin as epsilon, without bias correction, and nothing is added to the denominator. With a small
epsilon the first k - 1 steps would therefore be a g / sqrt(epsilon), so the trainers merge in each of the first
`warm_up` steps. With `warm_up=0` the algorithm is exactly the paper's, for models whose v comes from a checkpoint
(`models/compute/dense_moments.py`); their steps count, too, so t goes on from there.

A trainer without an example of a batch makes no step of its own: x_i, m_i and v_i stay, t counts, and it merges as all
others do.

A merge is two all-reduces as long as the parameters, of v_i and of x_i - a m_i / sqrt(v), which needs the merged v.
(One would do with x_i, m_i and v_i in it, and send half as much again.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from marius_oac.models.compute.eager import eager
from marius_oac.nodes.dense.contract import DenseAgreement, Flat
from marius_oac.nodes.groups.contract import Group
from marius_oac.types import present

Mean = Callable[[Sequence[torch.Tensor]], None]
"""Replaces tensors, in place, by their mean over the trainers."""


@eager
class KStepAdam(torch.optim.Optimizer):
    """One trainer's part of Algorithm 2. A parameter without a gradient counts as having gradient zero.

    `state[parameter]` holds `step` (t, int64), `exp_avg` (m_i), `exp_avg_sq` (v_i) and `merged_sq` (v) from the start.

    Args:
        sections: as torch's optimizers take them, `params` (tensors of one type and device, in one order on all
            trainers), `lr` (a; may be changed in `param_groups`) and `weight_decay` (w) of each.
        merge: called for each merge with a function that does it, given how to take means.
        k: steps from merge to merge.
        warm_up: steps at the beginning that each end in a merge.
        betas: beta1 and beta2.
        epsilon: v before the first step.

    Attributes:
        idle: whether this trainer has no example of the next step's batch.
    """

    def __init__(
        self,
        sections: Sequence[Mapping[str, Any]],
        merge: Callable[[Callable[[Mean], None]], None],
        k: int,
        warm_up: int,
        betas: tuple[float, float],
        epsilon: float,
    ) -> None:
        super().__init__([dict(each) for each in sections], {"betas": betas})
        self.idle = False
        self._merge, self._k, self._warm_up = merge, k, warm_up
        self._parameters: list[torch.Tensor] = [each for group in self.param_groups for each in group["params"]]
        for parameter in self._parameters:
            self.state[parameter] = {
                "step": torch.tensor(0),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.full_like(parameter, epsilon),
                "merged_sq": torch.full_like(parameter, epsilon),
            }

    @property
    def merged(self) -> bool:
        """Whether the last step was a merge, or there was none yet."""
        step = int(self._states("step")[0])
        return step <= self._warm_up or step % self._k == 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Makes one update, with a merge where it is due; takes no closure and returns None."""
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["step"] += 1
                if not self.idle:
                    self._accumulate(parameter, group["betas"], group["weight_decay"])
        if self.merged:
            self._merge(self._update_merged)
        else:
            self._update()

    def _accumulate(self, parameter: torch.Tensor, betas: tuple[float, float], weight_decay: float) -> None:
        state, gradient, (beta1, beta2) = self.state[parameter], parameter.grad, betas
        state["exp_avg"].mul_(beta1)
        state["exp_avg_sq"].mul_(beta2)
        if weight_decay:
            own = parameter * weight_decay
            gradient = own if gradient is None else own.add_(gradient)
        if gradient is not None:
            state["exp_avg"].add_(gradient, alpha=1 - beta1)
            state["exp_avg_sq"].addcmul_(gradient, gradient, value=1 - beta2)

    def _update(self) -> None:
        for group in self.param_groups if not self.idle else ():
            for parameter in group["params"]:
                state = self.state[parameter]
                parameter.addcdiv_(state["exp_avg"], state["merged_sq"].sqrt(), value=-group["lr"])

    def _update_merged(self, mean: Mean) -> None:
        for own, merged in zip(self._states("exp_avg_sq"), self._states("merged_sq"), strict=True):
            merged.copy_(own)
        mean(self._states("merged_sq"))
        self._update()
        mean(self._parameters)

    def _states(self, name: str) -> list[torch.Tensor]:
        return [self.state[parameter][name] for parameter in self._parameters]


class KStep(DenseAgreement):
    """Implements `marius_oac.types.DenseSync` with k-step Adam; trainers must make equally many steps (lockstep).

    Args:
        group: of the trainers.
        k, warm_up, betas, epsilon: see `KStepAdam`.
    """

    _optimizer: KStepAdam
    _flat: Flat

    def __init__(
        self,
        group: Group,
        k: int,
        warm_up: int,
        betas: tuple[float, float] = (0.0, 0.999),
        epsilon: float = 1e-8,
    ) -> None:
        super().__init__(group)
        self._about = k, warm_up, betas, epsilon

    def optimizer(self, sections: Sequence[Mapping[str, Any]]) -> KStepAdam:
        """See `DenseSync.optimizer`. Its state is what a checkpoint must keep."""
        self._optimizer = KStepAdam(sections, self._merge, *self._about)
        return self._optimizer

    def reduce(self, gradients: Sequence[torch.Tensor], share: float) -> bool:
        """See `DenseSync.reduce`."""
        self._optimizer.idle = not share
        return True

    def _prepare(self, together: Flat) -> None:
        self._flat = together

    def _merge(self, exchange: Callable[[Mean], None]) -> None:
        begun, self._quiet = self._begin(), False
        exchange(self._mean)
        self._count(begun)

    def _mean(self, tensors: Sequence[torch.Tensor]) -> None:
        self._flat.fill(tensors)
        present(self._channel).all_reduce(self._flat.buffer)
        self._flat.buffer.div_(self._group.size)
        self._flat.give(tensors)

    def _agree(self) -> None:
        """Replaces replicas, which differ between merges, by their mean, without an update."""
        if not self._optimizer.merged:
            with torch.no_grad():
                self._mean(self._live)
