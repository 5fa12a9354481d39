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
from itertools import combinations, cycle

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
        return {**parameters, **{name: value.clone() for name, value in self.buffers.items()}}

    # Derivatives in the parameters of the head

    def in_head(self, value):
        """Gradient of a number in the head; a linear head's rows are weights and bias in turn."""
        gradients = torch.autograd.grad(value, list(self.head.parameters()), create_graph=True)
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
