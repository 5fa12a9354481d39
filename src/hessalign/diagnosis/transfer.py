"""Will it hold on a site that it has not seen: every site left out in turn.

Indices: n sample, d feature, r replicate, c class.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from hessalign._shapes import Float, Int
from hessalign.diagnosis.answers import SiteTransfer, TransferReport
from hessalign.diagnosis.draw import explain
from hessalign.diagnosis.refits import RECIPE, Sites
from hessalign.diagnosis.scores import Scores, judge, mean_scores, scores

_FOLDS: Final = 5
_FEWER: Final = 3  # folds of a site with more numbers than the next
_LARGE: Final = 1 << 22
_LEAST: Final = 10  # samples of a site for a model of its own


def transfer_report(
    z: Float[Tensor, "n d"],
    y: Int[Tensor, " n"],
    domain: Int[Tensor, " n"],
    *,
    classes: int,
    l2: float | None = None,
    seed: int = 0,
    sites: Sequence[int] | None = None,
) -> TransferReport:
    """How a plain model does on each site, fitted to all others, and fitted to the site itself.

    Args:
        z: Features as they came, NaN where missing.
        y: Labels from 0.
        domain: The site of each sample, from 0.
        classes: How many classes there are.
        l2: The weight of the L2 term over the mean loss; by default 1 / samples, which is
            scikit-learn's C = 1.
        seed: Of folds and replicates.
        sites: Sites to leave out in turn, all by default; all others train.

    Returns:
        The report.

    Example:
        >>> y, domain = torch.arange(60) % 2, torch.arange(60) // 20
        >>> z = torch.stack([y + torch.linspace(-0.4, 0.4, 60), domain * 1.0], dim=1)
        >>> report = transfer_report(z, y, domain, classes=2)
        >>> [entry.unseen["accuracy"].value for entry in report.sites]
        [1.0, 1.0, 1.0]
    """
    return report_transfer(Sites(z, y, domain, classes, l2, seed), sites)


def report_transfer(data: Sites, sites: Sequence[int] | None = None) -> TransferReport:
    """The same for sites whose models others use, too."""
    generator = torch.Generator().manual_seed(data.seed)
    l2 = data.l2
    chosen = range(data.count) if sites is None else sites
    found = [_leave_out(data, e, generator) for e in chosen]
    unseen = [pair for _, pair, _ in found]
    pairs = [(pair, own) for _, pair, own in found if own is not None]
    within = [own for _, own in pairs]
    drops = [own.less(pair) for pair, own in pairs]
    how = explain(
        "transfer",
        recipe=RECIPE.format("" if l2 is None else f"C=1 / ({l2:g} * len(y)), "),
        l2=l2,
        folds=_FOLDS,
        replicates=data.weights.shape[1],
        least=_LEAST,
    )
    return TransferReport(
        tuple(entry for entry, _, _ in found),
        mean_scores(unseen).estimates(),
        mean_scores(within).estimates() if within else None,
        mean_scores(drops).estimates(difference=True) if drops else None,
        1 / data.classes,
        how,
    )


def _leave_out(
    data: Sites, e: int, generator: torch.Generator
) -> tuple[SiteTransfer, Scores, Scores | None]:
    """What there is to say of a site, and the scores behind it."""
    rows = data.rows([e])
    y = data.y[rows]
    model = data.unseen(e)
    # The same replicates of the test samples judge both models.
    state = generator.get_state()
    said = model.answer(data.z[rows])
    unseen = judge(said[0], said[1:], y, generator)
    within = None
    folds = _folds(y, data.z.shape[1])
    if folds:
        own = data.cross_validated(rows, folds)
        within = judge(own[0], own[1:], y, torch.Generator().set_state(state))
    guess = scores(model.shares.expand(1, len(y), -1), y)["log_loss"]
    entry = SiteTransfer(
        e,
        len(y),
        unseen.estimates(),
        within and within.estimates(),
        within and within.less(unseen).estimates(difference=True),
        float(y.bincount().max()) / len(y),
        float(guess),
    )
    return entry, unseen, within


def _folds(y: Int[Tensor, " n"], features: int) -> int:
    """How many folds a site's samples allow: every one has both of its commonest classes."""
    second = int(y.bincount(minlength=2).sort(descending=True).values[1])
    most = _FOLDS if len(y) * features <= _LARGE else _FEWER
    return min(most, second) if len(y) >= _LEAST and second > 1 else 0
