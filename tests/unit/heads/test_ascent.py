"""Ascent in a ball reaches the trust-region optimum and never leaves the ball."""

from unittest.mock import Mock

import numpy as np
import pytest
import torch
from tests.trust_region import largest_in_ball

from hessalign.heads.ascent import Ball, ascend


def quadratic(seed, size=6):
    rng = np.random.default_rng(seed)
    matrix = rng.normal(size=(size, size))
    matrix, slope = torch.tensor(matrix + matrix.T), torch.tensor(rng.normal(size=size))

    def objective(x, rows):
        bent = x @ matrix
        return x @ slope + (bent * x).sum(1) / 2, slope + bent

    return matrix, slope, objective


@pytest.mark.parametrize("radius", [1e-3, 1.0, 30.0])
@pytest.mark.parametrize("seed", range(4))
def test_best_start_reaches_the_optimum(seed, radius):
    matrix, slope, objective = quadratic(seed)
    starts = radius * torch.randn(30, 6, dtype=torch.float64)
    points, values = ascend(objective, Ball(radius), starts, steps=500, tolerance=1e-8)
    best = largest_in_ball(matrix.numpy(), slope.numpy(), radius)
    assert float(values.max()) == pytest.approx(best, rel=1e-9)
    assert (values <= best * (1 + 1e-12)).all()
    assert (points.norm(dim=1) <= radius * (1 + 1e-12)).all()
    found, slopes = objective(points, None)
    assert torch.allclose(found, values)
    winner = int(values.argmax())
    left = Ball(radius).tangent(points, slopes)[winner]
    assert left.norm() * radius <= 1e-6 * abs(best)


def test_a_concave_objective_stops_inside():
    centre = torch.tensor([0.3, -0.2], dtype=torch.float64)

    def objective(x, rows):
        return -(x - centre).square().sum(1), -2 * (x - centre)

    points, _ = ascend(
        objective, Ball(1.0), torch.tensor([[5.0, 5.0]]).double(), steps=100, tolerance=0.0
    )
    assert torch.allclose(points[0], centre)


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_never_below_the_start(steps):
    _, _, objective = quadratic(9)
    starts = torch.nn.functional.normalize(torch.randn(50, 6, dtype=torch.float64))
    before = objective(starts, None)[0]
    counted = Mock(side_effect=objective)
    _, values = ascend(counted, Ball(1.0), starts, steps=steps, tolerance=1e-8)
    assert (values >= before - 1e-14).all()
    assert counted.call_count <= steps


def test_oracle_is_never_below_random_search():
    for seed in range(20):
        matrix, slope, objective = quadratic(seed, 3)
        radius = 10.0 ** (seed % 3 - 1)
        best = largest_in_ball(matrix.numpy(), slope.numpy(), radius)
        points = Ball(radius).retract(radius * torch.randn(20000, 3, dtype=torch.float64))
        searched = float(objective(points, None)[0].max())
        assert searched <= best <= searched + 0.05 * abs(searched)
