r"""The risks of all domains as functions of the head, features fixed.

Everything in this package moves the head and leaves the features alone. A point is the head's
parameters as one row, output by output, weights before bias; several points are evaluated with the
same two matrix products as one.

Indices: e domain, n sample, b point, k output of the head, d feature (with the constant of the
bias), p = (k, d) parameter.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from hessalign._shapes import Float, Int
from hessalign.curvature import LinearHead, linear_head
from hessalign.curvature.activations import ACTIVATIONS
from hessalign.curvature.losses import Binary, CrossEntropy, HeadLoss, Squared

CHUNK_LOGITS = 1 << 22
"""Logits of all points that are held at a time."""


@final
@dataclass(frozen=True, eq=False)
class HeadData:
    r"""Samples of several domains, as a head sees them; build it with `make_head_data` of `inputs`.

    The risk of domain e is $L_e(\Theta) = \frac1{n_e} \sum_n \ell(\Theta \tilde z_n, y_n)
    + \frac\lambda2 \|\Theta\|^2$.

    Attributes:
        ids: The integer id of each domain.
        features: The features z̃ of each domain, with a constant last if the head has a bias.
        targets: The targets of each domain.
        loss: The loss of the head.
        outputs: Outputs k of the head.
        l2: The weight λ of the L2 term over all parameters, biases included.
    """

    ids: tuple[int, ...]
    features: tuple[Float[Tensor, "_ d"], ...]
    targets: tuple[Tensor, ...]
    loss: HeadLoss
    outputs: int
    l2: float = 0.0

    @property
    def shape(self) -> tuple[int, int]:
        """Outputs k, and parameters of each, the bias included."""
        return self.outputs, self.features[0].shape[1]

    @property
    def num_parameters(self) -> int:
        """Parameters of the head, p."""
        outputs, width = self.shape
        return outputs * width

    @property
    def convex(self) -> bool:
        """Whether the risks are convex in the head, as those without an activation are."""
        loss = self.loss
        return not isinstance(loss, Squared) or loss.activation is ACTIVATIONS["identity"]

    def risk(self, points: Float[Tensor, "b p"], e: int) -> Float[Tensor, " b"]:
        """The risk of one domain at each point.

        Args:
            points: Heads, one per row.
            e: Position of the domain in `ids`.

        Returns:
            The risks in float64.
        """
        return self._evaluate(points, e, slopes=False)[0]

    def risk_and_gradient(
        self, points: Float[Tensor, "b p"], e: int
    ) -> tuple[Float[Tensor, " b"], Float[Tensor, "b p"]]:
        """The risk of one domain and its gradient, g = mean r ⊗ z̃ + λ θ, at each point.

        Args:
            points: Heads, one per row.
            e: Position of the domain in `ids`.

        Returns:
            The risks in float64, and the gradients in the precision of the features.
        """
        return self._evaluate(points, e, slopes=True)

    def _evaluate(self, points: Tensor, e: int, *, slopes: bool) -> tuple[Tensor, Tensor]:
        z, y, count = self.features[e], self.targets[e], len(points)
        points = points.to(z.dtype)
        weights = points.reshape(-1, z.shape[1])
        total = points.new_zeros(count, dtype=torch.float64)
        slope = torch.zeros_like(weights)
        rows = max(1, CHUNK_LOGITS // max(1, len(weights)))
        for features, targets in zip(z.split(rows), y.split(rows), strict=True):
            logits = (features @ weights.T).view(-1, self.outputs)
            repeated = targets.repeat_interleave(count, dim=0)
            losses = self.loss.values(logits, repeated)
            total += losses.view(-1, count).sum(0, dtype=torch.float64)
            if slopes:
                error = self.loss.error(self.loss.predict(logits), logits, repeated)
                slope += error.view(len(features), -1).T @ features
        total = total / len(z) + self.l2 / 2 * points.double().square().sum(1)
        return total, (slope / len(z)).view_as(points) + self.l2 * points

    def gap(
        self, points: Float[Tensor, "b p"], pairs: Int[Tensor, "b 2"]
    ) -> tuple[Float[Tensor, " b"], Float[Tensor, "b p"]]:
        r"""The gap L_i − L_j with its gradient, each point with a pair (i, j) of its own.

        Args:
            points: Heads, one per row.
            pairs: Positions of the two domains, for each point.

        Returns:
            The gaps in float64, and the gradients.
        """
        values = points.new_zeros(len(points), dtype=torch.float64)
        gradients = torch.zeros_like(points)
        for e, rows, signs in self._sides(pairs):
            risks, slopes = self.risk_and_gradient(points[rows], e)
            values[rows] += signs * risks
            gradients[rows] += signs.unsqueeze(1) * slopes.to(points.dtype)
        return values, gradients

    def gap_values(
        self, points: Float[Tensor, "b p"], pairs: Int[Tensor, "b 2"]
    ) -> Float[Tensor, " b"]:
        """The gap L_i − L_j alone.

        Args:
            points: Heads, one per row.
            pairs: Positions of the two domains, for each point.

        Returns:
            The gaps in float64.
        """
        values = points.new_zeros(len(points), dtype=torch.float64)
        for e, rows, signs in self._sides(pairs):
            values[rows] += signs * self.risk(points[rows], e)
        return values

    def _sides(self, pairs: Tensor) -> Iterator[tuple[int, Tensor, Tensor]]:
        """For each domain the points it matters to, and whether as i (1) or as j (−1)."""
        for e in range(len(self.ids)):
            signs = (pairs[:, 0] == e).long() - (pairs[:, 1] == e).long()
            rows = signs.nonzero().squeeze(1)
            if len(rows):
                yield e, rows, signs[rows]

    def accuracy(self, point: Float[Tensor, " p"]) -> Float[Tensor, " e"] | None:
        """The share of samples a classifier gets right, per domain.

        Args:
            point: A head.

        Returns:
            The accuracies, or None for regression.
        """
        if not isinstance(self.loss, CrossEntropy | Binary):
            return None
        shares = []
        for z, y in zip(self.features, self.targets, strict=True):
            logits = z @ point.to(z.dtype).view(self.shape).T
            if isinstance(self.loss, Binary):
                right = (logits.squeeze(1) > 0) == (y.flatten() > 0.5)
            else:
                right = logits.argmax(1) == y
            shares.append(right.double().mean())
        return torch.stack(shares)

    def statistics(self, point: Float[Tensor, " p"], e: int) -> LinearHead:
        """Closed-form derivatives of one domain's mean loss, without the L2 term.

        Args:
            point: A head.
            e: Position of the domain in `ids`.

        Returns:
            The statistics of that domain alone.
        """
        z, y = self.features[e], self.targets[e]
        logits = z @ point.to(z.dtype).view(self.shape).T
        alone = torch.zeros(len(z), dtype=torch.long, device=z.device)
        return linear_head(z, logits, y, alone, loss=self.loss, bias=False)

    def batch(self, rows: tuple[Int[Tensor, " m"], ...]) -> HeadData:
        """Some samples of each domain.

        Args:
            rows: Which samples of each domain, repetitions allowed.

        Returns:
            The same domains with these samples only.
        """
        features = tuple(z[index] for z, index in zip(self.features, rows, strict=True))
        targets = tuple(y[index] for y, index in zip(self.targets, rows, strict=True))
        return replace(self, features=features, targets=targets)

    def to(self, dtype: torch.dtype) -> HeadData:
        """The same samples with features in another precision.

        Args:
            dtype: The precision.

        Returns:
            Converted data.
        """
        return replace(self, features=tuple(z.to(dtype) for z in self.features))
