"""What is wrong with an input is said before any maths runs, and how to repair it."""

import pytest
import torch
from tests.transfer_problems import classification, regression

from hessalign import transfer_bound, transfer_measure, worst_case_gap
from hessalign.heads import PublishedAttack, fit_head

NAN = float("nan")
INFINITY = float("inf")
PROBLEM = classification(0)
Z, Y, DOMAIN = PROBLEM.arguments
HEAD = torch.zeros(3, 4)
TWO = {"source": 0, "target": 1, "tolerance": 0.1, "l2": 0.1}


@pytest.mark.parametrize("function", [transfer_measure, transfer_bound])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tolerance": 0.0}, "Expected a positive, finite tolerance, got 0"),
        ({"tolerance": -1.0}, "Expected a positive, finite tolerance, got -1"),
        ({"tolerance": NAN}, "Expected a positive, finite tolerance, got nan"),
        ({"l2": -0.1}, r"Expected an L2 weight of 0 or more, got -0\.1"),
        ({"l2": NAN}, "Expected an L2 weight of 0 or more, got nan"),
        ({"source": 7}, "Expected the source to be one of the domains 0, 1, got 7"),
        ({"target": -1}, "Expected the target to be one of the domains 0, 1, got -1"),
        ({"target": 0}, "Expected two different domains as source and target, got 0 for both"),
        ({"loss": "hinge"}, "Unknown loss 'hinge'"),
        ({"outputs": 2}, "Expected labels from 0 to 1 .* found labels from 0 to 2"),
    ],
)
def test_transfer(function, change, message):
    with pytest.raises(ValueError, match=message):
        function(Z, Y, DOMAIN, **{**TWO, **change})


@pytest.mark.parametrize("function", [transfer_measure, transfer_bound])
def test_one_domain_only(function):
    with pytest.raises(
        ValueError, match=r"at least 2 domains, got only domain 0: a gap is between"
    ):
        function(Z, Y, torch.zeros_like(DOMAIN), **TWO)


@pytest.mark.parametrize("function", [transfer_measure, transfer_bound])
def test_separable_data_without_l2(function):
    z = torch.linspace(-1, 1, 20, dtype=torch.float64).unsqueeze(1)
    y, domain = (z[:, 0] > 0).long(), torch.arange(20) % 2
    with pytest.raises(ValueError, match=r"without an L2 term no minimum exists\. Use l2 > 0"):
        function(z, y, domain, **{**TWO, "l2": 0.0})


def test_flat_sources_without_l2():
    problem = regression(1, features=9, sizes=(4, 30))
    options = {**TWO, "l2": 0.0, "loss": "squared"}
    with pytest.raises(ValueError, match=r"source features that span all 10 .* Use l2 > 0"):
        transfer_measure(*problem.arguments, **options)
    with pytest.raises(ValueError, match=r"strongly convex .* μ = 0 from 'hessian' .* Use l2 > 0"):
        transfer_bound(*problem.arguments, **options)


def test_softmax_without_l2_is_not_strongly_convex_but_has_a_transfer_measure():
    options = {**TWO, "l2": 0.0, "tolerance": 0.01}
    assert transfer_measure(Z, Y, DOMAIN, **options).feasible
    with pytest.raises(ValueError, match="Expected a strongly convex risk, found μ = 0"):
        transfer_bound(Z, Y, DOMAIN, **options)


def test_bound_of_another_problem():
    other = transfer_measure(Z[:, :2], Y, DOMAIN, **TWO)
    with pytest.raises(
        ValueError, match=r"same problem, with a head of shape \[3, 4\], got \[3, 3"
    ):
        transfer_bound(Z, Y, DOMAIN, **TWO, measure=other)


def test_unknown_names(outcomes_without_type_checks):
    found = outcomes_without_type_checks(
        """
        z, y, domain = torch.randn(8, 2), torch.arange(8) % 2, torch.arange(8) // 4
        two = dict(source=0, target=1, tolerance=0.1, l2=0.1)
        """,
        {
            "mode": "ha.worst_case_gap(z, y, domain, torch.zeros(2, 3), 1.0, mode='publish')",
            "convexity": "ha.transfer_bound(z, y, domain, **two, strong_convexity='hess')",
            "y": "ha.transfer_measure(z, y.tolist(), domain, **two)",
            "z": "ha.worst_case_gap(z.tolist(), y, domain, torch.zeros(2, 3), 1.0)",
            "head": "ha.worst_case_gap(z, y, domain, torch.nn.ReLU(), 1.0)",
            "integer": "ha.worst_case_gap(z, y, domain, torch.zeros(2, 3).long(), 1.0)",
            "delta": "ha.worst_case_gap(z, y, domain, torch.zeros(2, 3), np.float32(1)).attacks",
            "deltas": "len(ha.worst_case_gap(z, y, domain, torch.zeros(2, 3), np.ones(2)).attacks)",
            "int": "len(ha.worst_case_gap(z, y, domain, torch.zeros(2, 3), 1).attacks)",
        },
    )
    assert found["mode"].endswith("Did you mean 'published'?")
    assert "Unknown strong_convexity 'hess'" in found["convexity"]
    assert found["y"] == "InputTypeError: Expected y as a tensor, got list. Use torch.as_tensor(y)."
    assert found["z"].startswith("InputTypeError: Expected floating-point features z, got list")
    linear = "Expected the head as a torch.nn.Linear or its matrix, got "
    assert found["head"] == f"InputTypeError: {linear}ReLU."
    assert found["integer"] == f"InputTypeError: {linear}torch.int64."
    assert found["int"] == found["deltas"] == "1"
    assert "delta=1.0" in found["delta"]


