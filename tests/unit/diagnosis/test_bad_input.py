"""Input that is wrong, or unusual: a clear error, or a defined answer."""

import pytest
import torch
from tests.diagnosis_data import alike, shifted

from hessalign._errors import InputError
from hessalign.diagnosis import diagnose


def test_one_domain():
    z, y, _ = alike(1, 20, 3)
    with pytest.raises(ValueError, match="Expected samples of at least 2 domains, got only domain"):
        diagnose(z, y, torch.full((20,), 4))


def test_one_class():
    z, _, domain = alike(2, 20, 3)
    with pytest.raises(
        ValueError, match="Expected samples of at least 2 classes, found only 'ill'"
    ):
        diagnose(z, torch.zeros(40).long(), domain, class_names=["ill", "well"])


def test_too_few_samples():
    z, y, domain = alike(2, 20, 3)
    domain[:18] = 1
    with pytest.raises(ValueError, match="at least 4 samples of each domain, but 'north' has 2"):
        diagnose(z, y, domain, domain_names=["north", "south"])
    with pytest.raises(ValueError, match="Expected samples of 4 or more of each domain, got 3"):
        diagnose(*alike(2, 20, 3), samples=3)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"loss": "squared"}, "Unknown loss of a diagnosis 'squared'"),
        ({"l2": -1.0}, "Expected an L2 weight of 0 or more, got -1.0"),
        ({"seed": 2**32}, "Expected seed of at most 4294967295, got 4294967296"),
        ({"tolerance": 0.0}, "Expected a positive, finite tolerance, got 0.0"),
        (
            {"trained_on": [7]},
            r"Expected trained_on to hold positions of domains, 0 to 1, got \[7\]",
        ),
        ({"trained_on": [0, 2]}, r"positions of domains, 0 to 1, got \[0, 2\]"),
        ({"trained_on": [-1]}, r"positions of domains, 0 to 1, got \[-1\]"),
        ({"trained_on": []}, r"positions of domains, 0 to 1, got \[\]"),
        ({"domain_names": ["a"]}, "Expected a name for each domain, 2, got 1 names"),
        ({"class_names": ["a"]}, "Expected a name for each class, 3, got 1 names"),
        ({"head": torch.zeros(2, 4)}, "Expected a head with 3 outputs for 3 classes, got 2"),
        ({"head": torch.zeros(3, 9)}, r"Expected a head of shape \[outputs, 3\]"),
        (
            {"head": torch.zeros(2, 4), "loss": "binary"},
            r'with 1 output for loss="binary", got 2. Use loss="cross_entropy"',
        ),
    ],
)
def test_options_out_of_range(options, text):
    with pytest.raises(ValueError, match=text):
        diagnose(*alike(2, 20, 3), **options)


def test_labels_that_are_not_classes(outcomes_without_type_checks):
    outcomes = outcomes_without_type_checks(
        "z, y, domain = torch.randn(8, 2), torch.arange(8) % 2, torch.arange(8) // 4",
        {
            "float": "ha.diagnose(z, y.float(), domain)",
            "negative": "ha.diagnose(z, y - 1, domain)",
            "short": "ha.diagnose(z, y[:4], domain)",
            "nan": "ha.diagnose(z / 0, y, domain)",
        },
    )
    assert "Expected integer class labels y, got torch.float32" in outcomes["float"]
    assert "Expected class labels y of 0 or more, found -1" in outcomes["negative"]
    assert "Expected one label y per row of z, 8, got [4]" in outcomes["short"]
    assert "Expected finite features z" in outcomes["nan"]


def test_separable_data_without_l2_have_no_best_head():
    z, y, domain = alike(2, 20, 3)
    z[:, 0] = y * 10.0
    with pytest.raises(ValueError, match=r"no minimum exists. Use l2 > 0"):
        diagnose(z, y, domain, l2=0.0)


def test_an_l2_of_more_digits_than_torch_takes(outcomes_without_type_checks):
    outcomes = outcomes_without_type_checks(
        "z, y, domain = torch.randn(80, 2), torch.arange(80) % 2, torch.arange(80) // 20",
        {
            "long": f"ha.diagnose(z, y, domain, l2={10**20}).transfer",
            "float": "ha.diagnose(z, y, domain, l2=1e20).transfer",
        },
    )
    assert outcomes["long"].startswith("TransferReport")
    assert outcomes["long"] == outcomes["float"]


