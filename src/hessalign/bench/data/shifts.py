r"""Synthetic domains that differ in one known respect, with a predictor that none of it misleads.

Inputs are x = [c, s]. The label depends on the *core* features c alone, in the same way everywhere;
the *other* features s follow the label, the domain, or neither:

| shift | what differs between domains |
|---|---|
| correlation | s follows the label more often than c does, less often from domain to domain; in the
target it follows the opposite |
| diversity | s follows the label along a direction of each domain's own, another in the target |
| label | how frequent the classes are: class 1 prevails in the sources, class 0 in the target; s is
noise |

The invariant predictor looks at c along the one direction that matters, and its accuracy is the
same in every domain up to the noise of sampling.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, final, get_args

import torch
from torch import Tensor

from hessalign._errors import InputError, check_name
from hessalign._numbers import check_count
from hessalign._shapes import Float, Int

_Shift = Literal["correlation", "diversity", "label"]

_CORE_SIGNAL = 1.0  # distance of the classes' means from 0 along the core direction, in deviations
_OWN_SIGNAL = 2.0  # the same along a domain's own direction, under diversity shift
_TARGET = 2.0  # the place of the target; those of source domains run from 0 to 1
_AGREES = (0.98, 0.86, 0.1)  # how often s follows the label: first and last source domain, target
_PRIORS = (0.95, 0.75, 0.1)  # share of class 1: first and last source domain, target


@final
@dataclass(frozen=True, eq=False)
class SyntheticDomain:
    """Samples of one domain.

    Attributes:
        name: What the domain is called.
        x: Inputs, core features first.
        y: Labels, 0 or 1.
    """

    name: str
    x: Float[Tensor, "n d"]
    y: Int[Tensor, " n"]

    def __len__(self) -> int:
        return len(self.y)


@final
@dataclass(frozen=True, eq=False)
class ShiftedData:
    """Source domains, an unseen target, and the predictor to find.

    Attributes:
        source: The domains to train on.
        target: The domain that is not seen in training.
        weights: The invariant predictor: x @ weights > 0 predicts class 1.
    """

    source: tuple[SyntheticDomain, ...]
    target: SyntheticDomain
    weights: Float[Tensor, " d"]

    def invariant_accuracy(self, domain: SyntheticDomain) -> float:
        """Accuracy of the invariant predictor on a domain, as a fraction."""
        return float(((domain.x @ self.weights > 0).long() == domain.y).double().mean())


def make_shifted_data(
    shift: str,
    seed: int,
    *,
    domains: int = 2,
    samples: int = 500,
    core: int = 5,
    other: int = 5,
    strength: float = 1.0,
) -> ShiftedData:
    r"""Draw domains that differ in one respect.

    Args:
        shift: "correlation", "diversity" or "label".
        seed: Determines everything.
        domains: Source domains.
        samples: Samples of each domain, the target included.
        core: Core features.
        other: Other features.
        strength: How much domains differ: 1 is strong enough to mislead plain training, 0 makes
            all domains and the target alike.

    Returns:
        The domains.

    Raises:
        InputError: If a number is out of range.

    Example:
        >>> data = make_shifted_data("correlation", seed=0, samples=2000)
        >>> round(data.invariant_accuracy(data.target), 1)
        0.8
        >>> follows = (data.target.x[:, 5:].sum(1) > 0).long() == data.target.y
        >>> round(float(follows.double().mean()), 1)
        0.1
    """
    check_name("shift", shift, get_args(_Shift))
    counts = {"domains": domains, "samples": samples, "core": core, "other": other}
    for name, value in counts.items():
        check_count(value, name)
    if not 0 <= strength <= 1:
        raise InputError(f"Expected strength from 0 to 1, got {strength}.")
    generator = torch.Generator().manual_seed(seed)
    direction, common = (torch.randn(n, generator=generator) for n in (core, other))
    direction, common = direction / direction.norm(), common / common.norm()

    def draw(name: str, place: float) -> SyntheticDomain:
        prior = _between(_PRIORS, place, strength) if shift == "label" else 0.5
        y = (torch.rand(samples, generator=generator) < prior).long()
        sign = (2 * y - 1).float().unsqueeze(1)
        c = torch.randn(samples, core, generator=generator) + _CORE_SIGNAL * sign * direction
        s = torch.randn(samples, other, generator=generator)
        if shift == "correlation":
            agrees = _between(_AGREES, place, strength)
            flips = 2 * (torch.rand(samples, 1, generator=generator) < agrees).float() - 1
            s = s / 2 + sign * flips
        elif shift == "diversity":
            own = torch.randn(other, generator=generator)
            own = strength * own / own.norm() + (1 - strength) * common
            s = s + _OWN_SIGNAL * sign * own
        return SyntheticDomain(name, torch.cat([c, s], dim=1), y)

    places = [index / max(1, domains - 1) for index in range(domains)]
    source = tuple(draw(f"source {index}", place) for index, place in enumerate(places))
    weights = torch.cat([direction, torch.zeros(other)])
    return ShiftedData(source, draw("target", _TARGET), weights)


def _between(ends: tuple[float, float, float], place: float, strength: float) -> float:
    """A domain's value; less strength draws all of them to the mean of the sources."""
    first, last, target = ends
    alike = (first + last) / 2
    own = target if place > 1 else first + place * (last - first)
    return alike + strength * (own - alike)