@pytest.mark.parametrize("delta", [0.0, -1.0, NAN, INFINITY, [1.0, 0.0]])
def test_delta(delta):
    with pytest.raises(ValueError, match="Expected a positive, finite delta, got"):
        worst_case_gap(Z, Y, DOMAIN, HEAD, delta)


def test_no_delta():
    with pytest.raises(ValueError, match="Expected at least one delta, got none"):
        worst_case_gap(Z, Y, DOMAIN, HEAD, [])


def test_attack_on_one_domain():
    with pytest.raises(ValueError, match="at least 2 domains, got only domain 5"):
        worst_case_gap(Z, Y, torch.full_like(DOMAIN, 5), HEAD, 1.0)


@pytest.mark.parametrize("shape", [(3, 2), (3, 6), (4,)])
def test_head_of_the_wrong_shape(shape):
    with pytest.raises(ValueError, match=r"shape \[outputs, 3\], or \[outputs, 4\] with its bias"):
        worst_case_gap(Z, Y, DOMAIN, torch.zeros(shape), 1.0)


@pytest.mark.parametrize(("inputs", "bias"), [(2, True), (4, False)])
def test_a_layer_for_one_feature_more_or_less(inputs, bias):
    """Its parameters are as many as those of a head with, or without, a bias."""
    layer = torch.nn.Linear(inputs, 3, bias=bias)
    with pytest.raises(ValueError, match=f"head for the 3 features of z, got one for {inputs}"):
        worst_case_gap(Z, Y, DOMAIN, layer, 1.0)


def test_head_with_too_few_outputs():
    with pytest.raises(ValueError, match="Expected labels from 0 to 1"):
        worst_case_gap(Z, Y, DOMAIN, torch.zeros(2, 4), 1.0)


def test_head_that_diverged():
    with pytest.raises(ValueError, match="Expected finite parameters of the head"):
        worst_case_gap(Z, Y, DOMAIN, torch.full((3, 4), NAN), 1.0)


def test_evaluation_samples_that_do_not_suit_the_head():
    with pytest.raises(ValueError, match=r"to match z; got \[3, 4\]"):
        worst_case_gap(Z, Y, DOMAIN, HEAD, 1.0, evaluation=(Z[:, :1], Y, DOMAIN))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"learning_rate": 0.0}, "Expected a positive, finite learning_rate, got 0"),
        ({"batch_size": 0}, "Expected batch_size of 1 or more, got 0"),
        ({"epochs": 0}, "Expected epochs of 1 or more, got 0"),
    ],
)
def test_settings_of_the_published_attack(options, message):
    with pytest.raises(ValueError, match=message):
        PublishedAttack(**options)


def test_a_loss_that_is_not_convex():
    from hessalign.curvature import make_loss

    problem = regression(2)
    with pytest.raises(ValueError, match=r"convex in the head, got .* activation 'tanh'"):
        fit_head(problem.z, problem.y, make_loss("squared", "tanh"), 0.1)


@pytest.mark.parametrize(
    ("z", "limit"), [(Z * 1e200, "75"), (Z * 1e80, "75"), (Z.float() * 1e25, "18")]
)
def test_features_whose_products_overflow(z, limit):
    message = rf"features z of at most 1e\+{limit} in size, found .* in row \d+: .*scale"
    for function in (transfer_measure, transfer_bound):
        with pytest.raises(ValueError, match=message):
            function(z, Y, DOMAIN, **TWO)
    with pytest.raises(ValueError, match=message):
        worst_case_gap(z, Y, DOMAIN, HEAD, 1.0)
    with pytest.raises(ValueError, match=message):
        worst_case_gap(Z.to(z.dtype), Y, DOMAIN, HEAD, 1.0, evaluation=(z, Y, DOMAIN))
    with pytest.raises(ValueError, match=message):
        fit_head(z, Y, l2=0.1)
