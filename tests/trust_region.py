"""The largest value of a quadratic in a ball, by eigen-decomposition; and squared error as one.

Nothing here imports the library: with squared error and identity activation every question of the
transfer package is such a problem.
"""

from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq


def largest_in_ball(matrix, slope, radius):
    """max slope·x + ½ xᵀ matrix x over ‖x‖ ≤ radius.

    The maximiser solves (λ I − matrix) x = slope with λ ≥ 0 at least the largest eigenvalue, and
    λ = 0 or ‖x‖ = radius (Moré and Sorensen, 1983).
    """
    values, vectors = np.linalg.eigh(matrix)
    slope = vectors.T @ slope
    value = lambda x: slope @ x + (values * x * x).sum() / 2  # noqa: E731
    scale = max(np.abs(values).max(), np.linalg.norm(slope) / radius, 1e-300)
    lowest = max(0.0, values[-1])

    def solution(multiplier):
        gaps = multiplier - values
        flat = gaps <= 1e-14 * scale
        return np.where(flat, 0.0, slope / np.where(flat, 1.0, gaps)), flat

    x, flat = solution(lowest)
    if np.linalg.norm(slope[flat]) <= 1e-13 * scale * radius and np.linalg.norm(x) <= radius:
        if flat.any():  # the hard case: fill up along the top eigenvector
            x[np.flatnonzero(flat)[0]] = np.sqrt(radius**2 - x @ x)
        return value(x)
    length = lambda multiplier: np.linalg.norm(slope / (multiplier - values)) - radius  # noqa: E731
    upper = lowest + np.linalg.norm(slope) / radius * 1.01 + 1e-12 * scale
    lower = lowest + 1e-15 * scale
    x = slope / (brentq(length, lower, upper, xtol=1e-300, rtol=1e-15, maxiter=500) - values)
    return value(x * radius / np.linalg.norm(x))


@dataclass
class Quadratic:
    """Squared error of a linear head, ½ θᵀ H θ − b·θ + c, with θ output by output."""

    H: np.ndarray
    b: np.ndarray
    c: float

    @classmethod
    def of(cls, z, y, l2=0.0, bias=True):
        z, y = z.numpy(), y.reshape(len(y), -1).numpy()
        if bias:
            z = np.c_[z, np.ones(len(z))]
        size = y.shape[1] * z.shape[1]
        moments = np.kron(np.eye(y.shape[1]), z.T @ z / len(z))
        return cls(
            moments + l2 * np.eye(size), (y.T @ z / len(z)).ravel(), (y**2).sum() / 2 / len(z)
        )

    def value(self, theta):
        return theta @ self.H @ theta / 2 - self.b @ theta + self.c

    def slope(self, theta):
        return self.H @ theta - self.b

    @property
    def minimiser(self):
        return np.linalg.solve(self.H, self.b)


def transfer_measure(source, target, tolerance):
    """Definition 2 for two quadratics: two trust-region problems in coordinates where H_S = 1."""
    values, vectors = np.linalg.eigh(source.H)
    root = vectors / np.sqrt(values) @ vectors.T
    slope = root @ target.slope(source.minimiser)
    radius = np.sqrt(2 * tolerance)
    rise = largest_in_ball(root @ (target.H - source.H) @ root, slope, radius)
    descent = largest_in_ball(-root @ target.H @ root, -slope, radius)
    return rise + descent


def worst_gap(quadratics, centre, radius):
    """The largest gap of any ordered pair within the radius."""
    return max(
        a.value(centre)
        - b.value(centre)
        + largest_in_ball(a.H - b.H, a.slope(centre) - b.slope(centre), radius)
        for a in quadratics
        for b in quadratics
        if a is not b
    )
