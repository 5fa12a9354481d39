"""By how much a method reduces the dispersion of each attribute of Table 1, against a reference."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Final, Literal, final

import torch

from hessalign.alignment.attribute_dispersion import AttributeDispersion, attribute_dispersions
from hessalign.bench.runs.run import TrainedHead
from hessalign.paper.figures import ratio_text

Domains = Literal["sources", "all"]
"""Which domains are compared: those trained on, or the unseen one too."""

_Attributes = Mapping[str, AttributeDispersion]
"""All attributes of one trained head."""

THRESHOLD: Final = 0.8
"""A ratio below this, or above its inverse, counts as a change if all trials agree on the side."""


UNCLEAR: Final = 0.5
"""Where chance explains more of the reference's dispersion than this, ratios are not judged."""

Change = Literal["reduced", "raised", "unchanged", "unclear"]


@final
@dataclass(frozen=True)
class Reduction:
    """Ratios of dispersions to the reference's, over trials.

    Attributes:
        mean: Their geometric mean.
        low: The smallest of a trial.
        high: The largest of a trial.
    """

    mean: float
    low: float
    high: float

    @property
    def change(self) -> Change:
        """What the ratios say together."""
        if self.mean < THRESHOLD and self.high < 1:
            return "reduced"
        if self.mean > 1 / THRESHOLD and self.low > 1:
            return "raised"
        return "unchanged"

    def __str__(self) -> str:
        text = ratio_text(self.mean)
        if self.low == self.high:
            return text
        return f"{text} [{ratio_text(self.low)}, {ratio_text(self.high)}]"


def measure(trained: TrainedHead, domains: Domains) -> _Attributes:
    """The dispersions of a head's attributes, between some of its domains."""
    chosen = trained.sources if domains == "sources" else tuple(range(len(trained.names)))
    rows = torch.isin(trained.domain, torch.tensor(chosen))
    return attribute_dispersions(
        trained.z[rows],
        trained.logits[rows],
        trained.y[rows],
        trained.domain[rows],
        loss=trained.loss,
    )


def reductions(
    pairs: Mapping[int, Sequence[tuple[_Attributes, _Attributes]]], *, relative: bool
) -> dict[str, Reduction]:
    """Ratios of a method's dispersions to the reference's: geometric means over heads, by trial."""
    first = next(iter(pairs.values()))[0][0]
    found = {}
    for name in first:
        trials = [
            fmean(_log_ratio(ours[name], reference[name], relative) for ours, reference in group)
            for group in pairs.values()
        ]
        found[name] = Reduction(*(math.exp(x) for x in (fmean(trials), min(trials), max(trials))))
    return found


def _log_ratio(ours: AttributeDispersion, reference: AttributeDispersion, relative: bool) -> float:
    """Logarithm of a ratio of dispersions; one of 0 counts as the smallest positive number."""
    tiny = math.ulp(0.0)
    top, bottom = (
        max(each.relative if relative else each.dispersion, tiny) for each in (ours, reference)
    )
    return math.log(top) - math.log(bottom)


def chance_share(heads: Sequence[_Attributes]) -> dict[str, float]:
    """How much of the dispersion finite samples explain: mean chance part over mean dispersion."""
    shares = {}
    for name in heads[0]:
        whole = math.fsum(head[name].dispersion for head in heads)
        part = math.fsum(head[name].chance for head in heads)
        shares[name] = part / whole if whole > 0 else math.nan
    return shares


def judged(ratio: Reduction, chance: float, noise: Reduction | None = None) -> Change:
    """What a ratio says, if it can say anything.

    Args:
        ratio: The ratio.
        chance: The share of the reference's dispersion that finite samples explain.
        noise: The ratio where nothing but the start differs; a smaller change is none.

    Returns:
        The change.

    Example:
        >>> ratio, noise = Reduction(0.5, 0.5, 0.5), Reduction(3.0, 3.0, 3.0)
        >>> judged(ratio, 0.2), judged(ratio, 0.9), judged(ratio, 0.2, noise)
        ('reduced', 'unclear', 'unchanged')
    """
    if not chance <= UNCLEAR:
        return "unclear"
    if noise is not None and abs(math.log(ratio.mean)) <= abs(math.log(noise.mean)):
        return "unchanged"
    return ratio.change


def plain(found: Mapping[str, Reduction], changes: Mapping[str, Change]) -> dict[str, Any]:
    """Reductions as plain values, with what they say."""
    return {
        name: {"ratio": each.mean, "low": each.low, "high": each.high, "change": changes[name]}
        for name, each in found.items()
    }
