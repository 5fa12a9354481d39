"""Everything at once: how different domains are, in what, and what follows.

Indices: e domain, n sample, d feature, k output.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations, count
from typing import Final, final

import torch
from torch import Tensor, nn

from hessalign._errors import check_name
from hessalign._numbers import check_positive
from hessalign._shapes import Float, Int
from hessalign.curvature import make_loss
from hessalign.curvature.domains import DomainLike
from hessalign.curvature.inputs import domain_ids
from hessalign.diagnosis.causes import CauseReport, cause_report
from hessalign.diagnosis.comparison import (
    AttributeReport,
    ContributionReport,
    DistanceReport,
    ShiftReport,
    attribute_report,
    contribution_report,
    distance_report,
    shift_report,
)
from hessalign.diagnosis.distances import SpectralReport, make_groups, spectral_report
from hessalign.diagnosis.draw import check_names, draw_samples, explain
from hessalign.diagnosis.heads import (
    BoundReport,
    CrossingReport,
    HeadReport,
    bound_report,
    crossing_report,
    fit_single_heads,
    make_head,
)
from hessalign.diagnosis.pair_sums import combine, pair_sums
from hessalign.diagnosis.remedies import RemedyModels, RemedyReport, remedy_report
from hessalign.diagnosis.transfer import NUMBERS, Sites, TransferReport, transfer_report
from hessalign.diagnosis.verdict import Verdict, input_notes, make_verdict
from hessalign.heads.samples import check_l2

_FOCUS: Final = 8  # domains that are looked at one by one, at most
_EVIDENCE_L2: Final = 1e-2  # of heads at which domains are compared

_STAGES: Final = 9


@final
@dataclass(frozen=True, eq=False)
class Diagnosis:
    """How different some domains are, in what, and what follows.

    Attributes:
        name: What the data are called.
        domains: Names of the domains.
        classes: Names of the classes.
        feature_names: Names of the features; none if none were given.
        samples: Samples drawn from each domain.
        available: Samples each domain has.
        features: How many features the head sees.
        seed: Of every draw.
        focus: Positions of the domains that were looked at one by one: all, or a few of many.
        head: The head at which domains are compared.
        distances: Hessian and gradient distances, Frobenius norm.
        spectral: Hessian distances, spectral norm.
        attributes: Distances in the attributes of Table 1.
        contributions: Classes and samples the distances come from.
        shift: Label shift against feature shift.
        transfer: Will it hold on a site that it has not seen; None without an L2 term.
        causes: Why not.
        remedies: What helps; likewise.
        crossing: Whether Hessian distance foretells the loss on another domain; None with fewer
            than three domains, or without an L2 term.
        bounds: Theorem 1 for pairs of domains; None without an L2 term.
        notes: What the reader should know about the input.
        verdict: The three answers in plain words.
        how: How samples were drawn and scaled.
    """

    name: str
    domains: tuple[str, ...]
    classes: tuple[str, ...]
    feature_names: tuple[str, ...]
    samples: tuple[int, ...]
    available: tuple[int, ...]
    features: int
    seed: int
    focus: tuple[int, ...]
    head: HeadReport
    distances: DistanceReport
    spectral: SpectralReport
    attributes: AttributeReport
    contributions: ContributionReport
    shift: ShiftReport
    transfer: TransferReport | None
    causes: CauseReport
    remedies: RemedyReport | None
    crossing: CrossingReport | None
    bounds: BoundReport | None
    notes: tuple[str, ...]
    verdict: Verdict
    how: str


def diagnose(
    z: Float[Tensor, "n d"],
    y: Int[Tensor, " n"],
    domain: DomainLike,
    *,
    head: nn.Linear | Tensor | None = None,
    trained_on: Sequence[int] | None = None,
    loss: str = "cross_entropy",
    l2: float | None = None,
    tolerance: float = 1e-2,
    samples: int | None = None,
    scale: bool | None = None,
    seed: int = 0,
    name: str = "data",
    domain_names: Sequence[str] | None = None,
    class_names: Sequence[str] | None = None,
    feature_names: Sequence[str] | None = None,
    report: Callable[[str, int, int], None] = lambda stage, done, total: None,
) -> Diagnosis:
    """How different are these domains, in what, and will a head trained on some serve another?

    Args:
        z: Features that enter the head, NaN where a value is missing.
        y: Labels, integers from 0.
        domain: The domain of each sample, any integers; or what `domain_layout` takes or gives.
        head: A trained linear head (a layer, or its matrix with the bias last); by default one is
            fitted.
        trained_on: Positions of the domains a given head was trained on, in the order of their
            ids; all by default. Its gradient is measured there.
        loss: "cross_entropy", or "binary" for a head with a single logit.
        l2: The weight of the L2 term of every fit; by default 0.01 for the heads at which domains
            are compared, and scikit-learn's 1 / samples for models that are tested. With 0, heads
            of single domains need not exist, and what needs them is left out.
        tolerance: Excess risk of a nearly optimal head, for the transfer bound.
        samples: Samples of each domain to look at, at most; by default 6,000 in all, and more
            for models that are tested.
        scale: Whether to give each feature mean 0 and variance 1; by default if the head is fitted
            here. A given head wants its features as they are.
        seed: Of every draw.
        name: What the data are called.
        domain_names: Names of the domains in the order of their ids.
        class_names: Names of the classes.
        feature_names: Names of the features, by which differences between sites are told.
        report: Called with the stage that begins, its number, and how many there are.

    Returns:
        The diagnosis; `hessalign diagnose` shows it as text, JSON or a page. An argument out of
        range, one domain or class only, or no best head to be fitted raise an InputError.

    Example:
        >>> from hessalign.bench.data import make_shifted_data
        >>> data = make_shifted_data("correlation", seed=0, domains=3, samples=200)
        >>> x = torch.cat([part.x for part in (*data.source, data.target)])
        >>> y = torch.cat([part.y for part in (*data.source, data.target)])
        >>> found = diagnose(x, y, torch.arange(4).repeat_interleave(200))
        >>> found.verdict.holds, found.verdict.headline[:26]
        ('no', 'Not everywhere: at “3” a m')
    """
    check_name("loss of a diagnosis", loss, ("cross_entropy", "binary"))
    check_positive(tolerance, "tolerance")
    l2 = None if l2 is None else check_l2(l2)
    evidence_l2 = _EVIDENCE_L2 if l2 is None else l2
    number = count()

    def begin(stage: str) -> None:
        report(stage, next(number), _STAGES)

    begin("drawing samples")
    features = () if feature_names is None else tuple(map(str, feature_names))
    scaled = head is None if scale is None else scale
    draw = draw_samples(
        z,
        y,
        domain,
        domain_names=domain_names,
        class_names=class_names,
        samples=samples,
        scale=scaled,
        marks=head is None,
        seed=seed,
    )
    if features:
        check_names(features, range(z.shape[1]), "feature")
    head_loss = make_loss(loss)
    begin("fitting the head")
    head_report, statistics = make_head(draw, head_loss, head, evidence_l2, trained_on)
    begin("comparing all pairs of samples")
    groups = make_groups(draw.group_domain, draw.group.bincount(), seed)
    sums = pair_sums(draw, statistics)
    distances = distance_report(sums, groups, statistics.bias)
    attributes = attribute_report(sums, groups, draw, statistics)
    focus = _focus_domains(distances.hessian.beyond)
    pairs = list(combinations(focus, 2))
    contributions = contribution_report(sums, draw, pairs)
    shift = shift_report(sums, draw, pairs)
    begin("spectral distances")
    spectral = spectral_report(draw, statistics, groups, focus)
    begin("heads of single domains")
    singles = crossing = bounds = transfer = remedies = None
    if evidence_l2 > 0:
        singles = fit_single_heads(draw, head_loss, evidence_l2, focus)
    if singles is not None and len(focus) > 2:
        inner = combine(sums.groups, bias=statistics.bias)["hessian"]
        crossing = crossing_report(draw, singles, inner, groups, seed)
    begin("transfer bounds")
    if singles is not None:
        bounds = bound_report(draw, singles, head_loss, evidence_l2, tolerance)
    begin("naming differences")
    seen, drawn = draw.y.unique(return_inverse=True)
    causes = cause_report(draw.raw, drawn, draw.domain, classes=max(2, len(seen)), seed=seed)
    begin("leaving one site out")
    if evidence_l2 > 0:
        ids = domain_ids(domain, z)
        if samples is not None:
            z, y, ids = draw.raw, draw.y, draw.domain
        z = z.detach() if z.dtype == torch.float64 else z.detach().float()
        (present, y), (_, where) = (each.unique(return_inverse=True) for each in (y, ids))
        sites = Sites(z, y, where, len(present), l2, seed).fewer(NUMBERS)
        transfer = transfer_report(sites, focus)
        begin("trying remedies")
        remedies = remedy_report(RemedyModels(sites), focus)
    report("done", _STAGES, _STAGES)
    return Diagnosis(
        name,
        draw.domain_names,
        draw.class_names,
        features,
        draw.sizes,
        draw.available,
        draw.raw.shape[1],
        seed,
        focus,
        head_report,
        distances,
        spectral,
        attributes,
        contributions,
        shift,
        transfer,
        causes,
        remedies,
        crossing,
        bounds,
        input_notes(draw, evidence_l2, focus, at_optimum=head_report.at_optimum),
        make_verdict(draw.domain_names, transfer, causes, remedies, features),
        explain("samples", draw=draw, seed=seed),
    )


def _focus_domains(distance: Float[Tensor, "e e"]) -> tuple[int, ...]:
    """All domains, or of many a few that are spread evenly from the nearest to the farthest."""
    if len(distance) <= _FOCUS:
        return tuple(range(len(distance)))
    order = distance.mean(1).argsort(stable=True)
    places = torch.linspace(0, len(distance) - 1, _FOCUS).round().long()
    return tuple(sorted(order[places].tolist()))
