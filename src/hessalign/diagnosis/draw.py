"""The samples a diagnosis looks at: drawn, scaled, and dealt into groups.

Indices: e domain, n sample, d feature, w column of the head, g group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

import torch
from torch import Tensor

from hessalign._errors import InputError, InputTypeError
from hessalign._numbers import check_count
from hessalign._protocol import LARGEST_SEED
from hessalign._shapes import Float, Int
from hessalign.curvature.domains import DomainLike
from hessalign.curvature.inputs import check_dense, check_features, found_and_remedy, read_domains
from hessalign.curvature.losses import Binary, HeadLoss
from hessalign.diagnosis.preparation import first_copies, fit_preparation
from hessalign.heads.samples import (
    HeadSamples,
    check_several,
    class_count,
    feature_scales,
    make_samples,
)
from hessalign.report.page import render_template

TOTAL: Final = 6000  # samples of all domains together, unless the caller says how many of each
_GROUPS: Final = 32  # groups that a domain's samples are dealt into, at most
_PRECISE: Final = 1 << 19  # up to this many numbers features are multiplied in float64 in fits
_LEAST: Final = 4  # samples a domain must have: two halves of two


@final
@dataclass(frozen=True, eq=False)
class Draw:
    """Samples of all domains, sorted by domain, within it by group, within that by class.

    Groups are random and of equal size up to one, so the mean over some of them is that of a random
    part of the domain: halves and bootstrap replicates need nothing but the groups' means.
    """

    z: Float[Tensor, "n w"]  # filled, marked where missing, and scaled: for evidence
    raw: Float[Tensor, "n d"]  # as they came, NaN where missing: for models that are tested
    y: Int[Tensor, " n"]
    domain: Int[Tensor, " n"]  # position of each sample's domain
    group: Int[Tensor, " n"]  # number of each sample's group, running over all domains
    row: Int[Tensor, " n"]  # position of each sample in its domain as the caller gave it
    domain_names: tuple[str, ...]
    class_names: tuple[str, ...]
    available: tuple[int, ...]  # samples each domain has
    scaled: bool
    constant: int  # how many features are constant
    copies: int  # how many are exact copies of another one

    @property
    def sizes(self) -> tuple[int, ...]:
        """Samples drawn from each domain."""
        return tuple(self.domain.bincount(minlength=len(self.domain_names)).tolist())

    @property
    def missing(self) -> int:
        """How many features have missing values."""
        return int(self.raw.isnan().any(0).sum())

    @property
    def repeats(self) -> int:
        """How many samples are exact copies of another one of their site and class."""
        return len(self.y) - len(first_copies(self.raw, self.y, self.domain).unique())

    @property
    def sampled(self) -> bool:
        """Whether a domain has more samples than were drawn."""
        return self.sizes != self.available

    @property
    def group_domain(self) -> Int[Tensor, " g"]:
        """The domain of each group."""
        first = torch.cat([torch.ones(1, dtype=torch.bool), self.group[1:] != self.group[:-1]])
        return self.domain[first]

    @property
    def half(self) -> Tensor:
        """Which samples belong to every other group of their domain: a random half."""
        counts = self.group_domain.bincount(minlength=len(self.domain_names))
        first = counts.cumsum(0) - counts
        return (self.group - first[self.domain]) % 2 == 0

    def of(self, e: int) -> Int[Tensor, " _"]:
        """The samples of a domain, by position."""
        return (self.domain == e).nonzero().squeeze(1)

    def outputs(self, loss: HeadLoss) -> int:
        """Outputs of a head for these samples: one for a single logit, else one per class."""
        return 1 if isinstance(loss, Binary) else max(2, len(self.class_names))

    def samples(
        self,
        rows: Tensor,
        loss: HeadLoss,
        l2: float,
        *,
        outputs: int | None = None,
        bias: bool = True,
        pooled: bool = False,
    ) -> HeadSamples:
        """Some samples, given by mask or position, for a head; if pooled, as one domain."""
        found = make_samples(
            self.z[rows],
            self.y[rows],
            None if pooled else self.domain[rows],
            loss,
            outputs=self.outputs(loss) if outputs is None else outputs,
            bias=bias,
            l2=l2,
        )
        return found.to(torch.float64 if found.features.numel() <= _PRECISE else torch.float32)


def draw_samples(
    z: Float[Tensor, "n d"],
    y: Int[Tensor, " n"],
    domain: DomainLike,
    *,
    domain_names: Sequence[str] | None = None,
    class_names: Sequence[str] | None = None,
    samples: int | None = None,
    scale: bool = True,
    marks: bool = True,
    seed: int = 0,
) -> Draw:
    """Check samples, draw as many as can be afforded, prepare them, and deal them into groups."""
    check_features(z, values=False)
    missing = bool(z.detach().isnan().any())
    check_features(z.nan_to_num(0.0, torch.inf, -torch.inf) if missing else z)
    if samples is not None:
        check_count(samples, "samples", least=None)
    check_count(seed, "seed", least=0)
    if seed > LARGEST_SEED:
        raise InputError(f"Expected seed of at most {LARGEST_SEED}, got {seed}.")
    domains = read_domains(domain, z)
    _check_labels(y, len(z))
    ids = domains.ids.tolist()
    names = check_names(domain_names, ids, "domain")
    check_several(names)
    classes = check_names(class_names, range(class_count(y)), "class")
    if int(y.min()) == int(y.max()):
        raise InputError(
            f"Expected samples of at least 2 classes, found only {classes[int(y[0])]!r}: there is "
            "nothing to tell apart. Check which class each sample is given."
        )
    _check_enough(domains.sizes, names, samples)
    limit = max(_LEAST, TOTAL // len(ids)) if samples is None else samples
    order = torch.arange(len(z)) if domains.order is None else domains.order
    generator = torch.Generator().manual_seed(seed)
    rows, positions, groups, start, dealt = [], [], [], 0, 0
    for size in domains.sizes:
        count = min(size, limit)
        chosen = torch.randperm(size, generator=generator)[:count]
        parts = min(_GROUPS, max(2, count // 2))
        group = torch.arange(count) * parts // count
        inside = torch.argsort(group * len(classes) + y[order[start + chosen]], stable=True)
        rows.append(chosen[inside])
        positions.append(order[start + chosen[inside]])
        groups.append(group[inside] + dealt)
        start, dealt = start + size, dealt + parts
    drawn = torch.cat(positions)
    where = torch.arange(len(ids)).repeat_interleave(torch.tensor([len(r) for r in rows]))
    raw = z.detach()[drawn]
    raw = raw if z.dtype == torch.float64 else raw.float()
    features = fit_preparation(raw, scale=scale, marks=marks, complete=not missing).apply(raw)
    _, _, still = feature_scales(features)
    moving = features[:, ~still].T.contiguous().numpy()
    return Draw(
        features,
        raw,
        y[drawn].long(),
        where,
        torch.cat(groups),
        torch.cat(rows),
        names,
        classes,
        domains.sizes,
        scale,
        int(still.sum()),
        len(moving) - len({column.tobytes() for column in moving}),
    )


def explain(part: str, **facts: object) -> str:
    """How a section was computed: the numbers are given, the words are in `how.md.j2`."""
    return render_template(__package__, "how.md.j2", part=part, **facts)


def check_names(names: Sequence[str] | None, ids: Sequence[int], what: str) -> tuple[str, ...]:
    """Names that were given, or else numbers; there may be more classes than are seen."""
    if names is None:
        return tuple(map(str, ids))
    if len(names) < len(ids) or (what != "class" and len(names) > len(ids)):
        raise InputError(f"Expected a name for each {what}, {len(ids)}, got {len(names)} names.")
    return tuple(map(str, names))


def _check_labels(y: Tensor, samples: int) -> None:
    check_dense(y, "y")
    if not isinstance(y, Tensor) or y.is_floating_point() or y.is_complex():
        raise InputTypeError(
            f"Expected integer class labels y, got {found_and_remedy(y, 'y', 'long')}"
        )
    if y.shape != (samples,):
        raise InputError(f"Expected one label y per row of z, {samples}, got {list(y.shape)}.")
    if int(y.min()) < 0:
        raise InputError(f"Expected class labels y of 0 or more, found {int(y.min())}.")


def _check_enough(sizes: Sequence[int], names: Sequence[str], samples: int | None) -> None:
    if samples is not None and samples < _LEAST:
        raise InputError(f"Expected samples of {_LEAST} or more of each domain, got {samples}.")
    few = [
        f"{name!r} has {size}" for size, name in zip(sizes, names, strict=False) if size < _LEAST
    ]
    if few:
        raise InputError(
            f"Expected at least {_LEAST} samples of each domain, but {', '.join(few[:3])}"
            f"{' and others have too few' if len(few) > 3 else ''}. Add some, or leave the domain "
            "out."
        )
