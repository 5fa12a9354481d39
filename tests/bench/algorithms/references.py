"""Every registered algorithm once more, straight from its published definition.

Nothing here is fast or shared with the library: domains and samples are gone through one by one,
Hessians are written out by differentiating twice, and each class says in its docstring what it
minimises. Only the initial weights, as copies of plain torch modules, and the random draws, as they
were recorded, come from the algorithm under test. Conventions a definition leaves open (means or
sums over domains, divisors of variances) are those the algorithm's own documentation states.
"""

import copy
import math
from collections import defaultdict, deque
from itertools import chain, combinations, cycle
from statistics import NormalDist

import numpy as np
import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional
from torch.optim import Adam

REFERENCES = {}
"""By name of the algorithm; the battery fails for an algorithm that is not here."""


def reference_of(*names):
    def register(cls):
        for name in names:
            REFERENCES[name] = cls
        return cls

    return register


class Draws:
    """What an algorithm drew at random, in order, separately for each kind of draw.

    Attributes:
        queues: By kind of draw.
        source: The generator whose draws are wanted.
    """

    def __init__(self):
        self.queues = defaultdict(deque)
        self.source = None

    def add(self, kind, value):
        self.queues[kind].append(value)

    def take(self, kind):
        return self.queues[kind].popleft()

    @property
    def left(self):
        return {kind: len(queue) for kind, queue in self.queues.items() if queue}


# ------------------------------------------------------------------------------------ ingredients


def losses_of_samples(logits, y, loss):
    """−log p of each sample's class, for several logits or a single one."""
    if loss == "binary":
        positive = logits[:, 0].sigmoid()
        return -torch.where(y == 1, positive, 1 - positive).log()
    probabilities = logits.exp() / logits.exp().sum(1, keepdim=True)
    return -probabilities[torch.arange(len(y)), y].log()


def probability_of_class(logits, y, loss):
    return (-losses_of_samples(logits, y, loss)).exp()


def as_float(value):
    return value.detach().item()


def mean(values):
    values = list(values)
    return sum(values) / len(values)


def squared_norm(vector):
    return (vector * vector).sum()


def mean_squared_deviation(vectors):
    """Mean over domains of the squared distance to their mean."""
    centre = mean(vectors)
    return mean(squared_norm(each - centre) for each in vectors)


def flat(tensors):
    return torch.cat([each.reshape(-1) for each in tensors])


def linear_layers(module):
    return [layer for layer in module.modules() if isinstance(layer, nn.Linear)]


def perceptron(module, x):
    """Linear layers with ReLU between them; what else the module holds is not used."""
    *hidden, last = linear_layers(module)
    for layer in hidden:
        x = (x @ layer.weight.T + layer.bias).clamp(min=0)
    return x @ last.weight.T + last.bias


def follow(loss, *optimizers):
    """Differentiate a loss in the parameters of some optimisers, then let each take its step."""
    parameters = [p for each in optimizers for p in each.param_groups[0]["params"]]
    gradients = torch.autograd.grad(loss, parameters)
    step_along(gradients, parameters, *optimizers)


def step_along(gradients, parameters, *optimizers):
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient.detach().clone()
    for optimizer in optimizers:
        optimizer.step()


class Reference:
    """One algorithm in training.

    Args:
        algorithm: What is tested, before its first step; its modules are copied.
        domains: How many there are.
        loss: Name of the loss.
        rate: Learning rate.
        decay: Weight decay.
        draws: What the tested algorithm drew.
    """

    def __init__(self, algorithm, domains, loss, rate, decay, draws):
        self.config, self.loss, self.draws = algorithm.config, loss, draws
        self.rate, self.decay = rate, decay
        self.modules = {name: copy.deepcopy(child) for name, child in algorithm.named_children()}
        own = algorithm.named_parameters(recurse=False)
        self.own = {name: copy.deepcopy(parameter) for name, parameter in own}
        network = self.modules["network"]
        self.featurizer, self.head = network.featurizer, network.head
        self.buffers = {}
        self.start(domains)

    def start(self, domains):
        """Make optimisers and the method's own state."""
        self.optimizer = self.adam(self.parameters)

    def adam(self, parameters, betas=(0.9, 0.999)):
        return Adam(list(parameters), lr=self.rate, weight_decay=self.decay, betas=betas)

    @property
    def parameters(self):
        return list(self.modules["network"].parameters())

    def logits(self, x):
        return self.head(self.featurizer(x))

    def risk(self, x, y):
        return losses_of_samples(self.logits(x), y, self.loss).mean()

    def risks(self, domains):
        return [self.risk(x, y) for x, y in domains]

    def step(self, number, domains):
        """One update.

        Args:
            number: Which step, from 0.
            domains: Inputs and labels of each domain.

        Returns:
            The terms that should be reported.
        """
        raise NotImplementedError

    def state(self):
        """All parameters and buffers, named as in the algorithm's state_dict."""
        parameters = {
            f"{child}.{name}": value.detach().clone()
            for child, module in self.modules.items()
            for name, value in module.state_dict().items()
        }
        own = {**self.own, **self.buffers}
        return {**parameters, **{name: value.detach().clone() for name, value in own.items()}}

    # Derivatives in the parameters of the head

    def in_head(self, value):
        """Gradient of a number in the head; a linear head's rows are weights and bias in turn."""
        gradients = torch.autograd.grad(value, list(self.head.parameters()), create_graph=True)
        if isinstance(self.head, nn.Linear) and not getattr(self.config, "bias", True):
            return gradients[0].reshape(-1)
        if isinstance(self.head, nn.Linear):
            return torch.cat([gradients[0], gradients[1].unsqueeze(1)], dim=1).reshape(-1)
        return flat(gradients)

    def hessian_in_head(self, value):
        return torch.stack([self.in_head(entry) for entry in self.in_head(value)])


class Objective(Reference):
    """A loss to be minimised: the risk, and a penalty if there is one."""

    def terms(self, domains):
        """Risk, penalty (or None) and named parts of it."""
        raise NotImplementedError

    def weight(self, number):
        return 1.0

    def step(self, number, domains):
        risk, penalty, parts = self.terms(domains)
        loss = risk if penalty is None else risk + self.weight(number) * penalty
        follow(loss, self.optimizer)
        reported = {"risk": risk, "loss": loss, **parts}
        if penalty is not None:
            reported["penalty"] = penalty
        return {name: as_float(value) for name, value in reported.items()}


class Weighted(Objective):
    """The penalty has one weight all the time."""

    def weight(self, number):
        return self.config.penalty_weight


class Annealed(Objective):
    """The weight of the penalty jumps after some steps, and Adam then starts afresh."""

    before = 1.0

    def weight(self, number):
        return self.before if number < self.config.anneal_steps else self.config.penalty_weight

    def step(self, number, domains):
        if number == self.config.anneal_steps and number > 0:
            self.optimizer = self.adam(self.parameters)
        return super().step(number, domains)


# ----------------------------------------------------------------------------------- risk methods


@reference_of("erm")
class Erm(Objective):
    """The mean over domains of their mean loss."""

    def terms(self, domains):
        return mean(self.risks(domains)), None, {}


@reference_of("irm")
class Irm(Annealed):
    """IRMv1: the squared derivative of each domain's risk in a factor of the logits, at 1.

    DomainBed multiplies two estimates of the derivative, from even and from odd samples.
    """

    def terms(self, domains):
        return mean(self.risks(domains)), mean(self.penalty(x, y) for x, y in domains), {}

    def penalty(self, x, y):
        if self.config.fidelity == "paper":
            return self.slope(x, y) ** 2
        if len(y) == 1:  # no odd sample, so the other estimate is 0
            return 0 * self.slope(x, y)
        return self.slope(x[::2], y[::2]) * self.slope(x[1::2], y[1::2])

    def slope(self, x, y):
        factor = torch.ones((), dtype=torch.float64, requires_grad=True)
        risk = losses_of_samples(factor * self.logits(x), y, self.loss).mean()
        return torch.autograd.grad(risk, factor, create_graph=True)[0]


