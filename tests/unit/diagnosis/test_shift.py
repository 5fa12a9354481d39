"""Label shift against feature shift where the truth is known."""

import pytest
import torch
from tests.diagnosis_data import alike, shifted

import hessalign as ha
from hessalign.diagnosis import diagnose
from hessalign.diagnosis.comparison import shift_report
from hessalign.diagnosis.draw import draw_samples
from hessalign.diagnosis.pair_sums import pair_sums


def report(z, y, domain, theta):
    draw = draw_samples(z, y, domain, scale=False)
    head = ha.linear_head(draw.z, draw.z @ theta, draw.y, draw.domain)
    return shift_report(pair_sums(draw, head), draw, [(0, 1)]).pairs[0], draw, head


def test_the_parts_follow_their_definition():
    """Without the correction for noise, from dense class means."""
    z, y, domain = alike(2, 40, 3)
    y[:10] = 0
    z[40:] += 0.4
    theta = torch.randn(3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found, draw, head = report(z, y, domain, theta)
    each = ha.linear_head(draw.z, head.logits, draw.y, torch.arange(80))
    for name, values in (("hessian", each.hessian.flatten(1)), ("gradient", each.gradient)):
        label = feature = 0.0
        noise_label = noise_feature = 0.0
        means, shares = {}, {}
        for e in (0, 1):
            for c in range(3):
                rows = (draw.domain == e) & (draw.y == c)
                means[e, c], shares[e, c] = values[rows].mean(0), float(rows.sum()) / 40
        for c in range(3):
            label = label + (shares[0, c] - shares[1, c]) * (means[0, c] + means[1, c]) / 2
            feature = feature + (shares[0, c] + shares[1, c]) / 2 * (means[0, c] - means[1, c])
        delta = values[draw.domain == 0].mean(0) - values[draw.domain == 1].mean(0)
        torch.testing.assert_close(label + feature, delta)
        for e, sign in ((0, 1), (1, -1)):
            mine = values[draw.domain == e]
            total = float(mine.var(0).sum()) / 40
            within = 0.0
            for c in range(3):
                rows = (draw.domain == e) & (draw.y == c)
                variance = float(values[rows].var(0).sum()) / 40
                within += shares[e, c] * variance
                noise_feature += (shares[0, c] + shares[1, c]) / 2 * variance
                noise_label += sign * (shares[0, c] - shares[1, c]) / 2 * variance
            noise_label += total - within
        square = float(delta @ delta)
        part = getattr(found, name)
        assert part.label == pytest.approx(max(0, float(label @ delta) - noise_label) / square)
        assert part.feature == pytest.approx(
            max(0, float(feature @ delta) - noise_feature) / square
        )
        assert part.noise == pytest.approx(min(1, (noise_label + noise_feature) / square))


def test_label_shift_is_found_as_such():
    z, y, domain = shifted("label", domains=2, samples=1500)
    pairs = {entry.pair: entry for entry in diagnose(z, y, domain).shift.pairs}
    for pair in ((0, 2), (1, 2)):
        found = pairs[pair]
        assert found.label_distance > 0.6
        assert found.gradient.label > 0.85
        assert found.gradient.feature < 0.12


@pytest.mark.parametrize("kind", ["correlation", "diversity"])
def test_feature_shift_is_found_as_such(kind):
    z, y, domain = shifted(kind, domains=2, samples=1500)
    pairs = {entry.pair: entry for entry in diagnose(z, y, domain).shift.pairs}
    for pair in ((0, 2), (1, 2)):
        found = pairs[pair]
        assert found.label_distance < 0.05
        assert found.gradient.feature > 0.9
        assert found.gradient.label < 0.05


def test_where_nothing_differs_it_is_noise():
    z, y, domain = alike(2, 400, 5)
    found = diagnose(z, y, domain).shift.pairs[0]
    for part in (found.hessian, found.gradient):
        assert part.noise > 0.6
        assert part.label < 0.3


def test_a_class_in_one_domain_only_is_label_shift():
    z, y, domain = alike(2, 300, 4)
    y[domain == 1] = y[domain == 1] % 2
    theta = torch.eye(4, 3, dtype=torch.float64)
    found, _, _ = report(z, y, domain, theta)
    assert found.label_distance == pytest.approx(
        float((y[domain == 0] == 2).double().mean()), abs=0.1
    )
    assert all(0 <= value <= 1.2 for value in (found.gradient.label, found.gradient.feature))
