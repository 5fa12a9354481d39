"""Definition 1: the δ-minimal set of the source, and transferability."""

import pytest
import torch
from tests.transfer_problems import classification, regression

from hessalign.curvature import make_loss
from hessalign.heads.fit import fit_domain
from hessalign.heads.measure import MinimalSet, transfer_measure
from hessalign.heads.samples import make_samples
from hessalign.heads.whitening import make_whitening


def minimal_set(problem, tolerance):
    data = make_samples(
        problem.z, problem.y, problem.domain, make_loss(problem.loss), bias=True, l2=problem.l2
    )
    fitted = fit_domain(data, 0)
    centre = fitted.parameters.flatten()
    return MinimalSet(data, 0, centre, tolerance, make_whitening(data, centre, 0))


@pytest.mark.parametrize("loss", ["cross_entropy", "binary", "squared"])
@pytest.mark.parametrize("tolerance", [1e-6, 0.01, 1.0])
def test_points_are_drawn_to_the_border_of_the_set(loss, tolerance):
    problem = regression(0) if loss == "squared" else classification(0, loss)
    region = minimal_set(problem, tolerance)
    points = 100 * region.size * torch.randn(20, len(region.centre), dtype=torch.float64)
    drawn = region.retract(points)
    excess = region.excess(drawn)
    assert (excess <= tolerance).all()
    assert (excess >= tolerance * (1 - 1e-6)).all()
    cosine = torch.nn.functional.cosine_similarity(drawn, points)
    assert torch.allclose(cosine, torch.ones_like(cosine))  # along the ray to the minimiser
    assert torch.equal(region.retract(drawn / 2), drawn / 2)


@pytest.mark.parametrize("loss", ["cross_entropy", "binary"])
def test_no_head_has_a_lower_source_risk(loss):
    region = minimal_set(classification(1, loss), 0.1)
    points = region.size * torch.randn(200, len(region.centre), dtype=torch.float64)
    assert (region.excess(points) >= 0).all()


def test_squared_error_has_a_ball_for_a_minimal_set():
    region = minimal_set(regression(2), 0.3)
    drawn = region.retract(100 * torch.randn(9, len(region.centre), dtype=torch.float64))
    assert torch.allclose(drawn.norm(dim=1), torch.tensor(region.size, dtype=torch.float64))


@pytest.mark.parametrize("loss", ["cross_entropy", "binary"])
def test_heads_near_optimal_on_the_source_are_so_on_the_target(loss):
    """(δ_S, δ_T)-transferable with δ_T = δ_S + T, by the definition of T."""
    problem = classification(3, loss)
    measure = transfer_measure(
        *problem.arguments, source=0, target=1, tolerance=0.1, **problem.options
    )
    region = minimal_set(problem, 0.1)
    points = region.retract(3 * torch.randn(300, len(region.centre), dtype=torch.float64))
    target_excess = region.data.risk(region.heads(points), 1) - measure.target_lowest
    assert (target_excess <= 0.1 + measure.value).all()
    assert (target_excess - region.excess(points) <= measure.value).all()  # eq. 2