@reference_of("vrex")
class Vrex(Annealed):
    """The variance of the risks; the released scripts: the squared difference of two risks.

    The latter has been generalised to E² times the variance, which is half the sum of the squared
    differences over ordered pairs.
    """

    def terms(self, domains):
        risks = self.risks(domains)
        if self.config.fidelity == "paper":
            return mean(risks), mean_squared_deviation(risks), {}
        return mean(risks), sum((a - b) ** 2 for a in risks for b in risks) / 2, {}


@reference_of("groupdro")
class GroupDro(Objective):
    """First the weights follow the risks, then the parameters descend the weighted risk."""

    def start(self, domains):
        super().start(domains)
        self.buffers["weights"] = torch.ones(domains, dtype=torch.float64) / domains

    def terms(self, domains):
        risks = self.risks(domains)
        q = self.buffers["weights"]
        q = torch.stack(
            [q[e] * math.exp(self.config.eta * as_float(risk)) for e, risk in enumerate(risks)]
        )
        self.buffers["weights"] = q / q.sum()
        return (
            sum(q * risk for q, risk in zip(self.buffers["weights"], risks, strict=True)),
            None,
            {},
        )


@reference_of("sd")
class Sd(Weighted):
    """Half the mean squared norm of a sample's logits; DomainBed: the mean square of a logit."""

    def terms(self, domains):
        logits = [a for x, _ in domains for a in self.logits(x)]
        scale = 1 / 2 if self.config.fidelity == "paper" else 1 / len(logits[0])
        return mean(self.risks(domains)), scale * mean(squared_norm(a) for a in logits), {}


class Late(Objective):
    """What sets in after some steps, with an Adam that starts afresh, at a rate of its own."""

    def start_afresh(self):
        if self.config.late_lr is not None:
            self.rate = self.config.late_lr
        self.optimizer = self.adam(self.parameters)


@reference_of("eqrm")
class Eqrm(Late):
    """The mean risk at first, then q with mean_e Φ((q − L_e) / h) = α.

    Its derivative is −(dF/dL) / (dF/dq). In DomainBed it is a fixed share of the way between the
    ends of the search; and Adam goes on as it was if the steps before are not a whole number.
    """

    def step(self, number, domains):
        self.number, first = number, self.config.burn_in_steps
        if number == math.ceil(first) and (self.config.fidelity == "paper" or number == first):
            self.start_afresh()
        return super().step(number, domains)

    def terms(self, domains):
        risks = self.risks(domains)
        if self.number < self.config.burn_in_steps:
            return mean(risks), None, {}
        if len(risks) == 1:
            return risks[0], None, {}
        return self.quantile(torch.stack(risks)), None, {}

    def share_below(self, q, risks):
        return mean((1 + torch.erf((q - r) / self.width(risks) / math.sqrt(2))) / 2 for r in risks)

    @staticmethod
    def width(risks):
        deviations = sum((r - mean(risks)) ** 2 for r in risks) / (len(risks) - 1)
        return 1.06 * len(risks) ** (-1 / 5) * deviations.sqrt()

    def quantile(self, risks):
        alpha = self.config.quantile
        reach = NormalDist().inv_cdf(alpha) * self.width(risks)
        ends = min(risks) + reach, max(risks) + reach
        low, high = map(as_float, ends)
        kernels = [NormalDist(risk, as_float(self.width(risks))) for risk in risks.tolist()]
        for _ in range(100):
            q = (low + high) / 2
            low, high = (low, q) if mean(k.cdf(q) for k in kernels) > alpha else (q, high)
        if self.config.fidelity == "domainbed":
            share = (q - as_float(ends[0])) / (as_float(ends[1]) - as_float(ends[0]))
            return (1 - share) * ends[0] + share * ends[1]
        leaves = risks.detach().requires_grad_()
        place = torch.tensor(q, dtype=torch.float64, requires_grad=True)
        in_risks, in_q = torch.autograd.grad(self.share_below(place, leaves), (leaves, place))
        return q + ((risks - leaves.detach()) * -in_risks / in_q).sum()


def unbiased_variance(values):
    centre = mean(values)
    return sum((value - centre) ** 2 for value in values) / max(1, len(values) - 1)


@reference_of("rdm")
class Rdm(Late):
    """The MMD of the worst domain's losses and those of all, and the variances of both."""

    def step(self, number, domains):
        if number == self.config.anneal_steps:
            self.start_afresh()
        return super().step(number, domains)

    def weight(self, number):
        return 0.0 if number < self.config.anneal_steps else 1.0

    @staticmethod
    def mean_kernel(a, b):
        gammas = 10.0 ** torch.arange(-4, 4, dtype=torch.float64)
        return mean(torch.exp(-gammas * (p - q) ** 2).sum() for p in a for q in b)

    def terms(self, domains):
        losses = [list(losses_of_samples(self.logits(x), y, self.loss)) for x, y in domains]
        risks = [mean(each) for each in losses]
        worst = losses[max(range(len(risks)), key=lambda e: as_float(risks[e]))]
        matching = (
            self.mean_kernel(worst, worst)
            + mean(self.mean_kernel(a, b) for a in losses for b in losses)
            - 2 * mean(self.mean_kernel(worst, a) for a in losses)
        )
        variance = unbiased_variance(worst) + unbiased_variance([*chain(*losses)])
        penalty = self.config.matching_weight * matching + self.config.variance_weight * variance
        return mean(risks), penalty, {"matching": matching, "variance": variance}


# ------------------------------------------------------------------------------------- bottlenecks


class FeatureVariance(Objective):
    """The mean over domains and features of the variance."""

    def bottleneck(self, domains):
        features = [self.featurizer(x) for x, _ in domains]
        return mean(unbiased_variance(list(z)).sum() / z.shape[1] for z in features)


@reference_of("ib_erm")
class IbErm(Annealed, FeatureVariance):
    """ERM with this, after some steps."""

    before = 0.0

    def terms(self, domains):
        return mean(self.risks(domains)), self.bottleneck(domains), {}


@reference_of("ib_irm")
class IbIrm(Irm, FeatureVariance):
    """IRM with this; each sets in at a step of its own, at which Adam starts afresh."""

    def weight(self, number):
        return 1.0

    def step(self, number, domains):
        config, self.number = self.config, number
        if number > 0 and number in {config.irm_anneal_steps, config.ib_anneal_steps}:
            self.optimizer = self.adam(self.parameters)
        return Objective.step(self, number, domains)

    def terms(self, domains):
        config = self.config
        risk, irm, _ = super().terms(domains)
        ib = self.bottleneck(domains)
        irm_weight = config.irm_weight if self.number >= config.irm_anneal_steps else 1
        ib_weight = config.ib_weight if self.number >= config.ib_anneal_steps else 0
        return risk, irm_weight * irm + ib_weight * ib, {"irm": irm, "ib": ib}


@reference_of("cad", "condcad")
class Cad(Weighted):
    """The logarithm of p, the share of the sample's domain in its similarity to the batch.

    DomainBed: that of 1 − p, with the other sign, and only where the class has another sample.
    """

    def terms(self, domains):
        samples = [
            (z, int(label), e)
            for e, (x, y) in enumerate(domains)
            for z, label in zip(self.featurizer(x), y, strict=True)
        ]
        values = [self.value(n, samples) for n in range(len(samples))]
        values = [value for value in values if value is not None]
        penalty = mean(values) if values else torch.zeros((), dtype=torch.float64)
        return mean(self.risks(domains)), penalty, {}

    def value(self, n, samples):
        config = self.config
        z, y, e = samples[n]
        others = samples[:n] + samples[n + 1 :]
        alike = [other for other in others if other[1] == y]
        if config.fidelity == "domainbed" and not alike:
            return None
        among = alike if config.conditional else others
        similar = [(torch.exp(z @ other / config.temperature), f == e) for other, _, f in among]
        at_home = sum(value for value, home in similar if home)
        elsewhere = sum(value for value, home in similar if not home)
        shown = at_home if config.fidelity == "paper" else elsewhere
        if isinstance(shown, int):  # an empty sum
            return None
        logarithm = torch.log(shown / (at_home + elsewhere))
        return logarithm if config.fidelity == "paper" else -config.temperature / 0.07 * logarithm


