r"""How much the domains differ in each attribute of Table 1, and how much of that is chance.

An attribute has a value $m_i$ for each sample, for example $r_i \otimes z_i$, and a mean $M_e$ for
each domain. The dispersion of the means has the units of the attribute squared, so it shrinks with
the features whether or not domains come closer. Divided by the mean squared norm of $m_i$ it has
none: it is the share of the attribute's second moment that lies between domains, from 0 to 1. (The
squared norm of $M_e$ would not do: at the optimum of the mean risk the mean error is 0, and of
what is left all is dispersion.)

Means of finite samples differ even where domains do not. Of the dispersion,

$$\frac{E-1}{E^2} \sum_e \frac{\overline{\|m\|^2}_e - \|M_e\|^2}{n_e - 1}$$

is what independent draws add on average (exactly so in expectation, by the variance of a mean).

Indices: e domain, i sample.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from hessalign._shapes import Float, Int
from hessalign.alignment.comparison import dispersion
from hessalign.alignment.moments import Moment
from hessalign.alignment.quantities import TABLE_1, moment
from hessalign.curvature import linear_head


@final
@dataclass(frozen=True)
class AttributeDispersion:
    """One attribute of Table 1 on some samples.

    Attributes:
        dispersion: Mean squared distance of the domains' means to their mean.
        mean_square: Mean over domains of the mean squared norm over samples.
        chance: What finite samples add to the dispersion on average; not a number if a domain has
            one sample.
    """

    dispersion: float
    mean_square: float
    chance: float

    @property
    def relative(self) -> float:
        """The dispersion without its units: the share of the mean square between domains."""
        return self.dispersion / self.mean_square if self.mean_square > 0 else 0.0


def attribute_dispersions(
    z: Float[Tensor, "n d"],
    logits: Tensor,
    y: Tensor,
    domain: Int[Tensor, " n"],
    *,
    loss: str = "cross_entropy",
) -> dict[str, AttributeDispersion]:
    """Measure all attributes of Table 1.

    Args:
        z: Features that enter the head.
        logits: What the head made of them.
        y: Targets.
        domain: The domain of each sample, any integers.
        loss: "cross_entropy", "binary" or "squared".

    Returns:
        By attribute, in the order of Table 1.

    Example:
        >>> z, y = torch.tensor([[1.0], [1.0], [3.0], [3.0]]), torch.tensor([0, 1, 0, 1])
        >>> domain = torch.tensor([0, 0, 1, 1])
        >>> found = attribute_dispersions(z, torch.zeros(4), y, domain, loss="binary")
        >>> found["feature"]
        AttributeDispersion(dispersion=1.0, mean_square=5.0, chance=0.0)
        >>> found["feature"].relative
        0.2
    """
    with torch.no_grad():
        head = linear_head(z, logits, y, domain, loss=loss)
        return {name: _measure(moment(head, name)) for name in TABLE_1}


def _measure(attribute: Moment) -> AttributeDispersion:
    squares = attribute.domains.weights.averaging @ attribute.squared_norms()
    return AttributeDispersion(
        max(0.0, float(dispersion(attribute.inner()))),
        float(squares.mean()),
        float(attribute.chance().clamp(min=0)),
    )
