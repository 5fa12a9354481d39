"""The checks of what a caller hands in, and what they say."""

import re

import pytest
import torch

import hessalign as ha
from hessalign.curvature.inputs import (
    check_domain,
    check_features,
    check_finite,
    check_logits,
    check_targets,
    domain_ids,
)
from hessalign.curvature.losses import make_loss

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("z", [torch.zeros(2, 3), torch.zeros(1, 1).double(), torch.ones(2, 0)])
def test_good_features(z):
    check_features(z)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_good_features_of_low_precision(dtype):
    check_features(torch.ones(3, 2, dtype=dtype))


@pytest.mark.parametrize(
    ("z", "error", "text"),
    [
        (torch.zeros(2, 3, dtype=torch.long), TypeError, r"got torch.int64. Use z.float\(\)"),
        (
            torch.zeros(2, 3, dtype=torch.bool),
            TypeError,
            "floating-point features z, got torch.bool",
        ),
        (torch.zeros(2, 3).cfloat(), TypeError, "floating-point features z, got torch.complex64"),
        (torch.zeros(2), ValueError, r"features z of shape \[n, d\], got \[2\]"),
        (torch.zeros(2, 3, 4), ValueError, r"got \[2, 3, 4\]. Flatten what comes after"),
        (torch.zeros(0, 3), ValueError, "at least one sample, got none: every domain is empty"),
        (torch.tensor([[0.0], [NAN]]), ValueError, "Expected finite features z"),
    ],
)
def test_bad_features(z, error, text):
    with pytest.raises(error, match=text):
        check_features(z)


def test_logits_become_a_matrix():
    assert check_logits(torch.zeros(4), 4).shape == (4, 1)
    assert check_logits(torch.zeros(4, 3), 4).shape == (4, 3)


@pytest.mark.parametrize(
    ("logits", "error", "text"),
    [
        (torch.zeros(4, 2, dtype=torch.int32), TypeError, "floating-point logits, got torch.int32"),
        (
            torch.zeros(3, 2),
            ValueError,
            r"shape \[4, classes\], one row per row of z, got \[3, 2\]",
        ),
        (torch.zeros(4, 2, 2), ValueError, r"got \[4, 2, 2\]"),
        (torch.zeros(()), ValueError, r"got \[\]"),
        (torch.full((4, 2), INF), ValueError, "finite logits, found 8 NaN or infinite values in 4"),
    ],
)
def test_bad_logits(logits, error, text):
    with pytest.raises(error, match=text):
        check_logits(logits, 4)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.int64, torch.uint8])
def test_good_domain(dtype):
    check_domain(torch.tensor([1, 2, 100], dtype=dtype), 3)


@pytest.mark.parametrize(
    ("domain", "error", "text"),
    [
        (
            torch.zeros(3),
            TypeError,
            "domain as an integer tensor, one id per sample, got torch.float32",
        ),
        (
            torch.zeros(3, dtype=torch.bool),
            TypeError,
            r"got torch.bool. Use domain.long\(\)",
        ),
        (torch.zeros(2).long(), ValueError, r"one domain id per row of z, shape \[3\], got \[2\]"),
        (torch.zeros(3, 1).long(), ValueError, r"got \[3, 1\]"),
    ],
)
def test_bad_domain(domain, error, text):
    with pytest.raises(error, match=text):
        check_domain(domain, 3)


@pytest.mark.parametrize(
    ("y", "text"),
    [
        (torch.zeros(2).long(), r"one target y per row of z, 3 in all, got shape \[2\]"),
        (torch.tensor(1), r"got shape \[\]"),
    ],
)
def test_targets_of_another_length(y, text):
    with pytest.raises(ValueError, match=text):
        check_targets(y, torch.zeros(3, 2), make_loss("cross_entropy"))


def test_targets_may_be_missing():
    check_targets(None, torch.zeros(3, 2), make_loss("cross_entropy"))