# ------------------------------------------------------------------------- derivatives of the head


@reference_of("fishr")
class Fishr(Annealed):
    """Mean over domains of the squared distance of gradient variances to their mean.

    The variances (divisor n) are moving averages, divided by the share of the new batch.
    """

    before = 0.0

    def start(self, domains):
        super().start(domains)
        count = sum(p.numel() for p in self.head.parameters()) if self.config.ema else 0
        self.buffers["average"] = torch.zeros(domains, count, dtype=torch.float64)

    def variance(self, x, y):
        samples = losses_of_samples(self.logits(x), y, self.loss)
        gradients = [self.in_head(sample) for sample in samples]
        centre = mean(gradients)
        return mean((gradient - centre) ** 2 for gradient in gradients)

    def terms(self, domains):
        share = 1 - self.config.ema
        variances = [self.variance(x, y) for x, y in domains]
        if self.config.ema:
            past = self.buffers["average"]
            variances = [
                (1 - share) * old + share * v for old, v in zip(past, variances, strict=True)
            ]
            self.buffers["average"] = torch.stack(variances).detach()
            variances = [v / share for v in variances]
        penalty = mean_squared_deviation(variances)
        if self.config.fidelity == "released":
            penalty = penalty * len(domains)
        elif self.config.fidelity == "domainbed":
            penalty = penalty / len(variances[0])
        return mean(self.risks(domains)), penalty, {}


class Alignment(Objective):
    """α times the dispersion of something of the Hessian plus β times that of the gradients.

    The paper takes means over domains and the mean as target; the released scripts take sums, and
    as target the quantity of the mean loss; the released DomainBed code means, and that target as
    a constant.
    """

    def compared(self, risks):
        """One vector per domain, and the target or None for their mean."""
        raise NotImplementedError

    @property
    def pooled(self):
        return self.config.fidelity != "paper"

    def as_target(self, vector):
        return vector.detach() if self.config.fidelity == "domainbed" else vector

    def hessian_term(self, risks):
        vectors, target = self.compared(risks)
        target = mean(vectors) if target is None else target
        return mean(squared_norm(vector - target) for vector in vectors)

    def terms(self, domains):
        risks, config = self.risks(domains), self.config
        scale = len(domains) if config.fidelity == "released" else 1
        parts = {"gradient": scale * mean_squared_deviation([self.in_head(r) for r in risks])}
        penalty = config.beta * parts["gradient"]
        if config.hessian is not None:
            parts["hessian"] = scale * self.hessian_term(risks)
            penalty = penalty + config.alpha * parts["hessian"]
        return mean(risks), penalty, parts


@reference_of("gradient")
class GradientOnly(Alignment):
    """The gradients alone."""


@reference_of("full")
class FullHessian(Alignment):
    """The Hessians themselves; the Hessian of the mean loss is their mean."""

    def compared(self, risks):
        return [self.hessian_in_head(risk) for risk in risks], None


@reference_of("cma")
class Cma(FullHessian):
    """The Hessians in the weights of a linear head, without its bias, divided by its outputs.

    Written as published, by pairs: the mean over domains of the squared distance to the mean is
    half the mean of the squared distances over all pairs.
    """

    def hessian_term(self, risks):
        hessians, _ = self.compared(risks)
        outputs = linear_layers(self.head)[-1].out_features if self.config.over_outputs else 1
        distances = [squared_norm((h - k) / outputs) for h in hessians for k in hessians]
        return mean(distances) / 2


@reference_of("diagonal")
class Diagonal(Alignment):
    """Their diagonals."""

    def compared(self, risks):
        return [self.hessian_in_head(risk).diagonal() for risk in risks], None


@reference_of("hgp")
class Hgp(Alignment):
    """Products of each Hessian with the gradient of the same domain (eq. 17)."""

    def product(self, risk):
        return self.hessian_in_head(risk) @ self.in_head(risk)

    def compared(self, risks):
        vectors = [self.product(risk) for risk in risks]
        return vectors, self.as_target(self.product(mean(risks))) if self.pooled else None


@reference_of("hutchinson")
class Hutchinson(Alignment):
    """Estimates of the diagonals, mean of r ∘ Hr over random signs r (eq. 19, 20)."""

    @staticmethod
    def estimate(hessian, signs):
        return mean(r * (hessian @ r) for r in signs.double())

    def compared(self, risks):
        hessians = [self.hessian_in_head(risk) for risk in risks]
        signs = self.draws.take("signs")  # probes × domains (or 1) × parameters
        shared = self.config.shared_probes
        assert signs.shape[:2] == (self.config.probes, 1 if shared else len(risks))
        vectors = [self.estimate(h, signs[:, 0 if shared else e]) for e, h in enumerate(hessians)]
        if shared or not self.pooled:
            return vectors, None
        signs = self.draws.take("signs")[:, 0]
        return vectors, self.as_target(self.estimate(mean(hessians), signs))


@reference_of("expected")
class Expected(Alignment):
    """Hutchinson's dispersion in expectation: that of the diagonals plus the noise of m probes.

    One probe errs in entry i by the sum over j ≠ i of r_i r_j H_ij, of variance Σ H_ij².
    """

    def noise(self, matrix):
        return squared_norm(matrix - matrix.diagonal().diag()) / self.config.probes

    def hessian_term(self, risks):
        hessians = [self.hessian_in_head(risk) for risk in risks]
        centre, count = mean(hessians), len(hessians)
        exact = mean_squared_deviation([h.diagonal() for h in hessians])
        if self.config.shared_probes:  # the same r everywhere: only differences of Hessians err
            return exact + mean(self.noise(h - centre) for h in hessians)
        if self.pooled:  # the target errs on its own
            noise = self.as_target(self.noise(centre))
            return exact + mean(self.noise(h) for h in hessians) + noise
        # A domain's own error is 1/E of the mean's: (1 − 1/E)² of it, and 1/E² of each other one's.
        return exact + mean(
            (1 - 1 / count) ** 2 * self.noise(own)
            + sum(self.noise(other) for other in hessians if other is not own) / count**2
            for own in hessians
        )


# --------------------------------------------------------------------- gradients of all parameters


@reference_of("iga")
class Iga(Weighted):
    """The trace of the covariance of the gradients; DomainBed: a sum, around a constant."""

    def terms(self, domains):
        risks = self.risks(domains)
        gradients = [
            flat(torch.autograd.grad(risk, self.parameters, create_graph=True)) for risk in risks
        ]
        if self.config.fidelity == "paper":
            return mean(risks), mean_squared_deviation(gradients), {}
        centre = mean(gradients).detach()
        return mean(risks), sum(squared_norm(g - centre) for g in gradients), {}


class Masked(Reference):
    """The mean gradient times a mask."""

    def masked(self, gradients):
        raise NotImplementedError

    def step(self, number, domains):
        risks = self.risks(domains)
        by_domain = [torch.autograd.grad(risk, self.parameters) for risk in risks]
        gradients = [self.masked(list(each)) for each in zip(*by_domain, strict=True)]
        step_along(gradients, self.parameters, self.optimizer)
        return dict.fromkeys(("risk", "loss"), as_float(mean(risks)))


@reference_of("andmask")
class AndMask(Masked):
    """Only where at least a share τ of the signs (net) agree."""

    def masked(self, gradients):
        agree = sum(g.sign() for g in gradients).abs() >= self.config.tau * len(gradients)
        followed = torch.where(agree, mean(gradients), 0.0)
        if self.config.fidelity == "domainbed":
            followed = followed / (int(agree.sum()) / agree.numel() + 1e-10)
        return followed


