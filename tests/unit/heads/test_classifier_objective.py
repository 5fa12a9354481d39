"""The closed-form objective of classifiers is that of the definition, for features of any form."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array
from tests.aligned_objective import expected_objective, problem_of

from hessalign.heads.aligned_objective import Weights
from hessalign.heads.classifier_objective import ClassifierObjective
from hessalign.heads.design import make_design
from hessalign.heads.fit import minimise, plain_head, weights_of
from hessalign.heads.labelled import Labelled

WEIGHTS = Weights(0.7, 0.4)


def objective_of(problem, x, diagonal, groups=None, standardize=False, weight=None):
    domain = problem.domain.numpy()
    groups = [np.flatnonzero(domain == e) for e in np.unique(domain)]
    y = problem.y.numpy().astype(int)
    weight = np.ones(len(y)) if weight is None else weight
    return ClassifierObjective(
        make_design(x, groups, weight, standardize=standardize),
        tuple(y[rows] for rows in groups),
        tuple(weight[rows] / weight[rows].sum() for rows in groups),
        1 if problem.loss == "binary" else int(y.max()) + 1,
        0.3,
        diagonal,
    )


@pytest.mark.parametrize("form", ["array", "sparse", "shuffled", "float32"])
@pytest.mark.parametrize("diagonal", [True, False])
@pytest.mark.parametrize("loss", ["binary", "cross_entropy"])
def test_value_and_slope_are_those_of_the_definition(loss, diagonal, form):
    problem = problem_of(loss)
    if form == "shuffled":
        order = torch.randperm(len(problem.y))
        fields = {name: getattr(problem, name)[order] for name in ("z", "y", "domain")}
        problem = replace(problem, **fields)
    x = problem.z.numpy()
    x = {"sparse": csr_array, "float32": np.float32}.get(form, np.asarray)(x)
    objective = objective_of(problem, x, diagonal)
    head = torch.randn(objective.shape, dtype=torch.float64, requires_grad=True)
    value, slope = objective.value_and_gradient(head.detach(), WEIGHTS)
    expected = expected_objective(problem, head, "diagonal" if diagonal else None, 0.3)
    (wanted,) = torch.autograd.grad(expected, head)
    digits = 1e-5 if form == "float32" else 1e-9
    assert value == pytest.approx(float(expected.detach()), rel=digits)
    torch.testing.assert_close(slope, wanted, rtol=digits, atol=10 * digits)
    dispersed, gradient = objective.terms(head.detach())[1:]
    ridge = 0.15 * float(head.detach()[:, :-1].square().sum())
    rest = objective.terms(head.detach())[0] + ridge + 0.7 * dispersed + 0.4 * gradient
    assert value == pytest.approx(rest, rel=1e-9)


@pytest.mark.parametrize("sparse", [False, True])
def test_standardising_in_place_is_standardising(sparse):
    """A mean of 1e5 deviations is subtracted from a copy."""
    problem = problem_of("cross_entropy", sizes=(20, 30, 25))
    z = problem.z.numpy()
    x = 3 * z + np.array([1e6, *[5.0] * (z.shape[1] - 1)])
    weight = np.random.default_rng(0).integers(1, 4, size=len(z)).astype(float)
    mean = np.average(x, axis=0, weights=weight)
    scale = np.sqrt(np.average((x - mean) ** 2, axis=0, weights=weight))
    ours = objective_of(problem, csr_array(x) if sparse else x, True, None, True, weight)
    plain = objective_of(problem, (x - mean) / scale, True, None, False, weight)
    head = torch.randn(ours.shape, dtype=torch.float64)
    for found, wanted in zip(
        ours.value_and_gradient(head, WEIGHTS), plain.value_and_gradient(head, WEIGHTS), strict=True
    ):
        torch.testing.assert_close(
            torch.as_tensor(found), torch.as_tensor(wanted), rtol=1e-7, atol=1e-8
        )


def test_a_part_of_many_samples_models_their_curvature(monkeypatch):
    """The minimum is that of all of them, in fewer steps than without the model."""
    monkeypatch.setattr("hessalign.heads.classifier_objective._SAMPLE", 300)
    rng = torch.Generator().manual_seed(0)
    problem = problem_of("binary", sizes=(600, 500, 700))
    mixing = torch.randn(4, 12, generator=rng, dtype=torch.float64)
    base = torch.randn(1800, 12, generator=rng, dtype=torch.float64)
    problem = replace(problem, z=base + 3 * (base[:, :4] @ mixing))
    objective = objective_of(problem, problem.z.numpy(), True, standardize=True)
    assert sum(objective.small.design.sizes) == 300
    plain = minimise(objective, tolerance=1e-9)
    options = {"weights": Weights(5.0, 5.0), "tolerance": 1e-7}
    found = minimise(objective, start=plain.parameters, **options)
    monkeypatch.setattr(ClassifierObjective, "metric", lambda *_: None)
    without = minimise(objective, start=plain.parameters, **options)
    torch.testing.assert_close(found.parameters, without.parameters, atol=1e-4, rtol=0)
    assert found.steps < without.steps


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("shift", [0.0, 1.0])
def test_the_model_of_curvature_tells_chance_from_difference(shift, classes):
    """Along the gradient it is near that of all samples, though made of few, for all outputs."""
    rng = np.random.default_rng(0)
    domain, width = np.arange(4).repeat(6000), 60
    x = rng.normal(size=(len(domain), width)) + shift * rng.normal(size=(4, width))[domain]
    logits = x @ rng.normal(size=(width, classes)) / np.sqrt(width)
    y = (logits + rng.gumbel(size=logits.shape)).argmax(1)
    ones = np.ones(len(y))
    data = Labelled(x, y, classes, domain, 4, ones, ones, True, 1e-3)
    objective = data.objective(data.design(range(4)), "diagonal")
    assert objective.small is not objective
    plain = plain_head(objective, tolerance=1e-6, max_steps=1000)
    weights = weights_of(0.1, plain)
    factor = objective.metric(plain.parameters, weights)
    slope = objective.value_and_gradient(plain.parameters, weights)[1]
    along = 1e-4 * slope / slope.norm()
    after, before = (
        objective.value_and_gradient(plain.parameters + sign * along, weights)[1]
        for sign in (1, -1)
    )
    true = float(((after - before) * along).sum()) / 2
    assert 0.2 < float((along @ factor).square().sum()) / true < 2


def test_a_start_from_few_samples_ends_at_the_same_minimum():
    rng = np.random.default_rng(0)
    x, domain = rng.normal(size=(12000, 10)), np.arange(3).repeat(4000)
    y = (x[:, 0] + rng.logistic(size=12000) > 0).astype(int)
    ones = np.ones(len(y))
    data = Labelled(x, y, 2, domain, 3, ones, ones, True, 1e-3)
    objective = data.objective(data.design(range(3)), None)
    assert sum(objective.small.design.sizes) < 12000
    found = plain_head(objective, tolerance=1e-8, max_steps=1000)
    expected = minimise(objective, tolerance=1e-8)
    assert found.converged
    torch.testing.assert_close(found.parameters, expected.parameters, atol=1e-6, rtol=0)
