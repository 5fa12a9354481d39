"""A diagnosis as one page that opens anywhere: no network, no script."""

from __future__ import annotations

from html import escape

from hessalign._version import __version__
from hessalign.diagnosis import Diagnosis
from hessalign.diagnosis.report.figures import (
    attributes_section,
    bounds_section,
    contributions_section,
    crossing_section,
    distances_section,
    holdout_section,
    shift_section,
)
from hessalign.diagnosis.report.text import HEAD_COLUMNS, head_rows, number
from hessalign.report.page_parts import bullets, page, paragraph, section, table
from hessalign.report.svg import shortened


def render_diagnosis_page(diagnosis: Diagnosis) -> str:
    """A diagnosis as HTML.

    Args:
        diagnosis: The diagnosis.

    Returns:
        The page, complete in itself.
    """
    parts = [
        _header(diagnosis),
        _reading(diagnosis),
        distances_section(diagnosis),
        attributes_section(diagnosis),
        contributions_section(diagnosis),
        shift_section(diagnosis),
        holdout_section(diagnosis),
        crossing_section(diagnosis),
        bounds_section(diagnosis),
        _head(diagnosis),
        f"<footer>Made by hessalign {escape(__version__)}, seed {diagnosis.seed}. This page holds "
        "everything it shows: no scripts, no network.</footer>",
    ]
    return page(f"Diagnosis of {diagnosis.name}", "\n".join(part for part in parts if part))


def _header(diagnosis: Diagnosis) -> str:
    odd = diagnosis.reading.odd_one_out
    upper = diagnosis.distances.hessian.low.triu(1)
    pairs = len(diagnosis.domains) * (len(diagnosis.domains) - 1) // 2
    cards = [
        ("–" if odd is None else diagnosis.domains[odd], "odd one out"),
        (
            f"{int((upper > 0).sum())} of {pairs}",
            "pairs of domains whose Hessians differ beyond noise",
        ),
    ]
    if diagnosis.holdout is not None:
        cards.append(
            (f"{100 * diagnosis.holdout.plain:.1f} %", "right on an unseen domain, plain head")
        )
        gain = diagnosis.holdout.gain
        if gain is not None:
            cards.append((f"{100 * gain[0]:+.1f}", "points by aligning the head"))
    if diagnosis.crossing is not None and diagnosis.crossing.correlation is not None:
        cards.append(
            (
                f"{diagnosis.crossing.correlation:+.2f}",
                f"rank correlation of distance and loss (p = {diagnosis.crossing.p_value:.2f})",
            )
        )
    shown = "".join(
        f"<li><b{_long(big)}>{escape(shortened(big, 60))}</b><span>{escape(small)}</span></li>"
        for big, small in cards
    )
    counts = (
        f"{len(diagnosis.domains)} domains, {len(diagnosis.classes)} classes, "
        f"{diagnosis.features:,} features. {diagnosis.how}"
    )
    notes = f'<div class="note">{bullets(diagnosis.notes)}</div>' if diagnosis.notes else ""
    return (
        f"<header><h1>How different are the domains of {escape(diagnosis.name)}?</h1>"
        f'{paragraph(counts)}</header>\n<ul class="cards">{shown}</ul>\n{notes}'
    )


def _long(text: str) -> str:
    return ' class="long"' if len(text) > 12 else ""


def _reading(diagnosis: Diagnosis) -> str:
    reading = diagnosis.reading
    fixes = ""
    for kind, title, texts in (
        ("can", "What aligning can do here", reading.can_fix),
        ("cannot", "What it cannot", reading.cannot_fix),
    ):
        if texts:
            fixes += f'<div><h3 class="{kind}">{title}</h3>{bullets(texts)}</div>'
    return (
        f'<section class="reading"><h2 style="margin-top:12px">In plain words</h2>'
        f'{bullets(reading.summary)}<div class="fixes">{fixes}</div></section>'
    )


def _head(diagnosis: Diagnosis) -> str:
    head = diagnosis.head
    state = "is at its optimum" if head.at_optimum else "is not at its optimum"
    best = "" if head.best is None else f" Refitted, its mean loss would be {number(head.best)}."
    text = (
        f"The head ({head.origin}) {state}: the gradient of its objective over "
        f"{', '.join(head.domains[:8])}{' and others' if len(head.domains) > 8 else ''} has norm "
        f"{head.gradient_norm:.2g}, {head.relative:.1e} of a single sample's at zero.{best}"
    )
    content = paragraph(text) + table(HEAD_COLUMNS, head_rows(diagnosis))
    return section("The head", content, head.how)