@reference_of("sandmask")
class SandMask(Masked):
    """max(0, tanh(k (agreement − τ) / variance)), divided by its mean; one domain: no mask."""

    def masked(self, gradients):
        count = len(gradients)
        if count == 1:
            mask = torch.ones_like(gradients[0])
        else:
            centre = mean(gradients)
            variance = sum((g - centre) ** 2 for g in gradients) / (count - 1)
            excess = mean(g.sign() for g in gradients).abs() - self.config.tau
            mask = torch.tanh(self.config.k * excess / variance).clamp(min=0)
        return mask * mean(gradients) / (mask.mean() + 1e-10)


@reference_of("agrsum", "agrrand")
class Surgery(Reference):
    """The sum of the gradients where all have one sign; elsewhere 0, or noise of its mean size."""

    def step(self, number, domains):
        risks = self.risks(domains)
        by_domain = [flat(torch.autograd.grad(risk, self.parameters)) for risk in risks]
        agree = [len({float(g) > 0 for g in column}) == 1 and 0.0 not in column
                 for column in zip(*(g.tolist() for g in by_domain), strict=True)]  # fmt: skip
        agree = torch.tensor(agree)
        followed = torch.where(agree, sum(by_domain), 0.0)
        if self.config.random:
            size = followed[agree].abs().mean() if agree.any() else 0.0
            noise = flat([self.draws.take("normal") for _ in self.parameters]).double()
            followed = torch.where(agree, followed, size * noise)
        parts = followed.split([p.numel() for p in self.parameters])
        shaped = [part.reshape(p.shape) for part, p in zip(parts, self.parameters, strict=True)]
        step_along(shaped, self.parameters, self.optimizer)
        return dict.fromkeys(("risk", "loss"), as_float(mean(risks)))


@reference_of("fish")
class Fish(Reference):
    """Algorithm 1: a step per domain one after another, then a part of the way there."""

    def step(self, number, domains):
        # Running statistics, if the network has any, go the same part of the way.
        state = [t for t in self.modules["network"].state_dict().values() if t.is_floating_point()]
        before = [each.clone() for each in state]
        order = range(len(domains))
        if self.config.fidelity == "paper":
            order = self.draws.take("permutation").tolist()
        risks = []
        for e in order:
            risks.append(self.risk(*domains[e]))
            follow(risks[-1], self.optimizer)
        for new, old in zip(state, before, strict=True):
            new.copy_(old + self.config.meta_lr * (new - old))
        return dict.fromkeys(("risk", "loss"), as_float(mean(risks)))


@reference_of("mldg")
class Mldg(Reference):
    """F(θ) + β G(θ − α∇F(θ)); DomainBed: first order, pair by pair, with Adam's inner step."""

    def split(self, domains):
        order = self.draws.take("permutation").tolist()
        tests = min(self.config.meta_test_domains, len(domains) - 1)
        shuffled = [domains[e] for e in order]
        return shuffled[: len(domains) - tests], shuffled[len(domains) - tests :]

    @property
    def inner_rate(self):
        return self.rate if self.config.inner_lr is None else self.config.inner_lr

    def step(self, number, domains):
        train, test = self.split(domains)
        own = self.config.fidelity == "paper"
        risk, test_risk = (
            self.second_order(train, test) if own else self.pairs(train, test, len(domains))
        )
        loss = risk + self.config.beta * test_risk
        return {"risk": risk, "meta_test_risk": test_risk, "loss": loss}

    def second_order(self, train, test):
        network = nn.Sequential(self.featurizer, self.head)
        names = [name for name, _ in network.named_parameters()]
        risk, test_risk = mean(self.risks(train)), torch.zeros((), dtype=torch.float64)
        if test:
            slopes = torch.autograd.grad(risk, self.parameters, create_graph=True)
            moved = [p - self.inner_rate * g for p, g in zip(self.parameters, slopes, strict=True)]
            there = dict(zip(names, moved, strict=True))
            test_risk = mean(
                losses_of_samples(functional_call(network, there, x), y, self.loss).mean()
                for x, y in test
            )
        follow(risk + self.config.beta * test_risk, self.optimizer)
        return as_float(risk), as_float(test_risk)

    def pairs(self, train, test, count):
        total = [torch.zeros_like(p) for p in self.parameters]
        risk = test_risk = 0.0
        for (x, y), other in zip(train, cycle(test or [None]), strict=False):
            least = len(y) if other is None else min(len(y), len(other[1]))
            copied = copy.deepcopy(nn.Sequential(self.featurizer, self.head))
            inner = Adam(copied.parameters(), lr=self.inner_rate, weight_decay=self.decay)
            before = losses_of_samples(copied(x[:least]), y[:least], self.loss).mean()
            risk += as_float(before) / count
            slopes = torch.autograd.grad(before, list(copied.parameters()))
            total = [t + g / count for t, g in zip(total, slopes, strict=True)]
            if other is None:
                continue
            step_along(slopes, list(copied.parameters()), inner)
            x, y = other
            after = losses_of_samples(copied(x[:least]), y[:least], self.loss).mean()
            test_risk += as_float(after) / count
            slopes = torch.autograd.grad(after, list(copied.parameters()))
            total = [t + self.config.beta * g / count for t, g in zip(total, slopes, strict=True)]
        step_along(total, self.parameters, self.optimizer)
        return risk, test_risk


# ---------------------------------------------------------------------------------------- features


@reference_of("coral")
class Coral(Weighted):
    """Mean over pairs of ‖C_e − C_f‖² / 4d²; DomainBed: means over entries, of means too."""

    @staticmethod
    def covariance(z):
        if len(z) == 1:
            return torch.zeros(z.shape[1], z.shape[1], dtype=z.dtype)
        centre = mean(z)
        return sum(torch.outer(row - centre, row - centre) for row in z) / (len(z) - 1)

    def distance(self, a, b):
        squares = (self.covariance(a) - self.covariance(b)) ** 2
        if self.config.fidelity == "paper":
            return squares.sum() / (4 * a.shape[1] ** 2)
        return squares.mean() + ((mean(a) - mean(b)) ** 2).mean()

    def terms(self, domains):
        features = [self.featurizer(x) for x, _ in domains]
        distances = [self.distance(a, b) for a, b in combinations(features, 2)]
        penalty = mean(distances) if distances else torch.zeros((), dtype=torch.float64)
        return mean(self.risks(domains)), penalty, {}


@reference_of("mmd")
class Mmd(Coral):
    """Mean over pairs of the squared distance of mean embeddings, with seven Gaussian kernels."""

    @staticmethod
    def mean_kernel(a, b):
        return mean(
            sum(torch.exp(-(10.0**power) * squared_norm(p - q)) for power in range(-3, 4))
            for p in a
            for q in b
        )

    def distance(self, a, b):
        return self.mean_kernel(a, a) + self.mean_kernel(b, b) - 2 * self.mean_kernel(a, b)


@reference_of("ddc")
class Ddc(Coral):
    """Mean over pairs of the squared distance of the mean features."""

    def distance(self, a, b):
        return squared_norm(mean(a) - mean(b))


class CausIrl(Weighted):
    """The distance of two mixtures: the first parts of all domains, cut at random, and the rest."""

    def terms(self, domains):
        first, second = [], []
        for (x, _), share in zip(domains, self.draws.take("uniform").tolist(), strict=True):
            z, cut = self.featurizer(x), math.floor(share * len(x))
            first += list(z[:cut])
            second += list(z[cut:])
        penalty = torch.zeros((), dtype=torch.float64)
        if len(first) > 1 and len(second) > 1:
            penalty = self.distance(torch.stack(first), torch.stack(second))
        return mean(self.risks(domains)), penalty, {}


