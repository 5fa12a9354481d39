r"""The cases of losses with options, and what they should be by torch's own loss functions.

The risk of a domain is what torch's reduction makes of it, as a function of a linear head's
parameters; `torch.func` differentiates it. Nothing here knows a closed form of the library. Sample
weights are not torch's: a weighted risk is Σ ω ℓ / Σ ω, with class weights Σ ω ℓ / Σ ω w_y, from
the values that torch gives without reduction.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from tests import oracles
from tests.cases import UNSORTED, Batch
from torch import Tensor
from torch.func import grad, hessian
from torch.nn import functional

import hessalign as ha

CLASS_WEIGHT = torch.tensor([0.5, 2.0, 1.25], dtype=torch.float64)
IGNORED = -100
SORTED = (0,) * 5 + (1,) * 3 + (2,) * 4


def cross_entropy(**options):
    """torch's loss with these options, by its own reduction."""

    def risk(logits, y, reduction):
        return functional.cross_entropy(logits, y, reduction=reduction, **options)

    return risk


def summed_binary(logits, y, reduction):
    """Independent labels: the sum over them, the mean over samples."""
    values = functional.binary_cross_entropy_with_logits(
        logits, y.to(logits.dtype), reduction="none"
    ).sum(1)
    return values.mean() if reduction == "mean" else values


def poisson(logits, y, reduction):
    """torch's Poisson loss of one output."""
    return functional.poisson_nll_loss(logits.squeeze(1), y, log_input=True, reduction=reduction)


def poisson_of_one(a, y):
    return (a.exp() - y * a).sum()


THRESHOLDS = (-1.0, 0.3, 1.1)


def ordinal(logits, y, reduction):
    """A cumulative logit model of four levels: p(level ≤ j) = σ(t_j − a)."""
    steps = torch.sigmoid(torch.tensor(THRESHOLDS, dtype=logits.dtype) - logits)
    zero, one = torch.zeros_like(logits), torch.ones_like(logits)
    levels = torch.cat([steps, one], 1) - torch.cat([zero, steps], 1)
    values = -levels.gather(1, y.unsqueeze(1)).squeeze(1).log()
    return values.mean() if reduction == "mean" else values


def ordinal_of_one(a, y):
    """The same for one sample, as a user would write it."""
    edges = torch.tensor((-torch.inf, *THRESHOLDS, torch.inf), dtype=a.dtype)
    return -(torch.sigmoid(edges[y + 1] - a[0]) - torch.sigmoid(edges[y] - a[0])).log()


def coupled(logits, y, reduction):
    """Two outputs that do not separate, and a target of two numbers."""
    values = (logits[:, 0] * logits[:, 1] - y[:, 0]).square() + torch.cosh(logits[:, 0] - y[:, 1])
    return values.mean() if reduction == "mean" else values


def coupled_of_one(a, y):
    return (a[0] * a[1] - y[0]) ** 2 + torch.cosh(a[0] - y[1])


@dataclass(frozen=True)
class OptionCase:
    """How to build a batch, how the library should read it, and what its risk is."""

    name: str
    loss: object
    risk: Callable[[Tensor, Tensor, str], Tensor]
    targets: str
    outputs: int = 3
    bias: bool = True
    domain: tuple[int, ...] = UNSORTED
    weighted: bool = False
    class_weight: Tensor | None = None
    features: int = 4

    @property
    def options(self):
        """Keyword arguments of the library's functions."""
        return {"loss": self.loss, "bias": self.bias}

    def build(self):
        """The batch, and the weights of the samples, or None."""
        generator = torch.Generator().manual_seed(len(self.name))
        n = len(self.domain)

        def draw(*shape):
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        z, logits, noise = draw(n, self.features), draw(n, self.outputs), draw(n, self.outputs)
        labels = torch.randint(self.outputs, (n,), generator=generator)
        y = {
            "labels": labels,
            "ignored": torch.where(torch.arange(n) % 4 == 1, IGNORED, labels),
            "soft": noise.softmax(1),
            "not summing to 1": noise.abs(),
            "several": (noise > 0).long(),
            "shares": noise.sigmoid(),
            "counts": (3 * noise[:, 0].abs()).round(),
            "levels": torch.randint(4, (n,), generator=generator),
            "numbers": noise,
        }[self.targets]
        weight = None
        if self.weighted:
            weight = draw(n).abs()
            weight[2] = 0.0
        batch = Batch(z.requires_grad_(), logits.requires_grad_(), y, torch.tensor(self.domain))
        return batch, weight


def case_of_cross_entropy(name, targets, *, smoothing=0.0, weights=False, **changes):
    """The options, given to the library and to torch."""
    class_weight = CLASS_WEIGHT if weights else None
    ignore_index = IGNORED if targets == "ignored" else None
    theirs = {"weight": class_weight, "label_smoothing": smoothing}
    if ignore_index is not None:
        theirs["ignore_index"] = ignore_index
    loss = ha.CrossEntropy(class_weight, smoothing, ignore_index)
    risk, given = cross_entropy(**theirs), class_weight
    return OptionCase(name, loss, risk, targets, class_weight=given, **changes)


