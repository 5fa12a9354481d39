"""What is said of domains that do not differ, and of those that do."""

import pytest
import torch
from tests.diagnosis_data import alike, shifted

from hessalign.diagnosis import diagnose
from hessalign.diagnosis.distances import DistanceMatrix
from hessalign.diagnosis.reading import odd_one_out


def apart(beyond, low):
    """Distances of which only `beyond` and `low` matter."""
    beyond, low = torch.tensor(beyond), torch.tensor(low)
    return DistanceMatrix(beyond, beyond, beyond, low, beyond, beyond[0])


def test_nothing_is_said_of_domains_that_do_not_differ():
    """Distances beyond noise are 0 for some pairs and not for others, which means nothing."""
    for seed in range(6):
        reading = diagnose(*alike(4, 100, 3, seed=seed), l2=0.0).reading
        assert reading.odd_one_out is None
        assert reading.summary == (
            "No pair of domains differs by more than sampling explains, neither in Hessian nor in "
            "gradient.",
            "No domain stands out from all others.",
        )
        assert not any("Label shift" in text for text in reading.cannot_fix)


def test_the_odd_one_out_differs_from_every_other_domain():
    far = [[0.0, 1.0, 5.0], [1.0, 0.0, 5.0], [5.0, 5.0, 0.0]]
    sure = [[0.0, 0.0, 4.0], [0.0, 0.0, 4.0], [4.0, 4.0, 0.0]]
    unsure = [[0.0, 0.0, 0.0], [0.0, 0.0, 4.0], [0.0, 4.0, 0.0]]
    assert odd_one_out(apart(far, sure)) == (2, 5.0)
    assert odd_one_out(apart(far, unsure)) == (None, 5.0)
    assert odd_one_out(apart(sure, sure)) == (2, float("inf"))


def test_others_that_are_alike_are_said_to_be():
    z, y, domain = alike(3, 200, 3)
    z[domain == 1] = 3 * z[domain == 1]
    reading = diagnose(z, y, domain, l2=0.0).reading
    assert reading.odd_one_out == 1
    assert "“1” is the odd one out: its Hessian differs from every other" in reading.summary[1]
    assert any("the attributes of Table 1" in text for text in reading.summary)


@pytest.mark.parametrize(("kind", "label"), [("label", True), ("diversity", False)])
def test_label_shift_is_said_where_there_is_some(kind, label):
    reading = diagnose(*shifted(kind, domains=2, samples=400), l2=0.0).reading
    text = " ".join(reading.summary)
    assert ("this is mostly label shift" in text) == label
    assert any("Label shift" in entry for entry in reading.cannot_fix) == label
