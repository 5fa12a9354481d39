"""Logistic regressions in a batch are those of scikit-learn, one by one."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from hessalign.heads.logistic import fit_logistic, probabilities


def _data(n, d, classes, seed=0):
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % classes
    centres = torch.randn(classes, d, generator=generator, dtype=torch.float64)
    z = centres[y] + torch.randn(n, d, generator=generator, dtype=torch.float64)
    return torch.cat([z, torch.ones(n, 1)], dim=1), y


def _sklearn(z, y, l2, weights=None):
    model = LogisticRegression(C=1 / (l2 * len(y)), tol=1e-12, max_iter=100_000)
    x = z[:, :-1].numpy()
    return model.fit(x, y.numpy(), sample_weight=weights).predict_proba(x)


@pytest.mark.parametrize(("n", "d", "classes"), [(80, 4, 2), (90, 5, 3), (40, 60, 2), (60, 80, 4)])
@pytest.mark.parametrize("l2", [None, 0.1])
def test_the_fit_is_scikit_learns(n, d, classes, l2):
    z, y = _data(n, d, classes)
    l2 = 1 / n if l2 is None else l2
    said = probabilities(z, fit_logistic(z, y, classes, l2))[0]
    np.testing.assert_allclose(said, _sklearn(z, y, l2), atol=1e-6)


@pytest.mark.parametrize("classes", [2, 3])
def test_every_column_of_weights_has_its_own_fit(classes):
    z, y = _data(90, 4, classes)
    weights = torch.empty(90, 5, dtype=torch.float64).exponential_()
    weights /= weights.mean(0)
    heads = fit_logistic(z, y, classes, 0.02, weights=weights)
    for said, each in zip(probabilities(z, heads), weights.T.numpy(), strict=True):
        np.testing.assert_allclose(said, _sklearn(z, y, 0.02, each), atol=1e-6)


def test_a_few_steps_from_the_fit_come_close_to_each():
    z, y = _data(300, 4, 3)
    weights = torch.empty(300, 5, dtype=torch.float64).exponential_()
    plain = fit_logistic(z, y, 3, 1 / 300)
    near = fit_logistic(z, y, 3, 1 / 300, weights=weights, start=plain[0], steps=3)
    exact = fit_logistic(z, y, 3, 1 / 300, weights=weights)
    moved = probabilities(z, exact) - probabilities(z, plain)
    left = probabilities(z, exact) - probabilities(z, near)
    assert float(left.abs().max()) < 0.05 * float(moved.abs().max())


def test_separable_classes_and_features_that_repeat():
    z, y = _data(40, 3, 2)
    z = torch.cat([50.0 * y.unsqueeze(1), z[:, :1], z], dim=1)
    said = probabilities(z, fit_logistic(z, y, 2, 1e-4))[0]
    np.testing.assert_allclose(said, _sklearn(z, y, 1e-4), atol=1e-5)


def test_single_precision_and_many_features():
    z, y = _data(60, 2600, 2)
    heads = fit_logistic(z.float(), y, 2, 1 / 60)
    assert heads.dtype == torch.float32
    np.testing.assert_allclose(
        probabilities(z.float(), heads)[0], _sklearn(z, y, 1 / 60), atol=1e-3
    )