@reference_of("causirl_coral")
class CausIrlCoral(CausIrl, Coral):
    """CORAL's distance."""


@reference_of("causirl_mmd")
class CausIrlMmd(CausIrl, Mmd):
    """That of mean embeddings."""


def logistic_losses(scores, target):
    """−log σ(±score) of each."""
    return -(scores if target else -scores).sigmoid().log()


@reference_of("mdan")
class Mdan(Reference):
    """The network descends max_e (L_e − μ D_e), hard or soft; the discriminators climb it."""

    def start(self, domains):
        self.judges = self.modules["discriminators"]
        players = list(self.judges.parameters()) if domains > 1 else []
        self.optimizer = self.adam(self.parameters + players)

    def adversary(self, e, features):
        scores = [z @ self.judges.weight[e] + self.judges.bias[e] for z in features]
        others = [logistic_losses(s, False).mean() for f, s in enumerate(scores) if f != e]
        return logistic_losses(scores[e], True).mean() + mean(others)

    def step(self, number, domains):
        risks, features = self.risks(domains), [self.featurizer(x) for x, _ in domains]
        adversaries = [torch.zeros((), dtype=torch.float64)]
        if len(domains) > 1:
            adversaries = [self.adversary(e, features) for e in range(len(domains))]
        config = self.config
        values = [r - config.weight * d for r, d in zip(risks, adversaries, strict=True)]
        if config.gamma is None:
            loss = max(values)
        else:
            loss = sum(torch.exp(config.gamma * value) for value in values).log() / config.gamma
        players = self.optimizer.param_groups[0]["params"]
        gradients = list(torch.autograd.grad(loss, players, materialize_grads=True))
        down = len(self.parameters)
        step_along(gradients[:down] + [-g for g in gradients[down:]], players, self.optimizer)
        values = {"risk": mean(risks), "discriminator_loss": mean(adversaries), "loss": loss}
        return {name: as_float(value) for name, value in values.items()}


@reference_of("urm")
class Urm(Reference):
    """Bounded features that a discriminator takes for noise; first the network, then it learns."""

    def start(self, domains):
        rate = self.config.discriminator_lr
        self.judge = self.modules["discriminator"]
        self.optimizer = self.adam(self.parameters)
        self.adversary = Adam(
            self.judge.parameters(),
            lr=self.rate if rate is None else rate,
            weight_decay=self.decay,
        )

    def features(self, x):
        z = self.featurizer.featurizer(x)
        return torch.tanh(z) if self.config.output == "tanh" else z.clamp(min=0)

    def score(self, z):
        *hidden, last = linear_layers(self.judge)
        assert len(hidden) == self.config.hidden_layers + 1
        for layer in hidden:
            z = z @ layer.weight.T + layer.bias
            z = torch.where(z > 0, z, 0.01 * z)
        return (z @ last.weight.T + last.bias)[:, 0]

    def step(self, number, domains):
        weight, z = self.config.weight, [self.features(x) for x, _ in domains]
        risk = mean(
            losses_of_samples(self.head(each), y, self.loss).mean()
            for each, (_, y) in zip(z, domains, strict=True)
        )
        z = torch.cat(z)
        deception = logistic_losses(self.score(z), True).mean()
        loss = risk + weight * deception
        follow(loss, self.optimizer)
        noise = self.draws.take("uniform").double()
        noise = 2 * noise - 1 if self.config.output == "tanh" else noise
        adversary = logistic_losses(self.score(noise), True).mean()
        adversary = adversary + weight * logistic_losses(self.score(z.detach()), False).mean()
        follow(adversary, self.adversary)
        values = {"risk": risk, "deception": deception, "discriminator_loss": adversary}
        return {name: as_float(value) for name, value in {**values, "loss": loss}.items()}


@reference_of("dann", "cdann")
class Adversarial(Reference):
    """Discriminator and network take turns; CDANN's discriminator knows the class."""

    def start(self, domains):
        config, betas = self.config, (self.config.beta1, 0.9)
        self.discriminator = self.modules["discriminator"]
        self.optimizer = Adam(
            self.parameters,
            lr=self.rate if config.network_lr is None else config.network_lr,
            weight_decay=(
                self.decay if config.network_weight_decay is None else config.network_weight_decay
            ),
            betas=betas,
        )
        players = list(self.discriminator.parameters())
        if config.conditional:
            players += list(self.modules["embeddings"].parameters())
        self.adversary = Adam(
            players,
            lr=self.rate if config.discriminator_lr is None else config.discriminator_lr,
            weight_decay=config.discriminator_weight_decay,
            betas=betas,
        )

    def share(self, y, classes):
        """The weight of a sample: 1/N, or for CDANN the same for each class that occurs.

        DomainBed counts the classes up to the highest that occurs, whether they occur or not.
        """
        if not self.config.conditional:
            return 1 / len(classes)
        counted = len(set(classes)) if self.config.fidelity == "paper" else max(classes) + 1
        return 1 / (counted * classes.count(y))

    def deception(self, domains):
        """The discriminator's loss, sample by sample."""
        classes = [int(label) for _, y in domains for label in y]
        loss = torch.zeros((), dtype=torch.float64)
        for e, (x, y) in enumerate(domains):
            for z, label in zip(self.featurizer(x), y.tolist(), strict=True):
                seen = z
                if self.config.conditional:
                    seen = z + self.modules["embeddings"].weight[label]
                value = -perceptron(self.discriminator, seen.unsqueeze(0)).log_softmax(1)[0, e]
                loss = loss + self.share(label, classes) * value
                (slope,) = torch.autograd.grad(value, seen, create_graph=True)
                loss = loss + self.config.gradient_penalty * squared_norm(slope) / len(classes)
        return loss

    def step(self, number, domains):
        risk, adversary = mean(self.risks(domains)), self.deception(domains)
        turns = self.config.discriminator_steps
        if (number + 1) % (turns + 1) < turns:
            loss = adversary
            follow(loss, self.adversary)
        else:
            loss = risk - self.config.weight * adversary
            follow(loss, self.optimizer)
        values = {"risk": risk, "discriminator_loss": adversary, "loss": loss}
        return {name: as_float(value) for name, value in values.items()}


@reference_of("rsc")
class Rsc(Objective):
    """The risk without the features that raise the logit of the true class the most."""

    def score(self, z, y):
        (logits,) = self.head(z.unsqueeze(0))
        if self.loss == "binary":
            return logits[0] if y == 1 else -logits[0]
        return logits[y]

    def confidence(self, z, y):
        logits = self.head(z.unsqueeze(0)).detach()
        return as_float(probability_of_class(logits, torch.tensor([y]), self.loss))

    def masks(self, features, labels):
        """For each sample what is kept: 1 or 0."""
        masks, falls = [], []
        for z, y in zip(features.detach(), labels, strict=True):
            z = z.requires_grad_()
            (slope,) = torch.autograd.grad(self.score(z, y), z)
            threshold = np.quantile(slope.numpy(), 1 - self.config.feature_drop)
            masks.append((slope < float(threshold)).double())
            falls.append(self.confidence(z, y) - self.confidence(z * masks[-1], y))
        threshold = np.quantile(falls, 1 - self.config.batch_drop)
        return [
            mask if fall >= threshold else torch.ones_like(mask)
            for mask, fall in zip(masks, falls, strict=True)
        ]

    def terms(self, domains):
        features = [self.featurizer(x) for x, _ in domains]
        labels = [label for _, y in domains for label in y.tolist()]
        masks = torch.stack(self.masks(torch.cat(features), labels))
        masks = masks.split([len(y) for _, y in domains])
        risks = [
            losses_of_samples(self.head(z * mask), y, self.loss).mean()
            for z, mask, (_, y) in zip(features, masks, domains, strict=True)
        ]
        return mean(risks), None, {}