CASES = [
    case_of_cross_entropy("class weights", "labels", weights=True),
    case_of_cross_entropy("class weights, no bias", "labels", weights=True, bias=False),
    case_of_cross_entropy("smoothing", "labels", smoothing=0.1, domain=SORTED),
    case_of_cross_entropy("smoothing and class weights", "labels", smoothing=0.3, weights=True),
    case_of_cross_entropy("ignored", "ignored"),
    case_of_cross_entropy("ignored, no bias", "ignored", bias=False, domain=SORTED),
    case_of_cross_entropy("ignored, smoothing", "ignored", smoothing=0.2, domain=SORTED),
    case_of_cross_entropy("soft", "soft"),
    case_of_cross_entropy("soft, smoothing", "soft", smoothing=0.1, bias=False),
    case_of_cross_entropy("soft, class weights", "soft", weights=True, domain=SORTED),
    case_of_cross_entropy("soft, both", "soft", smoothing=0.4, weights=True),
    case_of_cross_entropy("unnormalised, both", "not summing to 1", smoothing=0.4, weights=True),
    case_of_cross_entropy("all options", "ignored", smoothing=0.15, weights=True),
    case_of_cross_entropy("weights", "labels", weighted=True),
    case_of_cross_entropy("weights, class weights", "labels", weights=True, weighted=True),
    case_of_cross_entropy("weights, soft", "soft", weights=True, smoothing=0.1, weighted=True),
    case_of_cross_entropy(
        "weights, all options",
        "ignored",
        smoothing=0.15,
        weights=True,
        weighted=True,
        bias=False,
        domain=SORTED,
    ),
    OptionCase("multilabel", "multilabel", summed_binary, "several", bias=False),
    OptionCase("multilabel, shares", "multilabel", summed_binary, "shares", 2, domain=SORTED),
    OptionCase("multilabel, weights", "multilabel", summed_binary, "several", weighted=True),
    OptionCase("poisson", poisson_of_one, poisson, "counts", 1),
    OptionCase("poisson, weights", poisson_of_one, poisson, "counts", 1, weighted=True),
    OptionCase("ordinal", ha.OwnLoss(ordinal_of_one), ordinal, "levels", 1, domain=SORTED),
    OptionCase("coupled", coupled_of_one, coupled, "numbers", 2),
    OptionCase("coupled, weights", coupled_of_one, coupled, "numbers", 2, weighted=True),
]

BY_NAME = {case.name: case for case in CASES}
SHORT = [
    BY_NAME[name]
    for name in ("weights, all options", "soft, both", "multilabel, weights", "coupled, weights")
]
"""For what has been multiplied by other parameters already."""


def name(case):
    """The name of a case in a test's id."""
    return case.name


def share(case, y):
    """What each sample's weight is multiplied by in the divisor: its class weight, 0 if ignored."""
    if y.is_floating_point() or not isinstance(case.loss, ha.CrossEntropy):
        return torch.ones(len(y), dtype=torch.float64)
    counts = (y != IGNORED).double()
    if case.class_weight is None:
        return counts
    return counts * case.class_weight[torch.where(y == IGNORED, 0, y)]


def domain_risk(case, logits, y, weight):
    """The risk of a domain: by torch's own mean, or weighted."""
    if weight is None:
        return case.risk(logits, y, "mean")
    return (weight * case.risk(logits, y, "none")).sum() / (weight * share(case, y)).sum()


def risks(case, batch, weight):
    """Each domain's risk as a function of a move of the head's parameters, and no move."""
    z, logits, y, domain = batch
    origin = torch.zeros(case.outputs * (z.shape[1] + case.bias), dtype=z.dtype)

    def make(rows):
        own = None if weight is None else weight[rows]

        def risk(delta):
            shift = oracles.augmented(z[rows], case.bias) @ delta.reshape(case.outputs, -1).T
            return domain_risk(case, logits[rows] + shift, y[rows], own)

        return risk

    return [make(rows) for rows in oracles.groups(domain)], origin


def risk(*given):
    functions, origin = risks(*given)
    return torch.stack([function(origin) for function in functions])


def gradient(*given):
    functions, origin = risks(*given)
    return torch.stack([grad(function)(origin) for function in functions])


def dense_hessian(*given):
    functions, origin = risks(*given)
    return torch.stack([hessian(function)(origin) for function in functions])


def diagonal(*given):
    return dense_hessian(*given).diagonal(dim1=1, dim2=2)


def hgp(*given):
    return torch.einsum("epq,eq->ep", dense_hessian(*given), gradient(*given))


def sample_gradients(case, batch):
    """The gradient of each sample's value without reduction [n, p]."""
    z, logits, y, _ = batch
    origin = torch.zeros(case.outputs * (z.shape[1] + case.bias), dtype=z.dtype)

    def one(index):
        row = slice(index, index + 1)

        def value(delta):
            shift = oracles.augmented(z[row], case.bias) @ delta.reshape(case.outputs, -1).T
            return case.risk(logits[row] + shift, y[row], "none")[0]

        return grad(value)(origin)

    return torch.stack([one(index) for index in range(len(z))])


def gradient_variance(case, batch, weight):
    """Σ u (g − ḡ)² with the weights u of the mean and each sample's gradient without them."""
    y, domain = batch.y, batch.domain
    own = share(case, y) * (1 if weight is None else weight)
    # A sample with no weight has no say; dividing by 1 instead keeps slopes finite.
    slopes = sample_gradients(case, batch) / share(case, y).where(own > 0, 1).unsqueeze(1)
    result = []
    for rows in oracles.groups(domain):
        u = (own[rows] / own[rows].sum()).unsqueeze(1)
        mean = (u * slopes[rows]).sum(0)
        result.append((u * (slopes[rows] - mean).square()).sum(0))
    return torch.stack(result)
