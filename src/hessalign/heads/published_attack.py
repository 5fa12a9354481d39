r"""The attack as published: Adam on minibatches, the extreme domains chosen anew at each step.

This is what the code of Zhang et al. (2021) does, which Hemati et al. (2023) use for Figure 2. Its
steps are short: Adam moves a parameter by about its learning rate, so a radius beyond
lr · steps · √p is never reached, and the result then says more about the optimiser than about the
head.

Indices: e domain, b radius, p parameter.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from hessalign._numbers import check_count, check_positive
from hessalign._shapes import Float
from hessalign.heads.samples import HeadSamples


@final
@dataclass(frozen=True)
class PublishedAttack:
    """Settings of the published attack; the defaults are those for image data sets.

    Attributes:
        learning_rate: Of Adam (5e-5 for image data sets, 1e-3 for MNIST).
        batch_size: Samples of each domain per step.
        epochs: Each has int(smallest domain / batch size + 1) steps.
    """

    learning_rate: float = 5e-5
    batch_size: int = 32
    epochs: int = 10

    def __post_init__(self) -> None:
        check_positive(self.learning_rate, "learning_rate")
        for name in ("batch_size", "epochs"):
            check_count(getattr(self, name), name)

    def steps(self, data: HeadSamples) -> int:
        """Steps in all.

        Args:
            data: The samples.

        Returns:
            The number of steps.

        Example:
            >>> from hessalign.curvature import make_loss
            >>> from hessalign.heads.samples import make_samples
            >>> z, y = torch.zeros(1331, 2), torch.zeros(1331)
            >>> PublishedAttack().steps(make_samples(z, y, None, make_loss("squared")))
            420
        """
        return self.epochs * int(min(data.domains.sizes) / self.batch_size + 1)

    def reach(self, data: HeadSamples) -> float:
        """About how far Adam can get, learning rate · steps · √p.

        Args:
            data: The samples.

        Returns:
            The distance; larger radii do not bind.
        """
        return self.learning_rate * self.steps(data) * math.sqrt(data.num_parameters)


def published_attack(
    data: HeadSamples,
    centre: Float[Tensor, " p"],
    radii: tuple[float, ...],
    settings: PublishedAttack,
    generator: torch.Generator,
) -> Float[Tensor, "b p"]:
    r"""Ascend the gap between the worst and the best domain of each minibatch.

    Every radius is attacked from the centre with the same minibatches, drawn with replacement; each
    step descends $\min_e L_e - \max_e L_e$ and is projected on $\|\theta - \theta^*\| \le \delta$.

    Returns:
        The head after the last step, for each radius.
    """
    dtype = data.features.dtype
    origin = centre.to(dtype)
    points = origin.repeat(len(radii), 1)
    limits = torch.tensor(radii, dtype=dtype, device=origin.device).unsqueeze(1)
    optimiser = torch.optim.Adam([points], lr=settings.learning_rate)
    for _ in range(settings.steps(data)):
        batch = data.batch(_draw(data, settings.batch_size, generator))
        every = [batch.risk_and_gradient(points, e) for e in range(len(data.ids))]
        risks = torch.stack([risk for risk, _ in every])
        slopes = torch.stack([slope for _, slope in every])
        rows = torch.arange(len(radii), device=origin.device)
        points.grad = slopes[risks.argmin(0), rows] - slopes[risks.argmax(0), rows]
        optimiser.step()
        move = points - origin
        distance = move.norm(dim=1, keepdim=True)
        points.copy_(torch.where(distance > limits, origin + limits / distance * move, points))
    return points.detach()


def _draw(data: HeadSamples, size: int, generator: torch.Generator) -> tuple[Tensor, ...]:
    device = data.features.device
    return tuple(
        torch.randint(n, (size,), generator=generator, device=generator.device).to(device)
        for n in data.domains.sizes
    )