@reference_of("sagnet")
class SagNet(Reference):
    """Content on random styles, style on random contents, and an adversary of style."""

    def start(self, domains):
        self.style_head = self.modules["style_head"]
        self.of_features = self.adam(self.featurizer.parameters())
        self.of_head = self.adam(self.head.parameters())
        self.of_style = self.adam(self.style_head.parameters())

    def moments(self, z):
        """Mean and variance of a sample's features."""
        centre = z.sum() / len(z)
        divisor = len(z) if self.config.fidelity == "paper" else len(z) - 1
        return centre, ((z - centre) ** 2).sum() / divisor + 1e-5

    def restyle(self, z, other, share):
        (centre, variance), (its_centre, its_variance) = self.moments(z), self.moments(other)
        new_centre = share * centre + (1 - share) * its_centre
        if self.config.fidelity == "paper":
            spread = share * variance.sqrt() + (1 - share) * its_variance.sqrt()
        else:
            spread = (share * variance + (1 - share) * its_variance).sqrt()
        return spread * (z - centre) / variance.sqrt() + new_centre

    def refill(self, z, other):
        (centre, variance), (its_centre, its_variance) = self.moments(z), self.moments(other)
        content = (other - its_centre) / its_variance.sqrt()
        return variance.sqrt() * content.detach() + centre

    def refilled(self, domains):
        z = torch.cat([self.featurizer(x) for x, _ in domains])
        order = self.draws.take("permutation").tolist()
        return torch.stack([self.refill(z[n], z[m]) for n, m in enumerate(order)])

    def mean_risk(self, logits, domains):
        parts = logits.split([len(y) for _, y in domains])
        return mean(
            losses_of_samples(part, y, self.loss).mean()
            for part, (_, y) in zip(parts, domains, strict=True)
        )

    def uniform_loss(self, logits):
        """−mean over samples and classes of log p, each class in turn taken for the true one."""
        classes = 2 if self.loss == "binary" else logits.shape[1]
        return mean(
            losses_of_samples(logits, torch.full((len(logits),), c), self.loss).mean()
            for c in range(classes)
        )

    def step(self, number, domains):
        z = torch.cat([self.featurizer(x) for x, _ in domains])
        order = self.draws.take("permutation").tolist()
        shares = self.draws.take("uniform").double()
        restyled = [self.restyle(z[n], z[m], shares[n]) for n, m in enumerate(order)]
        risk = self.mean_risk(self.head(torch.stack(restyled)), domains)
        follow(risk, self.of_features, self.of_head)
        style_risk = self.mean_risk(self.style_head(self.refilled(domains)), domains)
        follow(style_risk, self.of_style)
        adversary = self.uniform_loss(self.style_head(self.refilled(domains)))
        adversary = self.config.adversary_weight * adversary
        follow(adversary, self.of_features)
        values = {"risk": risk, "style_risk": style_risk, "adversary": adversary, "loss": risk}
        return {name: as_float(value) for name, value in values.items()}


# ------------------------------------------------------------------------------ inputs and contexts


@reference_of("mixup")
class Mixup(Objective):
    """Every domain with the next one of a random order, one λ per pair."""

    def terms(self, domains):
        order = self.draws.take("permutation").tolist()
        risks = []
        for e, f in zip(order, order[1:] + order[:1], strict=True):
            (x, y), (other_x, other_y) = domains[e], domains[f]
            share = self.draws.take("beta")
            if self.config.fidelity == "paper":
                partners = self.draws.take("integers").tolist()
            else:
                partners = list(range(min(len(y), len(other_y))))
            values = []
            for n, m in enumerate(partners):
                a = self.logits((share * x[n] + (1 - share) * other_x[m]).unsqueeze(0))
                values += [
                    share * losses_of_samples(a, y[n : n + 1], self.loss)
                    + (1 - share) * losses_of_samples(a, other_y[m : m + 1], self.loss)
                ]
            risks.append(mean(values).squeeze())
        return mean(risks), None, {}


@reference_of("mtl")
class Mtl(Objective):
    """The head sees the moving average of the domain's mean features next to the features.

    The risk is the mean over domains; DomainBed adds the domains up, and shows the head noise.
    """

    def start(self, domains):
        super().start(domains)
        self.plain = self.featurizer.featurizer
        width = linear_layers(self.head)[0].in_features // 2
        self.buffers["average"] = torch.zeros(domains, width, dtype=torch.float64)
        self.buffers["seen"] = torch.zeros(domains, dtype=torch.long)

    def embedding(self, e, z):
        average, share = self.buffers["average"], self.config.ema
        new = mean(z)
        if self.buffers["seen"][e] > 0:
            new = share * new + (1 - share) * average[e].clone()
        average[e] = new.detach()
        self.buffers["seen"][e] += 1
        return new.expand_as(z)

    def terms(self, domains):
        features = [self.plain(x) for x, _ in domains]
        if self.config.fidelity == "paper":
            contexts = [self.embedding(e, z) for e, z in enumerate(features)]
        else:  # DomainBed's slip: noise
            contexts = self.draws.take("normal").double().split([len(z) for z in features])
        risks = [
            losses_of_samples(self.head(torch.cat([z, c], dim=1)), y, self.loss).mean()
            for z, c, (_, y) in zip(features, contexts, domains, strict=True)
        ]
        return mean(risks) if self.config.fidelity == "paper" else sum(risks), None, {}


@reference_of("arm")
class Arm(Objective):
    """The network sees the mean of the context network over the domain's batch.

    DomainBed does not train the context network, normalises its hidden images over the batches of
    all domains together, and passes all domains through the network at once.
    """

    @property
    def parameters(self):
        if self.config.fidelity == "paper":
            return super().parameters
        return [*self.featurizer.featurizer.parameters(), *self.head.parameters()]

    @staticmethod
    def normalised(images, layer):
        """Each channel to mean 0 and variance 1; running averages move a tenth of the way."""
        channels = images.transpose(0, 1).flatten(1)  # channel × everything else
        count = channels.shape[1]
        centre = channels.sum(1) / count
        squares = ((channels - centre[:, None]) ** 2).sum(1)
        for name, new in (("mean", centre), ("var", squares / (count - 1))):
            average = getattr(layer, f"running_{name}")
            average.copy_(0.9 * average + 0.1 * new.detach())
        layer.num_batches_tracked += 1
        scale = layer.weight / (squares / count + 1e-5).sqrt()
        return (images - centre[:, None, None]) * scale[:, None, None] + layer.bias[:, None, None]

    def contexts(self, x):
        """One vector per vector, or one image of the same size per image."""
        context = self.featurizer.context
        if x.dim() == 2:
            return perceptron(context, x)
        *hidden, last = [c for c in context.modules() if isinstance(c, nn.Conv2d)]
        norms = [layer for layer in context.modules() if isinstance(layer, nn.BatchNorm2d)]
        assert len(norms) == (0 if self.config.fidelity == "paper" else len(hidden))
        for number, layer in enumerate(hidden):
            x = functional.conv2d(x, layer.weight, layer.bias, padding=2)
            if norms:
                x = self.normalised(x, norms[number])
            x = x.clamp(min=0)
        return functional.conv2d(x, last.weight, last.bias, padding=2)

    @staticmethod
    def seen(x, contexts):
        context = mean(contexts)
        return torch.stack([torch.cat([sample, context]) for sample in x])

    def terms(self, domains):
        network = self.featurizer.featurizer
        if self.config.fidelity == "paper":
            features = [network(self.seen(x, self.contexts(x))) for x, _ in domains]
        else:
            sizes = [len(y) for _, y in domains]
            contexts = self.contexts(torch.cat([x for x, _ in domains])).split(sizes)
            seen = [self.seen(x, each) for (x, _), each in zip(domains, contexts, strict=True)]
            features = network(torch.cat(seen)).split(sizes)
        risks = [
            losses_of_samples(self.head(z), y, self.loss).mean()
            for z, (_, y) in zip(features, domains, strict=True)
        ]
        return mean(risks), None, {}


