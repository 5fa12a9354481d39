"""What a diagnosis says in plain words.

Each rule looks at numbers of one section and says nothing where they say nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

import torch

from hessalign.diagnosis.comparison import AttributeReport, DistanceReport, ShiftReport
from hessalign.diagnosis.distances import DistanceMatrix
from hessalign.diagnosis.draw import Draw
from hessalign.diagnosis.head import HeadReport
from hessalign.diagnosis.holdout import HoldoutReport
from hessalign.diagnosis.single_heads import CrossingReport

_STANDS_OUT: Final = 1.5
"""A domain is the odd one out if it is this many times as far from the others as they are apart."""

_MOSTLY: Final = 0.5
_UNSURE: Final = 0.05
_HINDSIGHT: Final = 0.02
"""A gain from this on that only the domain held out could have shown is mentioned."""

_CLOSE_IN_LABELS: Final = 0.02  # total variation distance up to which class shares count as alike


@final
@dataclass(frozen=True)
class Reading:
    """A diagnosis in plain words.

    Attributes:
        odd_one_out: Position of the domain that stands out; None if there is none.
        summary: What was found.
        can_fix: What aligning can do here.
        cannot_fix: What it cannot, and what would.
    """

    odd_one_out: int | None
    summary: tuple[str, ...]
    can_fix: tuple[str, ...]
    cannot_fix: tuple[str, ...]


def read(
    draw: Draw,
    head: HeadReport,
    distances: DistanceReport,
    attributes: AttributeReport,
    shift: ShiftReport,
    holdout: HoldoutReport | None,
    crossing: CrossingReport | None,
) -> Reading:
    """Say in words what the sections say in numbers."""
    odd, ratio = odd_one_out(distances.hessian)
    summary = [_pairs_beyond_noise(distances)]
    if odd is not None:
        far = f"and is on average {ratio:.1f} times as far from them as they are from one another"
        if ratio == float("inf"):
            far = "while theirs are as alike as sampling can tell"
        summary.append(
            f"“{draw.domain_names[odd]}” is the odd one out: its Hessian differs from every "
            f"other domain's, {far}."
        )
    elif len(draw.domain_names) > 2:
        summary.append("No domain stands out from all others.")
    summary += [_attributes(attributes), _labels(distances, shift)]
    if not head.at_optimum:
        summary.append(_not_optimal(head))
    if holdout is not None:
        summary.append(_holdout(draw, holdout))
    if crossing is not None:
        summary.append(_crossing(crossing))
    can, cannot = _remedies(draw, distances, shift, holdout)
    return Reading(odd, tuple(text for text in summary if text), can, cannot)


def attribute_title(name: str) -> str:
    """An attribute of Table 1 as people write it, for example logit×feature."""
    return name.replace("_", "×")


def odd_one_out(distances: DistanceMatrix) -> tuple[int | None, float]:
    """The domain, if any, far from the others, and the ratio to their distances beyond noise."""
    # Noise makes one of several domains the farthest, whatever they are. The odd one out therefore
    # has to differ from each of the others by more than sampling explains.
    beyond = distances.beyond
    count = len(beyond)
    if count < 3:
        return None, 0.0
    farthest = int(beyond.sum(1).argmax())
    others = torch.arange(count) != farthest
    own = float(beyond[farthest, others].mean())
    rest = float(beyond[others][:, others].sum()) / ((count - 1) * (count - 2))
    ratio = own / rest if rest > 0 else float("inf") if own > 0 else 0.0
    differs = bool((distances.low[farthest, others] > 0).all())
    return (farthest if differs and ratio >= _STANDS_OUT else None), ratio


def _differ(distances: DistanceMatrix) -> bool:
    """Whether some pair differs by more than sampling explains."""
    return bool((distances.low > 0).any())


def _pairs_beyond_noise(distances: DistanceReport) -> str:
    upper = torch.ones_like(distances.hessian.low).triu(1) > 0
    pairs = int(upper.sum())
    hessian = int((distances.hessian.low[upper] > 0).sum())
    gradient = int((distances.gradient.low[upper] > 0).sum())
    if hessian == gradient == 0:
        return (
            "No pair of domains differs by more than sampling explains, neither in Hessian nor in "
            "gradient."
        )
    return (
        f"Of {pairs} pair{'s' if pairs > 1 else ''} of domains {hessian} "
        f"differ{'s' if hessian == 1 else ''} in Hessian and {gradient} in gradient by more than "
        "sampling explains."
    )


def _attributes(attributes: AttributeReport) -> str:
    names = [name for name, found in attributes.distances.items() if _differ(found)]
    relative = {name: attributes.relative[name] for name in names if name != "loss"}
    if not relative:
        return ""
    largest = max(relative, key=lambda name: relative[name])
    about = (
        "the inputs themselves differ"
        if largest in {"feature", "covariance"}
        else "the head errs in different ways"
        if largest in {"error", "error_feature"}
        else "the head is unsure in different places"
    )
    return (
        f"Of the attributes of Table 1, domains differ most in {attribute_title(largest)} "
        f"({100 * relative[largest]:.0f} % of the size it has in a single sample): {about}."
    )


def _labels(distances: DistanceReport, shift: ShiftReport) -> str:
    if not (_differ(distances.hessian) or _differ(distances.gradient)):
        return ""
    widest = max(pair.label_distance for pair in shift.pairs)
    if widest <= _CLOSE_IN_LABELS:
        return "Class shares are alike everywhere: this is feature shift, not label shift."
    label = _label_share(distances, shift)
    if label is None:
        return ""
    if label >= _MOSTLY:
        return (
            f"Class shares differ by up to {100 * widest:.0f} %, and that explains "
            f"{100 * label:.0f} % of the gradient distances: this is mostly label shift."
        )
    return (
        f"Class shares differ by up to {100 * widest:.0f} %, which explains {100 * label:.0f} % of "
        "the gradient distances; the rest is feature shift and noise."
    )


def _label_share(distances: DistanceReport, shift: ShiftReport) -> float | None:
    """Mean share of label shift over the pairs whose gradients differ; None if none do."""
    low = distances.gradient.low
    shares = [entry.gradient.label for entry in shift.pairs if float(low[entry.pair]) > 0]
    return sum(shares) / len(shares) if shares else None


def _not_optimal(head: HeadReport) -> str:
    gain = "" if head.best is None else f" (refitting it takes the loss to {head.best:.3g})"
    return (
        f"The head is not at its optimum: its gradient is {100 * head.relative:.2g} % of a single "
        f"sample's at zero, its loss {head.objective:.3g}{gain}. Hessian distances still describe "
        "it, but Theorem 1 is about heads near an optimum."
    )


def _holdout(draw: Draw, holdout: HoldoutReport) -> str:
    worst = min(holdout.domains, key=lambda entry: entry.plain)
    text = (
        f"On a domain it has not seen, a plain head is right in {100 * holdout.plain:.1f} % of "
        f"cases, least often on “{draw.domain_names[worst.domain]}” ({100 * worst.plain:.1f} %)."
    )
    if holdout.gain is None:
        return text
    gain, low, high = (100 * value for value in holdout.gain)
    text += f" Aligning changes that by {gain:+.1f} points (95 %: {low:+.1f} to {high:+.1f})."
    best = max(worst.others)
    if worst.aligned is not None and best > max(worst.aligned, worst.plain) + _HINDSIGHT:
        text += (
            f" With another strength of alignment it would have been {100 * best:.1f} % there, but "
            "the other domains do not say so."
        )
    return text


def _crossing(crossing: CrossingReport) -> str:
    if crossing.correlation is None or crossing.p_value is None:
        return ""
    found = f"(rank correlation {crossing.correlation:+.2f}, p = {crossing.p_value:.2f})"
    worse = "the further apart two domains' Hessians are, the worse one's head does on the other"
    if crossing.p_value <= _UNSURE:
        return f"Over {crossing.pairs} pairs, {worse} {found}."
    if crossing.correlation >= _MOSTLY:
        return (
            f"It looks as if {worse}, but {crossing.pairs} pairs may show that by chance {found}."
        )
    return (
        f"Over {crossing.pairs} pairs there is no sign that Hessian distance foretells the loss on "
        f"another domain {found}."
    )


def _remedies(
    draw: Draw, distances: DistanceReport, shift: ShiftReport, holdout: HoldoutReport | None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    can, cannot = [], []
    gain = None if holdout is None else holdout.gain
    if gain is not None and gain[1] > 0:
        can.append(
            "An aligned head on these features does better on unseen domains than a plain one; "
            "training the features with the penalty may add to that."
        )
    elif gain is not None and gain[2] < 0:
        cannot.append(
            "An aligned head on these features does worse on unseen domains: what differs between "
            "domains seems to be needed for the label."
        )
    elif gain is not None:
        cannot.append(
            "An aligned head on these features does no better than a plain one, within the "
            "accuracy of this test. If features can be trained, aligning them may still do more."
        )
    if _differ(distances.hessian) or _differ(distances.gradient):
        can.append(
            "There are differences beyond noise in what the penalty acts on: curvature and errors "
            "of the head."
        )
    else:
        cannot.append(
            "There is nothing beyond noise to align. More samples of each domain would show "
            "smaller differences."
        )
    if (_label_share(distances, shift) or 0.0) >= _MOSTLY:
        cannot.append(
            "Label shift: aligning does not change how frequent classes are. Weight or resample "
            "classes, or correct the bias for the class shares of the new domain."
        )
    if lone_classes(draw):
        cannot.append(
            "Classes that only one domain has: nothing can be aligned for them. Collect them "
            "elsewhere."
        )
    return tuple(can), tuple(cannot)


def lone_classes(draw: Draw) -> dict[int, int]:
    """Classes seen in one domain only, with that domain."""
    seen = torch.zeros(len(draw.class_names), len(draw.domain_names), dtype=torch.bool)
    seen[draw.y, draw.domain] = True
    alone = (seen.sum(1) == 1).nonzero().squeeze(1).tolist()
    return {label: int(seen[label].nonzero()[0]) for label in alone}
