"""The paper's equations and the procedures of its released code, in small, against `fidelity=`.

What the code does that the equations do not say: the target is the quantity of the mean loss (H̄ḡ,
an estimate of diag H̄ from probes of its own). The DomainBed algorithms ("domainbed") detach it and
take the mean over domains; the Colored MNIST scripts ("released") detach nothing and take the sum.
The module and the algorithms have to agree on all three.
"""

import pytest
import torch
from tests.comparison import assert_agrees, slopes
from torch import nn
from torch.autograd import grad
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

import hessalign as ha
from hessalign.bench.algorithms import Batch, Setting, Step, make_algorithm
from hessalign.bench.models import Network

FIDELITIES = ("paper", "domainbed", "released")
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


def printed_terms(model, kind, signs):
    """Eq. 17 and 20: squared distances to the mean over domains, nothing detached."""
    risks = model.risks()
    if kind == "product":
        values = [hessian_gradient_product(model, risk) for risk in risks]
    else:
        values = [diagonal_estimate(model, risk, signs[0][:, e]) for e, risk in enumerate(risks)]
    gradients = [head_gradient(model, risk) for risk in risks]
    return tuple(
        [(value - sum(vectors) / len(vectors)).square().sum() for value in vectors]
        for vectors in (values, gradients)
    )


def expected_terms(model, kind, fidelity, signs):
    """The two terms of the penalty before their weights, as each source has them."""
    if fidelity == "paper":
        terms = printed_terms(model, kind, signs)
    else:
        terms = released_terms(model, kind, signs, detach=fidelity == "domainbed")
    divisor = 1 if fidelity == "released" else len(SIZES)
    return [sum(term) / divisor for term in terms]


def module_penalty(model, kind, fidelity):
    align = ha.HessianAlignment(
        ALPHA, BETA, kind, loss=model.loss, probes=PROBES, fidelity=fidelity
    )
    terms = align(*model.library())
    return terms.hessian, terms.gradient, terms.penalty


def algorithm_penalty(model, kind, fidelity):
    """The same from the algorithm of that name, as the training loop asks for it."""
    setting = Setting(
        lambda **_: Network(model.featurizer, model.classifier),
        outputs=model.classifier.out_features,
        domains=len(SIZES),
        loss=model.loss,
        steps=1,
        generator=torch.Generator().manual_seed(0),
    )
    name = {"product": "hgp", "sampled": "hutchinson"}[kind]
    options = {"alpha": ALPHA, "beta": BETA, "probes": PROBES, "fidelity": fidelity}
    algorithm = make_algorithm(name, options, setting)
    batch = Batch(model.x, model.y, model.domain)
    terms = algorithm.terms(Step(algorithm.network, batch, 0, model.loss))
    return terms.parts["hessian"], terms.parts["gradient"], terms.penalty


@pytest.mark.pairwise
@pytest.mark.parametrize("offered", [module_penalty, algorithm_penalty])
@pytest.mark.parametrize("fidelity", FIDELITIES)
@pytest.mark.parametrize("loss", ["cross_entropy", "binary"])
@pytest.mark.parametrize("kind", ["product", "sampled"])
def test_each_fidelity_is_what_its_source_does(drawn, kind, loss, fidelity, offered):
    model = Model(loss)
    hessian, gradient, penalty = offered(model, kind, fidelity)
    own_hessian, own_gradient = expected_terms(model, kind, fidelity, drawn)
    expected = ALPHA * own_hessian + BETA * own_gradient
    assert_agrees(hessian, own_hessian, 1e-9)
    assert_agrees(gradient, own_gradient)
    assert_agrees(penalty, expected, 1e-9)
    ours, theirs = (slopes(value, model.parameters) for value in (penalty, expected))
    for a, b in zip(ours, theirs, strict=True):
        assert_agrees(a, b, 1e-9)


@pytest.mark.parametrize("kind", ["product", "sampled"])
def test_the_fidelities_differ(drawn, kind):
    """Otherwise the test above could not tell which one the library computes."""
    model, values = Model("cross_entropy"), []
    for fidelity in FIDELITIES:
        drawn.clear()
        torch.manual_seed(1)
        penalty = module_penalty(model, kind, fidelity)[-1]
        values.append(torch.cat([slope.flatten() for slope in slopes(penalty, model.parameters)]))
    for i, first in enumerate(values):
        for second in values[:i]:
            assert (first - second).norm() > 1e-3 * first.norm()


def test_no_guard_is_needed_where_the_gradient_is_zero():
    """‖g‖ · ∇‖g‖ is 0 · NaN there without the guards; the closed form is just 0."""
    z = torch.randn(6, 3, dtype=torch.float64, requires_grad=True)
    logits = torch.randn(6, dtype=torch.float64, requires_grad=True)
    domain = torch.tensor([0, 0, 0, 1, 1, 1])
    for fidelity in FIDELITIES:
        align = ha.HessianAlignment(1.0, 1.0, "product", loss="squared", fidelity=fidelity)
        terms = align(z, logits, logits.detach(), domain)
        assert terms.penalty.item() == 0
        for slope in slopes(terms.penalty, (z, logits)):
            assert not slope.any()