def test_without_l2_what_needs_single_heads_is_left_out():
    z, y, domain = shifted("diversity", samples=200, core=2, other=2)
    y = torch.where(torch.rand(800) < 0.2, 1 - y, y)
    found = diagnose(z, y, domain, l2=0.0)
    assert found.head.at_optimum
    assert found.transfer is None
    assert found.remedies is None
    assert found.crossing is None
    assert found.bounds is None
    assert any("Without an L2 term" in note for note in found.notes)


def test_a_class_in_one_domain_only_is_named():
    z, y, domain = alike(3, 60, 3)
    y[domain > 0] %= 2
    names = {"domain_names": ["a", "b", "c"], "class_names": ["x", "y", "rare"]}
    found = diagnose(z, y, domain, **names)
    assert any("Class “rare” is seen at site “a” only" in note for note in found.notes)
    rare = float((y[domain == 0] == 2).double().mean())
    assert found.transfer.sites[0].unseen["accuracy"].value <= 1 - rare


def test_constant_and_copied_features_are_counted_and_do_no_harm():
    z, y, domain = alike(2, 80, 4)
    plain = diagnose(z, y, domain)
    constant = diagnose(torch.cat([z, torch.full((160, 2), 3.3)], dim=1), y, domain)
    assert constant.notes[0].startswith("2 of 6 columns are constant")
    torch.testing.assert_close(
        constant.distances.hessian.measured,
        plain.distances.hessian.measured,
        rtol=1e-4,
        atol=1e-6,
    )
    copied = diagnose(torch.cat([z, z[:, :1]], dim=1), y, domain)
    assert any("1 of 5 columns is an exact copy" in note for note in copied.notes)
    assert copied.distances.hessian.measured.isfinite().all()


def test_a_time_stamp_is_not_constant():
    z, y, domain = alike(2, 80, 4)
    plain = diagnose(z, y, domain)
    stamped = diagnose(z * 1000 + 1.7e9, y, domain)
    assert not any("constant" in note for note in stamped.notes)
    torch.testing.assert_close(
        stamped.distances.hessian.measured,
        plain.distances.hessian.measured,
        rtol=1e-4,
        atol=1e-6,
    )


def test_features_and_head_that_require_gradients():
    z, y, domain = alike(2, 20, 3)
    layer = torch.nn.Linear(3, 3).double()
    plain = diagnose(z, y, domain, head=layer)
    found = diagnose(z.requires_grad_(), y, domain, head=layer)
    assert torch.equal(found.distances.hessian.measured, plain.distances.hessian.measured)


def test_two_domains_are_told_so():
    found = diagnose(*alike(2, 40, 3))
    assert found.crossing is None
    assert "align" not in {trial.remedy for trial in found.remedies.trials}
    assert any("With two sites each model has seen" in text for text in found.verdict.transfer)


def test_two_hundred_domains():
    z, y, domain = alike(200, 6, 3)
    z[domain == 77] += 5
    found = diagnose(z, y, domain)
    assert found.distances.hessian.measured.shape == (200, 200)
    assert len(found.focus) == 8
    assert len(found.transfer.sites) == 8
    assert len(found.spectral.distances) == 28
    assert any("Of 200 sites, 8 were looked at" in note for note in found.notes)
    assert int(found.distances.gradient.measured.sum(1).argmax()) == 77


def test_a_thousand_classes():
    z, _, domain = alike(2, 500, 6)
    y = torch.arange(1000) % 1000
    y = torch.cat([y[::2], y[::2]]) + torch.cat([torch.zeros(500), torch.ones(500)]).long() % 2
    found = diagnose(z, y, domain, samples=300)
    assert len(found.classes) == 1000
    assert found.distances.hessian.measured.isfinite().all()
    assert float(found.contributions.pairs[0].classes.sum()) == pytest.approx(1)
    assert any("more classes are seen at one site only" in note for note in found.notes)


def test_classes_without_samples_change_no_cause():
    z, y, domain = alike(3, 40, 3)
    z[domain == 1] *= 3
    y = (z[:, 0] > 0).long()
    assert diagnose(z, 300 * y, domain).causes == diagnose(z, y, domain).causes


def test_identical_domains():
    z, y, _ = alike(1, 60, 3)
    found = diagnose(torch.cat([z, z]), torch.cat([y, y]), torch.arange(2).repeat_interleave(60))
    assert float(found.distances.hessian.measured[0, 1]) == pytest.approx(0, abs=1e-6)
    assert found.verdict.holds == "yes"
    assert "Nothing that was tried helps beyond luck" in found.verdict.remedies[0]


def test_features_have_a_name_each():
    z, y, domain = alike(2, 20, 3)
    with pytest.raises(InputError, match="Expected a name for each feature, 3, got 2 names"):
        diagnose(z, y, domain, feature_names=["age", "weight"])
