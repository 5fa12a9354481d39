r"""Fish (Shi et al., 2021): align gradients between domains by taking steps one after another.

From the parameters θ take one step of the network's optimiser per domain, each at the point where
the last one led, and then go a part ε of the way there (Algorithm 1):

$$\tilde\theta \leftarrow \theta; \qquad
\tilde\theta \leftarrow \tilde\theta - \alpha \nabla L_e(\tilde\theta)\ \text{for each domain}\ e;
\qquad \theta \leftarrow \theta + \varepsilon (\tilde\theta - \theta)$$

To first order this also raises the inner products of the domains' gradients. The inner steps are
Adam's, whose averages go on from step to step, as in the method's own code. Buffers that are
floating-point numbers, such as running statistics, are interpolated as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Annotated, ClassVar, final

import torch
from torch.optim import Optimizer

from hessalign.bench.algorithms.auxiliary import draw_order, follow
from hessalign.bench.algorithms.kinds import MAIN, AbstractStepOwner, Step
from hessalign.bench.algorithms.options import Choice, Fidelity, Options, Range, SearchSpace


@final
@dataclass(frozen=True)
class _FishConfig(Options):
    meta_lr: Annotated[float, Range(0, 1, open_low=True)] = 0.5  # the part ε of the way
    # "paper" visits the domains in random order, "domainbed" always in the same.
    fidelity: Fidelity = "paper"


@final
class Fish(AbstractStepOwner):
    """Follow a sequence of steps on single domains part of the way."""

    config: _FishConfig = _FishConfig()
    search: ClassVar[SearchSpace] = {"meta_lr": ("meta_lr", Choice((0.05, 0.1, 0.5)))}

    def update(self, step: Step, optimizers: Mapping[str, Optimizer]) -> dict[str, float]:
        """Inner steps, then interpolation."""
        state = list(chain(self.network.parameters(), self.network.buffers()))
        before = [each.detach().clone() for each in state]
        domains = step.batch.parts
        order = list(range(len(domains)))
        if self.config.fidelity == "paper":
            order = draw_order(len(domains), self.generator)
        risks = [follow(step.risk_in(domains[index]), optimizers, MAIN) for index in order]
        with torch.no_grad():
            for now, then in zip(state, before, strict=True):
                if now.is_floating_point():
                    now.copy_(then.lerp(now, self.config.meta_lr))
        mean = float(torch.stack(risks).mean())
        return {"risk": mean, "loss": mean}
