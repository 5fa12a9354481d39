"""Fits of heads, and what is said of them, are of plain losses; others are refused by name."""

import pytest
import torch
from tests.transfer_problems import classification

import hessalign as ha
from hessalign.curvature.losses import check_label_loss, make_loss
from hessalign.heads import fit_aligned_head, fit_head

Z, Y, DOMAIN = classification(0).arguments
TWO = {"source": 0, "target": 1, "tolerance": 0.1, "l2": 0.1}
SEVERAL = torch.stack([Y == 0, Y == 1], 1).double()

CALLS = {
    "fit_head": lambda y, loss, k: fit_head(Z, y, l2=0.1, loss=loss),
    "fit_aligned_head": lambda y, loss, k: fit_aligned_head(
        Z, y, DOMAIN, alpha=0.1, beta=0.1, l2=0.1, loss=loss
    ),
    "transfer_measure": lambda y, loss, k: ha.transfer_measure(Z, y, DOMAIN, **TWO, loss=loss),
    "transfer_bound": lambda y, loss, k: ha.transfer_bound(Z, y, DOMAIN, **TWO, loss=loss),
    "worst_case_gap": lambda y, loss, k: ha.worst_case_gap(
        Z, y, DOMAIN, torch.zeros(k, Z.shape[1]), 0.1, loss=loss
    ),
}


def poisson(a, y):
    return a.exp().sum() - y * a.sum()


LOSSES = {
    "class weights": (Y, ha.CrossEntropy(torch.ones(3)), 3, "CrossEntropy with options"),
    "smoothing": (Y, ha.CrossEntropy(label_smoothing=0.1), 3, "CrossEntropy with options"),
    "ignored": (Y, ha.CrossEntropy(ignore_index=-1), 3, "CrossEntropy with options"),
    "multilabel": (SEVERAL, "multilabel", 2, 'loss="multilabel"'),
    "multilabel, one column": (SEVERAL[:, 0], "multilabel", 1, 'loss="multilabel"'),
    "several": (SEVERAL, ha.Binary(several=True), 2, 'loss="multilabel"'),
    "own": (Y, ha.OwnLoss(poisson), 1, "a function"),
    "soft": (SEVERAL, "cross_entropy", 2, "soft targets y"),
}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("function", CALLS)
def test_what_cannot_be_fitted_is_refused(unchecked, function, name):
    y, loss, outputs, found = LOSSES[name]
    with pytest.raises(
        ValueError,
        match='Expected loss="cross_entropy", "binary" or "squared" with one target per sample for '
        f"the fit of a head, got {found}. HessianAlignment, linear_head and the distances take it",
    ):
        CALLS[function](y, loss, outputs)


@pytest.mark.parametrize("loss", ["multilabel", "squared", "own"])
def test_a_diagnosis_is_of_labels(loss):
    with pytest.raises(ValueError, match=f"Unknown loss of a diagnosis '{loss}'"):
        ha.diagnose(Z, Y, DOMAIN, loss=loss)


@pytest.mark.parametrize("loss", ["cross_entropy", "binary", "squared"])
def test_plain_losses_pass(loss):
    check_label_loss(make_loss(loss), Y)
    check_label_loss(ha.Squared(make_loss("squared", "tanh").activation), SEVERAL)
    check_label_loss(ha.CrossEntropy(), Y)
    check_label_loss(ha.Binary(), SEVERAL[:, :1])
