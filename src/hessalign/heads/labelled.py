"""Labelled features of several domains, and the objective of a classifier of any kind on them.

Indices: n sample, d feature.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

import numpy as np
import torch

from hessalign.alignment.penalties import HessianKind
from hessalign.curvature import make_loss
from hessalign.heads.aligned_objective import AlignedObjective
from hessalign.heads.classifier_objective import ClassifierObjective
from hessalign.heads.design import Design, Matrix, make_design, row_numbers
from hessalign.heads.fit import Objective
from hessalign.heads.samples import make_samples

# Products of a step up to which whole Hessians are aligned where the kind is left open.
_FULL_PRODUCTS: Final = 1 << 24


@final
@dataclass(frozen=True, eq=False)
class Labelled:
    """Samples with classes, domains and weights."""

    x: Matrix  # features, one row per sample, dense or sparse
    labels: np.ndarray  # the class of each, from 0
    classes: int  # how many there are
    domains: np.ndarray  # the domain of each, from 0
    count: int  # how many domains there are
    weight: np.ndarray  # what each counts in the mean of its domain; those of 0 are left out
    scaling: np.ndarray  # what each counts in means and deviations of the features
    standardize: bool  # whether features are standardised
    l2: float  # weight of the L2 term over weights of standardised features

    @property
    def outputs(self) -> int:
        """Outputs of the head: a single one for two classes."""
        return 1 if self.classes == 2 else self.classes

    def rows(self, e: int) -> np.ndarray:
        """The samples of a domain that count."""
        return np.flatnonzero((self.domains == e) & (self.weight > 0))

    def design(self, domains: Sequence[int]) -> Design:
        """The features of some domains, standardised over these."""
        groups = [rows for rows in map(self.rows, domains) if len(rows)]
        return make_design(self.x, groups, self.scaling, standardize=self.standardize)

    def affordable(self) -> bool:
        """Whether aligning whole Hessians takes little time."""
        samples, width = self.x.shape[0], self.x.shape[1] + 1
        pairs = self.outputs * (self.outputs + 1) // 2 * min(samples, width * (width + 1) // 2)
        return bool(samples * pairs <= _FULL_PRODUCTS)

    def objective(
        self, design: Design, kind: HessianKind | None, probes: int = 100, seed: int = 0
    ) -> Objective:
        """What a classifier of these features minimises; only some kinds have them written out."""
        rows = [row_numbers(group) for group in design.groups]
        if kind in (None, "diagonal"):
            shares = [self.weight[own] for own in rows]
            return ClassifierObjective(
                design,
                tuple(self.labels[own] for own in rows),
                tuple(own / own.sum() for own in shares),
                self.outputs,
                self.l2,
                kind == "diagonal",
            )
        z = np.concatenate([design.dense(e, np.float64)[:, :-1] for e in range(len(rows))])
        every = np.concatenate(rows)
        samples = make_samples(
            torch.from_numpy(z),
            torch.from_numpy(self.labels[every]),
            torch.arange(len(rows)).repeat_interleave(torch.tensor([len(own) for own in rows])),
            make_loss("binary" if self.outputs == 1 else "cross_entropy"),
            outputs=self.outputs,
            l2=self.l2,
            free_bias=True,
            weight=torch.from_numpy(self.weight[every]),
        )
        return AlignedObjective(samples, kind, probes, seed)
