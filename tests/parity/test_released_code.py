"""The procedures of the paper's released code, in small, against `fidelity="released"`.

What they do that the equations do not say: the target is the quantity of the mean loss (H̄ḡ, an
estimate of diag H̄ from probes of its own), detached in the DomainBed algorithms; there the penalty
is the mean over domains, in the Colored MNIST scripts the sum, with nothing detached.
"""

import pytest
import torch
from tests.comparison import assert_agrees, slopes
from torch import nn
from torch.autograd import grad
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

import hessalign as ha
from hessalign.alignment import gradient_dispersion, hessian_dispersion
from hessalign.alignment.penalties import POOLED
from hessalign.curvature import linear_head

ALPHA, BETA, PROBES = 0.3, 0.7, 6
SIZES = (4, 6, 5)


class Model:
    """A featurizer, a head, and minibatches of three domains."""

    def __init__(self, loss):
        classes = 3 if loss == "cross_entropy" else 1
        self.featurizer = nn.Sequential(nn.Linear(5, 4), nn.Tanh()).double()
        self.classifier = nn.Linear(4, classes).double()
        self.x = torch.randn(sum(SIZES), 5, dtype=torch.float64)
        self.y = torch.randint(max(classes, 2), (len(self.x),))
        self.domain = torch.arange(3).repeat_interleave(torch.tensor(SIZES))
        self.loss = loss

    @property
    def parameters(self):
        return (*self.featurizer.parameters(), *self.classifier.parameters())

    @property
    def head_parameters(self):
        return list(self.classifier.parameters())

    def risks(self):
        """The loss of each minibatch, domain by domain."""
        result = []
        for x, y in zip(self.x.split(SIZES), self.y.split(SIZES), strict=True):
            logits = self.classifier(self.featurizer(x))
            if self.loss == "cross_entropy":
                result.append(cross_entropy(logits, y))
            else:
                result.append(binary_cross_entropy_with_logits(logits.squeeze(1), y.double()))
        return result

    def library(self):
        z = self.featurizer(self.x)
        return z, self.classifier(z), self.y, self.domain


def flat(tensors):
    return torch.cat([tensor.flatten() for tensor in tensors])


def head_gradient(model, risk):
    return flat(grad(risk, model.head_parameters, create_graph=True))


def hessian_gradient_product(model, risk):
    """‖g‖ · ∇‖g‖, with the guards of the released code against a gradient of zero."""
    norm = (head_gradient(model, risk).square().sum() + 1e-16).sqrt()
    return norm * flat(grad(norm, model.head_parameters, create_graph=True)) + 1e-16


def diagonal_estimate(model, risk, signs):
    """Mean over probes of r ⊙ ∇(∇L · r), one double backward each."""
    total = 0
    slope = head_gradient(model, risk)
    for row in signs.double():
        by_output = row.view(model.classifier.out_features, -1)
        r = flat([by_output[:, :-1], by_output[:, -1]])  # their order: all weights, then biases
        product = flat(grad(slope @ r, model.head_parameters, create_graph=True))
        total = total + r * product
    return total / len(signs)


def released_terms(model, kind, signs, *, detach):
    """Squared distances to the target, domain by domain: of the Hessians, of the gradients."""
    risks = model.risks()
    mean_loss = sum(risks) / len(risks)
    if kind == "product":
        values = [hessian_gradient_product(model, risk) for risk in risks]
        target = hessian_gradient_product(model, mean_loss)
    else:
        own, of_mean = signs
        values = [diagonal_estimate(model, risk, own[:, e]) for e, risk in enumerate(risks)]
        target = diagonal_estimate(model, mean_loss, of_mean[:, 0])
    gradient_target = head_gradient(model, mean_loss)
    if detach:
        target, gradient_target = target.detach(), gradient_target.detach()
    return (
        [(value - target).square().sum() for value in values],
        [(head_gradient(model, risk) - gradient_target).square().sum() for risk in risks],
    )


@pytest.mark.parametrize("loss", ["cross_entropy", "binary"])
@pytest.mark.parametrize("kind", ["product", "sampled"])
def test_domainbed(drawn, kind, loss):
    model = Model(loss)
    align = ha.HessianAlignment(ALPHA, BETA, kind, loss=loss, probes=PROBES, fidelity="released")
    terms = align(*model.library())
    hessian, gradient = released_terms(model, kind, drawn, detach=True)
    expected = sum(ALPHA * h + BETA * g for h, g in zip(hessian, gradient, strict=True)) / 3
    assert_agrees(terms.hessian, sum(hessian) / 3, 1e-9)
    assert_agrees(terms.gradient, sum(gradient) / 3)
    assert_agrees(terms.penalty, expected, 1e-9)
    ours, theirs = (slopes(value, model.parameters) for value in (terms.penalty, expected))
    for a, b in zip(ours, theirs, strict=True):
        assert_agrees(a, b, 1e-9)


@pytest.mark.parametrize("loss", ["cross_entropy", "binary"])
@pytest.mark.parametrize("kind", ["product", "sampled"])
def test_colored_mnist_scripts(drawn, kind, loss):
    model = Model(loss)
    head = linear_head(*model.library(), loss=loss)
    actual = 3 * ALPHA * hessian_dispersion(head, kind, probes=PROBES, target=POOLED)
    actual = actual + 3 * BETA * gradient_dispersion(head)
    hessian, gradient = released_terms(model, kind, drawn, detach=False)
    expected = sum(ALPHA * h + BETA * g for h, g in zip(hessian, gradient, strict=True))
    assert_agrees(actual, expected, 1e-9)
    ours, theirs = (slopes(value, model.parameters) for value in (actual, expected))
    for a, b in zip(ours, theirs, strict=True):
        assert_agrees(a, b, 1e-9)


@pytest.mark.parametrize("kind", ["product", "sampled"])
def test_the_two_fidelities_differ(kind):
    """Otherwise the tests above could not tell which one the library computes."""
    model = Model("cross_entropy")
    paper, released = (
        ha.HessianAlignment(
            ALPHA,
            BETA,
            kind,
            probes=PROBES,
            fidelity=fidelity,
            generator=torch.Generator().manual_seed(1),
        )(*model.library())
        for fidelity in ("paper", "released")
    )
    assert abs(paper.hessian.item() / released.hessian.item() - 1) > 1e-3
    assert_agrees(paper.gradient, released.gradient)


def test_no_guard_is_needed_where_the_gradient_is_zero():
    """‖g‖ · ∇‖g‖ is 0 · NaN there without the guards; the closed form is just 0."""
    z = torch.randn(6, 3, dtype=torch.float64, requires_grad=True)
    logits = torch.randn(6, dtype=torch.float64, requires_grad=True)
    domain = torch.tensor([0, 0, 0, 1, 1, 1])
    for fidelity in ("paper", "released"):
        align = ha.HessianAlignment(1.0, 1.0, "product", loss="squared", fidelity=fidelity)
        terms = align(z, logits, logits.detach(), domain)
        assert terms.penalty.item() == 0
        for slope in slopes(terms.penalty, (z, logits)):
            assert not slope.any()
