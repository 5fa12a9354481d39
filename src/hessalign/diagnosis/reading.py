"""What a diagnosis says in plain words: the numbers here, the words in `reading.md.j2`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, final

import torch

from hessalign.diagnosis.comparison import AttributeReport, DistanceReport, ShiftReport
from hessalign.diagnosis.distances import DistanceMatrix
from hessalign.diagnosis.draw import Draw
from hessalign.diagnosis.head import HeadReport
from hessalign.diagnosis.holdout import HoldoutReport
from hessalign.diagnosis.single_heads import CrossingReport
from hessalign.report.page import render_template

# A domain is the odd one out if it is this many times as far from the others as they are apart.
_STANDS_OUT: Final = 1.5


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
    upper = torch.ones_like(distances.hessian.low).triu(1) > 0
    differing = [name for name, found in attributes.distances.items() if _differ(found)]
    relative = {name: attributes.relative[name] for name in differing if name != "loss"}
    facts = {
        "draw": draw,
        "head": head,
        "holdout": holdout,
        "crossing": crossing,
        "odd": odd,
        "ratio": ratio,
        "infinity": float("inf"),
        "pairs": int(upper.sum()),
        "hessian_pairs": int((distances.hessian.low[upper] > 0).sum()),
        "gradient_pairs": int((distances.gradient.low[upper] > 0).sum()),
        "differ": _differ(distances.hessian) or _differ(distances.gradient),
        "attribute": max(relative, key=relative.__getitem__, default=None),
        "relative": relative,
        "widest": max(pair.label_distance for pair in shift.pairs),
        "label": _label_share(distances, shift),
        "worst": holdout and min(holdout.domains, key=lambda entry: entry.plain),
        "gain": holdout and holdout.gain,
        "lone": _lone_classes(draw),
    }
    parts = [_sentences(part, facts) for part in ("summary", "can_fix", "cannot_fix")]
    return Reading(odd, *parts)


def input_notes(draw: Draw, l2: float, focus: tuple[int, ...]) -> tuple[str, ...]:
    """What the reader should know about the input."""
    facts = {"draw": draw, "l2": l2, "focus": focus, "lone": _lone_classes(draw)}
    return _sentences("notes", facts)


def _sentences(part: str, facts: Mapping[str, object]) -> tuple[str, ...]:
    found = render_template(__package__, "reading.md.j2", part=part, title=attribute_title, **facts)
    return tuple(text.removesuffix("\n") for text in re.split(r"(?m)^- ", found)[1:])


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


def _label_share(distances: DistanceReport, shift: ShiftReport) -> float | None:
    """Mean share of label shift over the pairs whose gradients differ; None if none do."""
    low = distances.gradient.low
    shares = [entry.gradient.label for entry in shift.pairs if float(low[entry.pair]) > 0]
    return sum(shares) / len(shares) if shares else None


def _lone_classes(draw: Draw) -> list[tuple[int, int]]:
    """Classes seen in one domain only, with that domain."""
    seen = torch.zeros(len(draw.class_names), len(draw.domain_names), dtype=torch.bool)
    seen[draw.y, draw.domain] = True
    alone = (seen.sum(1) == 1).nonzero().squeeze(1).tolist()
    return [(label, int(seen[label].nonzero()[0])) for label in alone]
