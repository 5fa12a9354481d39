"""Numbers that users give: text, booleans and numbers too large are refused with a reason.

The calls run without the tests' type checks, as a user's do.
"""

import pytest
import torch
from tests.diagnosis_data import alike

import hessalign as ha

SETUP = """
torch.manual_seed(0)
z, y, domain = torch.randn(24, 2), torch.arange(24) % 2, torch.arange(24) // 12
head = torch.zeros(2, 3)

def align(**options):
    return ha.HessianAlignment(**{"alpha": 1.0, "beta": 1.0, **options})

def gap(delta=1.0, **options):
    return ha.worst_case_gap(z, y, domain, head, delta, **options)

def transfer(function, **options):
    two = {"source": 0, "target": 1, "tolerance": 0.1, "l2": 0.1}
    return function(z, y, domain, **{**two, **options})

def published(**options):
    return ha.heads.PublishedAttack(**options)
"""

ERRORS = {
    "align(alpha='1')": "Expected a finite alpha of 0 or more, got '1', a str. Give a number.",
    "align(alpha=True)": "Expected a finite alpha of 0 or more, got True, a bool. Give a number.",
    "align(beta=None)": "Expected a finite beta of 0 or more, got None, a NoneType. Give a number.",
    "align(beta=[1.0])": "Expected a finite beta of 0 or more, got [1.0], a list. Give a number.",
    "align(beta=-1)": "Expected a finite beta of 0 or more, got -1.",
    "align(alpha=10**400)": "Expected a finite alpha of 0 or more, got 1000",
    "align(probes='3')": "Expected probes as a whole number, got '3', a str. Give a number.",
    "align(probes=2.5)": "Expected probes as a whole number, got 2.5.",
    "align(bias='no')": "Expected bias as True or False, got 'no'.",
    "align(unbiased='no')": "Expected unbiased as True or False, got 'no'.",
    "align(conditional=1)": "Expected conditional as True or False, got 1.",
    "align(shared_probes=None)": "Expected shared_probes as True or False, got None.",
    "gap('1')": "Expected a positive, finite delta, got '1', a str. Give a number.",
    "gap([1.0, '2'])": "Expected a positive, finite delta, got '2', a str. Give a number.",
    "gap(True)": "Expected a positive, finite delta, got True, a bool. Give a number.",
    "gap(restarts=-1)": "Expected restarts of 0 or more, got -1.",
    "gap(restarts=1.5)": "Expected restarts as a whole number of 0 or more, got 1.5.",
    "gap(restarts='2')": "Expected restarts as a whole number of 0 or more, got '2', a str.",
    "published(epochs='2')": "Expected epochs as a whole number of 1 or more, got '2', a str.",
    "published(batch_size=1.5)": "Expected batch_size as a whole number of 1 or more, got 1.5.",
    "published(learning_rate='1')": "Expected a positive, finite learning_rate, got '1', a str.",
    "transfer(ha.transfer_bound, l2='1')": "Expected an L2 weight of 0 or more, got '1', a str.",
    "transfer(ha.transfer_bound, tolerance='1')": "Expected a positive, finite tolerance, got '1',",
    "transfer(ha.transfer_bound, outputs='2')": "Expected outputs as a whole number of 1 or more",
    "transfer(ha.transfer_measure, l2=True)": "Expected an L2 weight of 0 or more, got True, a",
    "transfer(ha.transfer_measure, restarts=-1)": "Expected restarts of 0 or more, got -1.",
    "ha.diagnose(z, y, domain, l2='1')": "Expected an L2 weight of 0 or more, got '1', a str.",
    "ha.diagnose(z, y, domain, tolerance='1')": "Expected a positive, finite tolerance, got '1',",
    "ha.diagnose(z, y, domain, samples=5.5)": "Expected samples as a whole number, got 5.5.",
}
ACCEPTED = {
    "float(align(alpha=np.float32(0.5)).alpha)": "0.5",
    "float(align(alpha=np.array(0.5)).alpha)": "0.5",
    "float(align(alpha=torch.tensor(0.5)).alpha)": "0.5",
    "int(align(beta=np.int64(3), probes=np.int32(5)).probes)": "5",
    "len(gap(np.float32(0.5), restarts=np.int64(0)).attacks)": "1",
    "len(gap(np.array([0.5, 1.0])).attacks)": "2",
    "transfer(ha.transfer_bound, l2=np.float32(0.5), tolerance=1).tolerance": "1",
}


@pytest.fixture(scope="module")
def outcomes(outcomes_without_type_checks):
    return outcomes_without_type_checks(SETUP, {call: call for call in (*ERRORS, *ACCEPTED)})


@pytest.mark.parametrize("call", ERRORS)
def test_what_was_expected_and_found_is_said(outcomes, call):
    assert outcomes[call].startswith(f"InputError: {ERRORS[call]}")


@pytest.mark.parametrize("call", ACCEPTED)
def test_numbers_of_numpy_and_torch_are_numbers(outcomes, call):
    assert outcomes[call] == ACCEPTED[call]


@pytest.mark.parametrize("scale", [True, False])
@pytest.mark.parametrize(("size", "dtype"), [(1e200, torch.float64), (1e30, torch.float32)])
def test_a_diagnosis_refuses_features_whose_products_overflow(scale, size, dtype):
    z, y, domain = alike(2, 20, 3)
    with pytest.raises(ValueError, match=r"features z of at most 1e\+\d+ in size, found .* in row"):
        ha.diagnose(z.to(dtype) * size, y, domain, scale=scale)
