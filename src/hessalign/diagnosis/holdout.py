r"""Leave one domain out: a plain and an aligned head, tested where neither was trained.

Indices: e domain, n sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Final, Literal, final

import torch
from torch import Tensor

from hessalign._shapes import Float
from hessalign.curvature.losses import HeadLoss
from hessalign.diagnosis.draw import Draw, evenly, explain
from hessalign.diagnosis.head import linear_logits, quick_fit
from hessalign.heads.aligned_objective import FULL_COMPONENTS, AlignedObjective, Weights
from hessalign.heads.fit import FittedHead
from hessalign.heads.samples import predicted

# Weights of the penalties, in units that make each as large as the plain head's risk.
_STRENGTHS: Final = (0.1, 1.0, 10.0)
_TRAINING: Final = 800  # samples of all training domains together, at most
_INNER_TRAINING: Final = 400  # the same while the strength is being chosen
_INNER_FOLDS: Final = 3  # training domains held out in turn to choose the strength, at most
# With two training domains every fifth sample of each, class by class, chooses the strength.
_VALIDATION: Final = 5
# Accuracy of fits that are only tested: what they get right does not change any more.
_NEAR: Final = 1e-4
_NORMAL: Final = 1.96


@final
@dataclass(frozen=True)
class HeldOut:
    """What heads trained on the other domains do on one.

    Attributes:
        domain: Position of the domain held out.
        samples: How many of its samples they were tested on.
        plain: Accuracy of the plain head.
        aligned: Accuracy of the aligned head of the chosen strength; None if there is none.
        low: Lower end of the 95 % interval of the gain, aligned less plain.
        high: Its upper end.
        plain_loss: Loss of the plain head.
        aligned_loss: Loss of the aligned head.
        strength: The strength that was chosen without the domain.
        others: Accuracy at every strength, chosen or not.
    """

    domain: int
    samples: int
    plain: float
    aligned: float | None
    low: float | None
    high: float | None
    plain_loss: float
    aligned_loss: float | None
    strength: float | None
    others: tuple[float, ...]


@final
@dataclass(frozen=True)
class HoldoutReport:
    """Leave-one-domain-out accuracies.

    Attributes:
        domains: One entry per domain held out.
        strengths: The strengths that were tried.
        how: How they were computed.
    """

    domains: tuple[HeldOut, ...]
    strengths: tuple[float, ...]
    how: str

    @property
    def plain(self) -> float:
        """Mean accuracy of the plain heads."""
        return sum(entry.plain for entry in self.domains) / len(self.domains)

    @property
    def aligned(self) -> float | None:
        """Mean accuracy of the aligned heads; None if there are none."""
        values = [entry.aligned for entry in self.domains if entry.aligned is not None]
        return sum(values) / len(values) if values else None

    @property
    def gain(self) -> tuple[float, float, float] | None:
        """Mean gain of aligning, with its 95 % interval for these domains; None if none."""
        if self.aligned is None:
            return None
        gain = self.aligned - self.plain
        spread = [
            (e.high - e.low) / 2 for e in self.domains if e.high is not None and e.low is not None
        ]
        half = sqrt(sum(value**2 for value in spread)) / len(spread)
        return gain, gain - half, gain + half


def holdout_report(
    draw: Draw, loss: HeadLoss, l2: float, domains: Sequence[int], seed: int
) -> HoldoutReport:
    """Hold out some domains in turn; the seed chooses inner folds, where there are many."""
    count = len(draw.domain_names)
    bench = _Bench(draw, loss, l2, torch.Generator().manual_seed(seed))
    found = tuple(bench.hold_out(e) for e in domains)
    how = explain(
        "holdout",
        count=count,
        kind=bench.kind,
        l2=l2,
        strengths=_STRENGTHS,
        training=_TRAINING,
        inner_training=_INNER_TRAINING,
        folds=_INNER_FOLDS,
        validation=_VALIDATION,
    )
    return HoldoutReport(found, _STRENGTHS if count > 2 else (), how)


@final
class _Bench:
    """Fits heads to some domains and tests them on others."""

    def __init__(self, draw: Draw, loss: HeadLoss, l2: float, generator: torch.Generator) -> None:
        self.draw, self.loss, self.l2, self.generator = draw, loss, l2, generator
        # Whole curvatures are aligned, or, where they have many components, diagonals.
        probe = torch.zeros(1, draw.outputs(loss), dtype=torch.float64)
        size = loss.curvature(loss.predict(probe), probe, None).size
        self.kind: Literal["full", "diagonal"] = "full" if size <= FULL_COMPONENTS else "diagonal"
        self.everyone = list(range(len(draw.domain_names)))

    def hold_out(self, held: int) -> HeldOut:
        """Test on one domain what was fitted to all others."""
        sources = [e for e in self.everyone if e != held]
        test = self.draw.of(held)
        plain, aligned = self._heads(self._rows(sources))
        right, loss = self._test(plain, test)
        accuracy = float(right.mean())
        if not aligned:
            return HeldOut(held, len(test), accuracy, None, None, None, loss, None, None, ())
        best = self._choose(sources)
        tested = [self._test(head, test) for head in aligned]
        chosen, chosen_loss = tested[best]
        gain = chosen - right
        half = _NORMAL * float(gain.std(correction=0)) / sqrt(len(test))
        middle = float(gain.mean())
        return HeldOut(
            held,
            len(test),
            accuracy,
            float(chosen.mean()),
            middle - half,
            middle + half,
            loss,
            chosen_loss,
            _STRENGTHS[best],
            tuple(float(values.mean()) for values, _ in tested),
        )

    def _choose(self, sources: list[int]) -> int:
        """The strength with the best accuracy where it was not trained, and then the least loss."""
        scores = []
        for train, test in self._folds(sources):
            tested = [self._test(head, test) for head in self._heads(train)[1]]
            scores.append([(float(right.mean()), -loss) for right, loss in tested])
        by_strength = zip(*scores, strict=True)
        sums = [[sum(part) for part in zip(*folds, strict=True)] for folds in by_strength]
        return max(range(len(sums)), key=lambda i: (round(sums[i][0], 12), sums[i][1]))

    def _folds(self, sources: list[int]) -> list[tuple[Tensor, Tensor]]:
        if len(sources) == 2:
            rows = self._rows(sources, _INNER_TRAINING)
            kept = torch.arange(len(rows)) % _VALIDATION == 0  # of rows sorted by domain and class
            return [(rows[~kept], rows[kept])]
        order = torch.randperm(len(sources), generator=self.generator).tolist()
        few = [sources[i] for i in order[:_INNER_FOLDS]]
        chosen = few if len(sources) > _INNER_FOLDS else sources
        return [
            (self._rows([e for e in sources if e != held], _INNER_TRAINING), self._rows([held]))
            for held in chosen
        ]

    def _rows(self, domains: list[int], limit: int = _TRAINING) -> Tensor:
        """Samples of some domains, as many of each, every class with the share it has there."""
        rows = []
        for e in domains:
            own = self.draw.of(e)
            own = own[self.draw.y[own].argsort(stable=True)]
            rows.append(evenly(own, max(2, limit // len(domains))))
        return torch.cat(rows)

    def _heads(self, rows: Tensor) -> tuple[FittedHead, list[FittedHead]]:
        """A plain head, and aligned ones of all strengths if there is something to align."""
        samples = self.draw.samples(rows, self.loss, self.l2, free_bias=True)
        objective = AlignedObjective(samples, self.kind)
        plain = quick_fit(objective, accuracy=_NEAR)
        if len(samples.domains) < 2:
            return plain, []
        aligned, start = [], plain
        for strength in _STRENGTHS:
            weights = Weights(
                strength * plain.loss / plain.hessian if plain.hessian > 0 else 0.0,
                strength * plain.loss / plain.gradient if plain.gradient > 0 else 0.0,
            )
            start = quick_fit(objective, weights, start.parameters, _NEAR)
            aligned.append(start)
        return plain, aligned

    def _test(self, head: FittedHead, rows: Tensor) -> tuple[Float[Tensor, " n"], float]:
        logits, y = linear_logits(self.draw.z[rows], head), self.draw.y[rows]
        right = (predicted(logits, self.loss) == y).double()
        return right, float(self.loss.values(logits, y).mean())