# ----------------------------------------------------------------------------- pairs within a class


def batch_normalised(z, layer):
    """Each column to mean 0 and variance 1; running averages move a tenth of the way."""
    centre = mean(z)
    squares = sum((row - centre) ** 2 for row in z)
    for name, new in (("mean", centre), ("var", squares / (len(z) - 1))):
        average = getattr(layer, f"running_{name}")
        average.copy_(0.9 * average + 0.1 * new.detach())
    layer.num_batches_tracked += 1
    return (z - centre) / (squares / len(z) + 1e-5).sqrt() * layer.weight + layer.bias


@reference_of("selfreg")
class SelfReg(Reference):
    """Samples of a class are compared with each other, one by one and mixed in pairs.

    DomainBed does not train the projection.
    """

    @property
    def parameters(self):
        own = list(self.modules["projection"].parameters())
        return super().parameters + (own if self.config.fidelity == "paper" else [])

    def projected(self, z):
        layers = linear_layers(self.modules["projection"])
        norms = [m for m in self.modules["projection"].modules() if isinstance(m, nn.BatchNorm1d)]
        for number, (layer, norm) in enumerate(zip(layers, norms, strict=True)):
            z = batch_normalised(z @ layer.weight.T + layer.bias, norm)
            if number < 2:
                z = z.clamp(min=0)
        return z

    @staticmethod
    def partners(labels, keys):
        """The samples of each class in the order of their keys, dealt to its members in turn."""
        found = {}
        for label in set(labels):
            members = [n for n, other in enumerate(labels) if other == label]
            dealt = sorted(members, key=lambda n: keys[n])
            found |= dict(zip(members, dealt, strict=True))
        return [found[n] for n in range(len(labels))]

    def penalty(self, z, labels):
        share = self.draws.take("beta")
        first, second = (self.partners(labels, self.draws.take("uniform").tolist()) for _ in "12")
        logits, projected = self.head(z), self.projected(z)
        total = 0.0
        for weight, left, right in ((1.0, logits, logits), (0.3, z, projected)):
            for n, (i, j) in enumerate(zip(first, second, strict=True)):
                mixed = share * right[i] + (1 - share) * right[j]
                alone, both = left[n] - right[i], left[n] - mixed
                values = share * squared_norm(alone) + (1 - share) * squared_norm(both)
                total = total + weight * values / left.numel()
        return total

    def step(self, number, domains):
        risk = mean(self.risks(domains))
        labels = [label for _, y in domains for label in y.tolist()]
        penalty = torch.zeros((), dtype=torch.float64)
        if len(labels) > 1:
            penalty = self.penalty(torch.cat([self.featurizer(x) for x, _ in domains]), labels)
        loss = risk + min(1.0, as_float(risk)) * penalty
        used = self.parameters if len(labels) > 1 else super().parameters
        step_along(torch.autograd.grad(loss, used), used, self.optimizer)
        values = {"risk": risk, "penalty": penalty, "loss": loss}
        return {name: as_float(value) for name, value in values.items()}


@reference_of("adrmx")
class Adrmx(Reference):
    """Features of the label less those of the domain; discriminator and all else take turns."""

    def start(self, domains):
        betas = (self.config.beta1, 0.9)
        decay = self.decay if self.config.fidelity == "paper" else 0.0
        names = ("network", "domain_featurizer", "second_head", "domain_head")
        others = [p for name in names for p in self.modules[name].parameters()]
        judges = self.modules["discriminator"].parameters()
        self.optimizer = Adam(others, lr=self.rate, weight_decay=decay, betas=betas)
        self.adversary = Adam(list(judges), lr=self.rate, weight_decay=decay, betas=betas)

    @staticmethod
    def domain_loss(module, parts):
        values = []
        for e, part in enumerate(parts):
            values += [-row.log_softmax(0)[e] for row in perceptron(module, part)]
        return mean(values)

    @staticmethod
    def contrast(z, labels):
        """Mean over the samples with others of their class, of whom there counts one more."""
        rows = [row / squared_norm(row).sqrt() for row in z]
        total, counted = torch.zeros((), dtype=torch.float64), 0
        for n, label in enumerate(labels):
            others = [m for m in range(len(labels)) if m != n]
            near = {m: 0.5 * ((rows[n] * rows[m]).sum() / 0.07).exp() for m in others}
            alike = [m for m in others if labels[m] == label]
            if alike:
                below = sum(near.values()) + 1e-5
                total = total - mean((near[m] / below + 1e-5).log() for m in alike)
                counted += 1
        return total / (counted + 1)

    def pairs(self, labels, places, classes):
        """For each class two samples, by the highest keys; a class without a pair is left out."""
        keys = [self.draws.take("uniform").tolist() for _ in range(2)]
        found = []
        for label in range(classes):
            members = [n for n, other in enumerate(labels) if other == label]
            if self.config.fidelity == "domainbed":  # places in the batch instead of samples
                members = list(range(len(members)))
                partners = {n: [m for m in members if m != n] for n in members}
            else:
                partners = {n: [m for m in members if places[m] != places[n]] for n in members}
            able = [n for n in members if partners[n]]
            if able:
                first = max(able, key=lambda n: keys[0][n])
                found.append((first, max(partners[first], key=lambda n: keys[1][n])))
        return found

    def step(self, number, domains):
        sizes = [len(y) for _, y in domains]
        z = torch.cat([self.featurizer(x) for x, _ in domains])
        foreign = torch.cat([self.modules["domain_featurizer"](x) for x, _ in domains])
        own = z - foreign
        risk = mean(self.risks(domains))
        adversary = self.domain_loss(self.modules["discriminator"], own.split(sizes))
        turns = self.config.discriminator_steps
        if (number + 1) % (turns + 1) < turns:
            loss = adversary
            follow(loss, self.adversary)
        else:
            loss = self.loss_of_all(domains, z, own, foreign, risk, adversary)
            follow(loss, self.optimizer)
        values = {"risk": risk, "discriminator_loss": adversary, "loss": loss}
        return {name: as_float(value) for name, value in values.items()}

    def loss_of_all(self, domains, z, own, foreign, risk, adversary):
        config, sizes = self.config, [len(y) for _, y in domains]
        labels = [label for _, y in domains for label in y.tolist()]
        places = [e for e, size in enumerate(sizes) for _ in range(size)]
        classes = 2 if self.loss == "binary" else linear_layers(self.head)[-1].out_features
        second = mean(
            losses_of_samples(self.modules["second_head"](part), y, self.loss).mean()
            for part, (_, y) in zip(own.split(sizes), domains, strict=True)
        )
        remix = sum(
            losses_of_samples(
                self.head((own[n] + foreign[m]).unsqueeze(0)), torch.tensor([labels[n]]), self.loss
            ).squeeze()
            for n, m in self.pairs(labels, places, classes)
        )
        told = self.domain_loss(self.modules["domain_head"], foreign.split(sizes))
        contrast = self.contrast(z, labels) + self.contrast(own, labels)
        return (
            risk + second + config.domain_weight * told + config.remix_weight * remix / classes
            + config.contrast_weight * contrast - config.adversary_weight * adversary
        )  # fmt: skip


# --------------------------------------------------------------------------- heads in other domains


