"""Dispersions of the attributes of Table 1, against their definitions."""

import math

import pytest
import torch
from torch.nn.functional import cross_entropy, one_hot

from hessalign.alignment.attribute_dispersion import attribute_dispersions

DOUBLE = torch.float64


def attributes_by_definition(z, logits, y):
    """Each sample's attributes written out, classes as columns."""
    p = logits.softmax(1)
    r = p - one_hot(y, p.shape[1])
    S = torch.diag_embed(p) - torch.einsum("ni,nj->nij", p, p)
    return {
        "loss": cross_entropy(logits, y, reduction="none"),
        "feature": z,
        "covariance": torch.einsum("ni,nj->nij", z, z),
        "error": r,
        "error_feature": torch.einsum("ni,nj->nij", r, z),
        "logit": S,
        "logit_feature": torch.einsum("nij,nk->nijk", S, z),
        "logit_covariance": torch.einsum("nij,nk,nl->nijkl", S, z, z),
    }


@pytest.fixture
def samples():
    z = torch.randn(40, 3, dtype=DOUBLE)
    domain = torch.tensor([2, 5, 9])[torch.randint(3, (40,))]
    z[domain == 5] += 1
    return z, 2 * torch.randn(40, 4, dtype=DOUBLE), torch.randint(4, (40,)), domain


def test_every_attribute_is_as_defined(samples):
    z, logits, y, domain = samples
    found = attribute_dispersions(z, logits, y, domain)
    values = attributes_by_definition(z, logits, y)
    assert list(found) == list(values)
    for name, value in values.items():
        groups = [value[domain == e].flatten(1) if value.ndim > 1 else value[domain == e, None]
                  for e in (2, 5, 9)]  # fmt: skip
        means = torch.stack([group.mean(0) for group in groups])
        spread = (means - means.mean(0)).square().sum(1).mean()
        square = torch.stack([group.square().sum(1).mean() for group in groups]).mean()
        # The variance of the mean of n draws, summed over components; of E means around theirs.
        chance = sum(group.var(0).sum() / len(group) for group in groups) * (1 / 3 - 1 / 9)
        assert found[name].dispersion == pytest.approx(float(spread), rel=1e-9)
        assert found[name].mean_square == pytest.approx(float(square), rel=1e-9)
        assert found[name].chance == pytest.approx(float(chance), rel=1e-9)
        assert found[name].relative == pytest.approx(float(spread / square), rel=1e-9)
        assert 0 <= found[name].relative <= 1


def test_one_logit_is_binary():
    z, y = torch.randn(12, 2, dtype=DOUBLE), torch.randint(2, (12,))
    logits, domain = torch.randn(12, dtype=DOUBLE), torch.arange(12) % 2
    found = attribute_dispersions(z, logits, y, domain, loss="binary")
    p = logits.sigmoid()
    value = torch.einsum("n,ni,nj->nij", p * (1 - p), z, z)
    means = [value[domain == e].mean(0) for e in (0, 1)]
    expected = float((means[0] - means[1]).square().sum() / 4)
    assert found["logit_covariance"].dispersion == pytest.approx(expected, rel=1e-9)


def test_only_the_raw_dispersion_feels_the_scale_of_features(samples):
    z, logits, y, domain = samples
    small, large = (attribute_dispersions(c * z, logits, y, domain) for c in (1, 10))
    for name, power in (("feature", 2), ("logit_covariance", 4), ("error", 0)):
        ratio = large[name].dispersion / small[name].dispersion
        assert ratio == pytest.approx(10**power, rel=1e-9)
        assert large[name].relative == pytest.approx(small[name].relative, rel=1e-9)


@pytest.mark.slow
def test_without_a_difference_all_is_chance():
    """Many draws of domains that do not differ: the mean dispersion is the mean chance."""
    spread, chance = [], []
    for _ in range(300):
        z, y = torch.randn(60, 2, dtype=DOUBLE), torch.randint(2, (60,))
        domain = torch.arange(3).repeat_interleave(torch.tensor([10, 20, 30]))
        found = attribute_dispersions(z, z, y, domain)["error_feature"]
        spread.append(found.dispersion)
        chance.append(found.chance)
    assert math.fsum(spread) / math.fsum(chance) == pytest.approx(1, abs=0.1)
