"""A diagnosis as one page that opens anywhere: no network, no script."""

from __future__ import annotations

from hessalign.diagnosis import Diagnosis
from hessalign.diagnosis.report.figures import diagnosis_sections
from hessalign.report.page import render_page


def render_diagnosis_page(diagnosis: Diagnosis) -> str:
    """A diagnosis as HTML."""
    return render_page(
        __package__,
        "diagnosis.html.j2",
        f"Diagnosis of {diagnosis.name}",
        footnote=f", seed {diagnosis.seed}",
        diagnosis=diagnosis,
        cards=_cards(diagnosis),
        sections=diagnosis_sections(diagnosis),
    )


def _cards(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    """What stands out: a word or number each, and what it is."""
    odd, holdout, crossing = (
        diagnosis.reading.odd_one_out,
        diagnosis.holdout,
        diagnosis.crossing,
    )
    beyond_noise = int((diagnosis.distances.hessian.low.triu(1) > 0).sum())
    pairs = len(diagnosis.domains) * (len(diagnosis.domains) - 1) // 2
    cards = [
        ("–" if odd is None else diagnosis.domains[odd], "odd one out"),
        (f"{beyond_noise} of {pairs}", "pairs of domains whose Hessians differ beyond noise"),
    ]
    if holdout is not None:
        cards.append((f"{100 * holdout.plain:.1f} %", "right on an unseen domain, plain head"))
        if holdout.gain is not None:
            cards.append((f"{100 * holdout.gain[0]:+.1f}", "points by aligning the head"))
    if crossing is not None and crossing.correlation is not None:
        text = f"rank correlation of distance and loss (p = {crossing.p_value:.2f})"
        cards.append((f"{crossing.correlation:+.2f}", text))
    return cards