def test_finite_names_the_row_and_the_count():
    values = torch.zeros(5, 3)
    values[2, 1], values[2, 2], values[4, 0] = NAN, INF, -INF
    with pytest.raises(
        ValueError,
        match=r"Expected finite stuff, found 3 NaN or infinite values in 2 of 5 rows, the first "
        "in row 2. The model may have diverged: lower the learning rate or check the inputs",
    ):
        check_finite(values, "stuff")


def test_finite_names_the_element_of_a_vector():
    with pytest.raises(
        ValueError, match="1 NaN or infinite values in 1 of 3 rows, the first in row 1"
    ):
        check_finite(torch.tensor([0.0, INF, 0.0]), "logits")


def test_opposite_infinities_do_not_hide_each_other():
    with pytest.raises(ValueError, match="found 2 NaN or infinite values"):
        check_finite(torch.tensor([[INF], [-INF]]), "logits")


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_large_finite_numbers_whose_sum_overflows_are_fine(dtype):
    check_finite(torch.full((10, 2), torch.finfo(dtype).max, dtype=dtype), "features z")


@pytest.mark.parametrize(
    ("dtype", "scale", "limit"), [(torch.float64, 1e200, "1e+75"), (torch.float32, 1e25, "1e+18")]
)
def test_features_whose_products_overflow_are_refused(dtype, scale, limit):
    z = torch.ones(3, 2, dtype=dtype)
    z[1, 0] = scale
    with pytest.raises(ValueError, match=f"of at most {re.escape(limit)} in size, .* in row 1: "):
        check_features(z)


@pytest.mark.parametrize(
    ("dtype", "size"), [(torch.float16, 6e4), (torch.float32, 1e18), (torch.float64, 1e75)]
)
def test_features_that_can_be_multiplied_are_fine(dtype, size):
    check_features(torch.full((300, 2), size, dtype=dtype))


UNTYPED = {
    "array of features": (
        "check_features(np.zeros((2, 3), dtype=np.float32))",
        "InputTypeError: Expected floating-point features z, got ndarray",
    ),
    "list of features": (
        "check_features([[0.0]])",
        "InputTypeError: Expected floating-point features z, got list",
    ),
    "list of logits": (
        "check_logits([[0.0, 1.0]], 1)",
        "InputTypeError: Expected floating-point logits, got list",
    ),
    "list of ids": (
        "check_domain([0, 1], 2)",
        "InputTypeError: Expected domain as an integer tensor, one id per sample, got list. "
        r"Use torch.as_tensor\(domain\)\.",
    ),
    "array of ids": (
        "check_domain(np.array([0, 1]), 2)",
        "InputTypeError: Expected domain as an integer tensor, one id per sample, got ndarray",
    ),
    "list of targets": (
        'check_targets([0, 1], torch.zeros(2, 2), make_loss("cross_entropy"))',
        "InputTypeError: Expected y as a tensor, got list",
    ),
}


@pytest.fixture(scope="module")
def untyped(outcomes_without_type_checks):
    return outcomes_without_type_checks(
        """
        from hessalign.curvature.inputs import (
            check_domain, check_features, check_logits, check_targets
        )
        from hessalign.curvature.losses import make_loss
        """,
        {name: call for name, (call, _) in UNTYPED.items()},
    )


@pytest.mark.parametrize("name", UNTYPED)
def test_what_is_no_tensor_is_named(untyped, name):
    assert re.match(UNTYPED[name][1], untyped[name]), untyped[name]


@pytest.mark.parametrize(
    "domain",
    [torch.tensor([7, 2, 7, 2, 9]), ha.domain_layout(torch.tensor([7, 2, 7, 2, 9]))],
    ids=["ids", "layout"],
)
def test_ids_from_whatever_says_the_domain(domain):
    assert domain_ids(domain, torch.zeros(5, 1)).tolist() == [7, 2, 7, 2, 9]


def test_ids_from_sizes():
    assert domain_ids((1, 3), torch.zeros(4, 1)).tolist() == [0, 1, 1, 1]
    assert domain_ids(ha.domain_layout((1, 3)), torch.zeros(4, 1)).tolist() == [0, 1, 1, 1]