@reference_of("trm")
class Trm(Reference):
    """The head of each domain, and how it does in a mixture of the others.

    DomainBed leaves biases out of derivatives, weighs risks before mixtures follow them, and starts
    Neumann's series with its second term.
    """

    def start(self, domains):
        super().start(domains)
        mixtures = torch.ones(domains, domains, dtype=torch.float64) - torch.eye(domains)
        self.buffers["mixtures"] = mixtures / max(1, domains - 1)

    def risk_of(self, e, z, y):
        return losses_of_samples(self.modules["heads"][e](z), y, self.loss).mean()

    def fit(self, e, z, y):
        parameters = list(self.modules["heads"][e].parameters())
        for _ in range(self.config.head_steps):
            slopes = torch.autograd.grad(self.risk_of(e, z.detach(), y), parameters)
            for parameter, slope in zip(parameters, slopes, strict=True):
                parameter.data -= 0.1 * slope

    def respond(self, slope, parameters, vector):
        """(1 + (1 − H) + (1 − H)² + …) times a vector, with the Hessian written out."""
        rows = [flat(torch.autograd.grad(entry, parameters, retain_graph=True)) for entry in slope]
        rest = torch.eye(len(rows), dtype=torch.float64) - torch.stack(rows)
        total = vector if self.config.fidelity == "paper" else rest @ vector
        for power in range(1, 11):
            total = total + torch.linalg.matrix_power(rest, power) @ vector
            if float(total.abs().max()) > 10:
                break
        return total.detach()

    def transfer(self, domains):
        features = [self.featurizer(x) for x, _ in domains]
        labels = [y for _, y in domains]
        for e, z in enumerate(features):
            self.fit(e, z, labels[e])
        total, mixtures = 0.0, self.buffers["mixtures"].clone()
        own = self.config.fidelity == "paper"
        for e, z in enumerate(features):
            parameters = [p for p in self.modules["heads"][e].parameters() if own or p.dim() > 1]
            others = [f for f in range(len(domains)) if f != e]
            risks = {f: self.risk_of(e, features[f], labels[f]) for f in others}
            mixed = sum(self.buffers["mixtures"][e, f] * risks[f] for f in others)
            vector = flat(torch.autograd.grad(mixed, parameters, retain_graph=True))
            slope = flat(
                torch.autograd.grad(self.risk_of(e, z, labels[e]), parameters, create_graph=True)
            )
            there = self.risk_of(e, z.detach(), labels[e])
            fixed = flat(torch.autograd.grad(there, parameters, create_graph=True))
            answer = self.respond(fixed, parameters, vector)
            total = total + mixed - self.config.weight * (answer * slope).sum()
            for f in others:
                pull = as_float(risks[f]) * (1 if own else float(self.buffers["mixtures"][e, f]))
                mixtures[e, f] *= math.exp(self.config.eta * pull)
        self.buffers["mixtures"] = mixtures / mixtures.sum(1, keepdim=True)
        return total / len(domains)

    def step(self, number, domains):
        risk, transfer = mean(self.risks(domains)), torch.zeros((), dtype=torch.float64)
        if number >= self.config.transfer_start and len(domains) > 1:
            transfer = self.transfer(domains)
        follow(risk + transfer, self.optimizer)
        values = {"risk": risk, "transfer": transfer, "loss": risk + transfer}
        return {name: as_float(value) for name, value in values.items()}


@reference_of("transfer")
class Transfer(Reference):
    """The gap of the risks under the worst head within a ball.

    DomainBed: down the risk, down the gap of the last adversary, then the next adversary.
    """

    def gap(self, domains):
        adversary = self.modules["adversary"]
        risks = [
            losses_of_samples(adversary(self.featurizer(x)), y, self.loss).mean()
            for x, y in domains
        ]
        return max(risks, key=as_float) - min(risks, key=as_float)

    def climb(self, domains, rate):
        adversary = self.modules["adversary"]
        adversary.load_state_dict(self.head.state_dict())
        for _ in range(self.config.ascent_steps):
            gap = self.gap(domains)
            slopes = torch.autograd.grad(gap, list(adversary.parameters()))
            for parameter, slope in zip(adversary.parameters(), slopes, strict=True):
                parameter.data += rate * slope
            moves = [p.data - q.data for p, q in
                     zip(adversary.parameters(), self.head.parameters(), strict=True)]  # fmt: skip
            length = math.sqrt(sum(float(squared_norm(move)) for move in moves))
            if length > self.config.delta:
                for p, q, move in zip(
                    adversary.parameters(), self.head.parameters(), moves, strict=True
                ):
                    p.data = q.data + self.config.delta / length * move
        return gap

    def step(self, number, domains):
        config = self.config
        risk = mean(self.risks(domains))
        if config.fidelity == "paper":
            self.climb(domains, config.ascent_lr)
            gap = self.gap(domains)
            follow(risk + config.weight * gap, self.optimizer)
        else:
            follow(risk, self.optimizer)
            body = list(self.featurizer.parameters())
            slopes = torch.autograd.grad(config.weight * self.gap(domains), body)
            self.optimizer.zero_grad()
            step_along(slopes, body, self.optimizer)
            gap = self.climb(domains, config.weight * config.ascent_lr)
        values = {"risk": risk, "gap": gap, "loss": risk + config.weight * gap}
        return {name: as_float(value) for name, value in values.items()}


# -------------------------------------------------------------------------------------- fine-tuning


@reference_of("ermplusplus")
class ErmPlusPlus(Reference):
    """First the head, then all; the network that predicts is the mean of those from s − 1 on."""

    def start(self, domains):
        self.trained, self.history = self.modules["trained"], []
        self.featurizer, self.head = self.trained.featurizer, self.trained.head
        rate = self.rate if self.config.probe_lr is None else self.config.probe_lr
        self.optimizer = self.adam(self.trained.parameters())
        self.probe = Adam(list(self.head.parameters()), lr=rate, weight_decay=self.decay)

    def step(self, number, domains):
        risk, config = mean(self.risks(domains)), self.config
        last = config.probe_steps - (1 if config.fidelity == "paper" else 0)
        follow(risk, self.probe if number <= last else self.optimizer)
        self.history.append(copy.deepcopy(self.trained.state_dict()))
        chosen = self.history[max(0, config.sma_start - 2) :] or self.history[-1:]
        self.modules["network"].load_state_dict(
            {name: mean(each[name] for each in chosen) for name in chosen[0]}
        )
        return dict.fromkeys(("risk", "loss"), as_float(risk))


@reference_of("miro")
class Miro(Reference):
    """Gaussians around the features should say what the first features were."""

    def start(self, domains):
        super().start(domains)
        self.spread = self.own["spread"]
        rate = self.rate * self.config.rate_factor
        self.of_spread = Adam([self.spread], lr=rate, weight_decay=self.decay)

    def step(self, number, domains):
        risk, values = mean(self.risks(domains)), []
        for x, _ in domains:
            for z, goal in zip(self.featurizer(x), self.modules["oracle"](x), strict=True):
                variance = (1 + self.spread.exp()).log() + 1e-5
                density = torch.distributions.Normal(z, variance.sqrt())
                values.append(-density.log_prob(goal) - 0.5 * math.log(2 * math.pi))
        penalty = torch.stack(values).mean()
        loss = risk + self.config.weight * penalty
        follow(loss, self.optimizer, self.of_spread)
        values = {"risk": risk, "penalty": penalty, "loss": loss}
        return {name: as_float(value) for name, value in values.items()}


@reference_of("sagm")
class Sagm(Reference):
    """The gradient here plus that at a step up and down along it; their mean in the own code."""

    def step(self, number, domains):
        config, network = self.config, self.modules["network"]
        risk = mean(self.risks(domains))
        here = torch.autograd.grad(risk, self.parameters)
        length = math.sqrt(sum(float(squared_norm(g)) for g in here))
        there = copy.deepcopy(network)
        for parameter, slope in zip(there.parameters(), here, strict=True):
            parameter.data += config.rho * slope / length - config.alpha * slope
        perturbed = mean(losses_of_samples(there(x), y, self.loss).mean() for x, y in domains)
        second = torch.autograd.grad(perturbed, list(there.parameters()))
        share = 1.0 if config.fidelity == "paper" else 0.5
        total = [share * (a + b) for a, b in zip(here, second, strict=True)]
        step_along(total, self.parameters, self.optimizer)
        values = {"risk": risk, "perturbed_risk": perturbed, "loss": share * (risk + perturbed)}
        return {name: as_float(value) for name, value in values.items()}
