"""A diagnosis as files: one page that opens anywhere, with no network and no script; and JSON."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any, Final

from torch import Tensor

from hessalign._errors import InputTypeError
from hessalign._version import __version__
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


_LEFT_OUT: Final = frozenset({"parameters"})
"""Fields that are not about the domains."""


def render_diagnosis_json(diagnosis: Diagnosis) -> str:
    """A diagnosis as JSON.

    Returns:
        The text, with a final line end. Matrices are lists of rows, domains in the order of
        `domains`; numbers that are not finite are null.
    """
    holdout = diagnosis.holdout
    extra = {} if holdout is None else {"plain": holdout.plain, "aligned": holdout.aligned}
    content = {"hessalign": __version__, **_plain(diagnosis)}
    if holdout is not None:
        content["holdout"] |= extra
    return json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _plain(value: object) -> Any:  # noqa: ANN401 - JSON is any of several types
    """A value as what JSON knows.

    Returns:
        Dictionaries, lists, strings, numbers, booleans and None.

    Raises:
        InputTypeError: If it is of another type.

    Example:
        >>> import torch
        >>> _plain({"a": (torch.tensor([1.0, float("nan")]), True)})
        {'a': [[1.0, None], True]}
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = (field.name for field in dataclasses.fields(value))
        return {name: _plain(getattr(value, name)) for name in fields if name not in _LEFT_OUT}
    if isinstance(value, Tensor):
        return _plain(value.tolist())
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    raise InputTypeError(f"Expected a value for JSON, got {type(value).__name__}.")
