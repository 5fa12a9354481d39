r"""Logistic regressions of one set of samples, many at a time, each with its own sample weights.

$$\frac1n \sum_n w_{nb}\, \ell(\Theta_b \tilde z_n, y_n) + \frac\lambda2 \|W_b\|^2$$

with the intercepts free. Newton's method, its equations solved by conjugate gradients for all fits
at once: a product with all Hessians is two matrix products with the features.

Indices: n sample, b fit, k output (one for two classes), d feature (with the constant last).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Final, final

import torch
from torch import Tensor
from torch.nn import functional

from hessalign._shapes import Float, Int

_STEPS: Final = 60
# What a fit may be above its minimum, and what an objective is rounded to.
_GOAL: Final = {torch.float32: 1e-5, torch.float64: 1e-16}
_ROUNDING: Final = {torch.float32: 1e-6, torch.float64: 1e-16}
_ACCURATE: Final = {torch.float32: 0.1, torch.float64: 1e-5}  # equations of a step, at best
_HALVINGS: Final = 20  # of a step that does not lower the objective
_INNER: Final = 40  # conjugate gradients of a step, at most
_WIDE: Final = 2500  # features up to which their second moments precondition the equations
_EXACT: Final = 1 << 26  # multiplications up to which these are weighted anew for each step
_ROWS: Final = 2  # samples that go into them otherwise, for every feature

_Heads = Float[Tensor, "b k d"]


def fit_logistic(
    z: Float[Tensor, "n d"],  # the last feature is constant
    y: Int[Tensor, " n"],  # from 0
    classes: int,  # two have a single output
    l2: float,  # the weight λ, positive
    *,
    weights: Float[Tensor, "n b"] | None = None,  # 1 on average; None for one fit with equal ones
    start: Float[Tensor, "k d"] | None = None,  # from which all start; zeros if None
    steps: int = _STEPS,  # of Newton's method, at most
) -> _Heads:
    """Fit heads.

    Returns:
        One for each column of weights.

    Example:
        >>> z = torch.tensor([[0.0, 1.0], [1.0, 1.0], [2.0, 1.0], [3.0, 1.0]]).double()
        >>> head = fit_logistic(z, torch.tensor([0, 1, 0, 1]), 2, 0.25)
        >>> [round(value, 3) for value in head.flatten().tolist()]
        [0.453, -0.679]
    """
    drawn = z.new_ones(len(z), 1) if weights is None else weights
    problem = _Problem(z, functional.one_hot(y, classes).to(z.dtype), drawn / len(z), l2)
    heads = z.new_zeros(drawn.shape[1], 1 if classes == 2 else classes, z.shape[1])
    if start is not None:
        heads = heads + start.to(z.dtype)
    logits = problem.logits(heads)
    value = problem.objective(logits, heads)
    for _ in range(steps):
        moved = problem.improve(heads, logits, value)
        if moved is None:
            break
        heads, logits, value = moved
    return heads


@final
@dataclass(frozen=True, eq=False)
class _Problem:
    """What is minimised: samples, and what each counts in each fit, 1 in all."""

    z: Float[Tensor, "n d"]
    target: Float[Tensor, "n c"]
    counts: Float[Tensor, "n b"]
    l2: float

    @cached_property
    def _counts(self) -> Tensor:
        return self.counts.unsqueeze(2)

    @cached_property
    def _truth(self) -> Tensor:
        """Targets of the outputs."""
        return (self.target[:, 1:] if self.target.shape[1] == 2 else self.target).unsqueeze(1)

    @cached_property
    def _penalty(self) -> Tensor:
        return torch.cat([self.z.new_full((self.z.shape[1] - 1,), self.l2), self.z.new_zeros(1)])

    def logits(self, heads: _Heads) -> Float[Tensor, "n b k"]:
        return (self.z @ heads.flatten(0, 1).T).view(len(self.z), *heads.shape[:2])

    def _slopes(self, errors: Float[Tensor, "n b k"]) -> _Heads:
        """Sums of errors ⊗ z̃ over the samples of each fit."""
        found = (self._counts * errors).flatten(1).T @ self.z
        return found.view(*errors.shape[1:], -1)

    def objective(self, logits: Float[Tensor, "n b k"], heads: _Heads) -> Float[Tensor, " b"]:
        losses = -(self._truth * logits).sum(2, keepdim=True)
        single = logits.shape[2] == 1
        losses += functional.softplus(logits) if single else logits.logsumexp(2, keepdim=True)
        held = (heads.square() * self._penalty).sum((1, 2), dtype=torch.float64) / 2
        return (self._counts * losses).sum((0, 2), dtype=torch.float64) + held

    def _product(self, p: Float[Tensor, "n b k"], heads: _Heads) -> _Heads:
        """The Hessians at probabilities p, times something like heads."""
        bent = self.logits(heads) * p
        bent = bent - p * bent.sum(2, keepdim=True)
        return self._slopes(bent) + self._penalty * heads

    @cached_property
    def _few(self) -> Tensor:
        """Some samples for second moments: all, if these are cheap."""
        count, width = self.z.shape
        most = count if count * width**2 <= _EXACT else 1000 + _ROWS * width
        return torch.arange(0, count, max(1, count // most))

    @cached_property
    def _moments(self) -> Tensor:
        rows = self.z[self._few]
        return rows.T @ rows / len(rows)

    def _preconditioner(self, curvature: Float[Tensor, " n"]) -> Callable[[_Heads], _Heads]:
        """The inverse of what is close to every block of every Hessian."""
        z, floor = self.z, 1e-6 if self.z.dtype == torch.float32 else 1e-12
        if z.shape[1] > _WIDE:
            scale = (curvature @ z.square()) / len(z) + self._penalty
            return partial(torch.mul, 1 / (scale + floor * scale.max()))
        if len(self._few) < len(z):
            moments = curvature.mean() * self._moments
        else:
            moments = (z * curvature.unsqueeze(1)).T @ z / len(z)
        moments = moments + self._penalty.diag()
        moments.diagonal().add_(floor * float(moments.diagonal().max()))
        return partial(_apply_inverse, torch.linalg.cholesky(moments))

    def improve(
        self, heads: _Heads, logits: Float[Tensor, "n b k"], value: Float[Tensor, " b"]
    ) -> tuple[_Heads, Float[Tensor, "n b k"], Float[Tensor, " b"]] | None:
        """A Newton step from heads with these logits and values; None if there is nothing left."""
        p = logits.sigmoid() if logits.shape[2] == 1 else logits.softmax(2)
        slope = self._slopes(p - self._truth) + self._penalty * heads
        condition = self._preconditioner((p * (1 - p)).mean((1, 2)))
        decrement = _dot(slope, condition(slope))
        dtype = self.z.dtype
        if bool((decrement <= _GOAL[dtype] * (1 + value)).all()):
            return None
        rounding = _ROUNDING[dtype] * (1 + value)
        accuracy = max(_ACCURATE[dtype], min(0.1, float(decrement.max()) ** 0.5))
        step = _solve(partial(self._product, p), condition, -slope, accuracy)
        moved, along = self.logits(step), _dot(slope, step)
        length, best = torch.ones_like(value), value
        for _ in range(_HALVINGS):
            t = length.to(heads.dtype).view(-1, 1, 1)
            best = self.objective(logits + t.view(1, -1, 1) * moved, heads + t * step)
            worse = best > value + 1e-4 * length * along + rounding
            if not bool(worse.any()):
                break
            length = torch.where(worse, length / 2, length)
        t = torch.where(best <= value + rounding, length, 0).to(heads.dtype).view(-1, 1, 1)
        found = heads + t * step
        return found, self.logits(found), torch.minimum(best, value)


def probabilities(z: Float[Tensor, "n d"], heads: _Heads) -> Float[Tensor, "b n c"]:
    """What each head says of each sample, for every class, in float64."""
    logits = (z @ heads.flatten(0, 1).T).view(len(z), *heads.shape[:2]).transpose(0, 1).double()
    if heads.shape[1] > 1:
        return logits.softmax(2)
    return torch.cat([(-logits).sigmoid(), logits.sigmoid()], dim=2)


def _apply_inverse(factor: Float[Tensor, "d d"], heads: _Heads) -> _Heads:
    return torch.cholesky_solve(heads.flatten(0, 1).T, factor).T.reshape(heads.shape)


def _solve(
    product: Callable[[_Heads], _Heads],
    condition: Callable[[_Heads], _Heads],
    right: _Heads,
    accuracy: float,
) -> _Heads:
    """H s = right for every fit, by conjugate gradients, to a share of the right side's norm."""
    found, left = torch.zeros_like(right), right
    near = condition(left)
    direction, size = near, _dot(left, near)
    goal = accuracy**2 * size
    for _ in range(_INNER):
        image = product(direction)
        curvature = _dot(direction, image)
        length = torch.where(curvature > 0, size / curvature, 0)
        length = torch.where(size > goal, length, 0).to(right.dtype).view(-1, 1, 1)
        found, left = found + length * direction, left - length * image
        near = condition(left)
        size, before = _dot(left, near), size
        if bool((size <= goal).all()):
            break
        ratio = torch.where(before > 0, size / before, 0).to(right.dtype)
        direction = near + ratio.view(-1, 1, 1) * direction
    return found


def _dot(left: _Heads, right: _Heads) -> Float[Tensor, " b"]:
    return (left * right).sum((1, 2), dtype=torch.float64)
