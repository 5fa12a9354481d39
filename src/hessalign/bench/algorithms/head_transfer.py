"""Methods that ask how a head of one domain does in the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hessalign._shapes import Float
from hessalign.bench.algorithms.auxiliary import detached, follow, fresh_copy, trainable
from hessalign.bench.algorithms.kinds import MAIN, AbstractStepOwner, Setting, Step, Terms
from hessalign.bench.algorithms.options import (
    Choice,
    Count,
    Fidelity,
    NonNegative,
    Options,
    Power,
    SearchSpace,
    Uniform,
    Whole,
)
from hessalign.curvature import make_loss

_HEAD_RATE: Final = 0.1
_NEUMANN_TERMS: Final = 10
_NEUMANN_LIMIT: Final = 10.0


@torch.no_grad()
def _move(parameters: Sequence[Tensor], gradients: Sequence[Tensor], size: float) -> None:
    """Take a step of some size along gradients, in place."""
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.add_(gradient, alpha=size)


def _flat(tensors: Sequence[Tensor]) -> Float[Tensor, " p"]:
    return torch.cat([each.reshape(-1) for each in tensors])


@dataclass(frozen=True)
class _TrmConfig(Options):
    weight: NonNegative = 1e-4  # c, of how the heads follow
    transfer_start: Whole = 200  # t, the steps of plain training before
    eta: NonNegative = 1e-2  # step size η of the mixtures
    head_steps: Count = 30  # of a domain's head at every step
    # "domainbed" takes derivatives in a head's weights without its biases, lets a mixture follow
    # the weighted risks, exp(η α L) instead of exp(η L), and counts the second term of Neumann's
    # series twice instead of the first and the second, by a change in place.
    fidelity: Fidelity = "paper"


@final
class Trm(AbstractStepOwner):
    r"""Transfer risk minimisation: a domain's best head is to be good in mixtures of the others.

    From step t on each domain e has a head $w_e$, trained on its own features by 30 steps of size
    0.1 before every step of the network, and the featurizer minimises

    $$\frac1E \sum_e L_e + \frac1E \sum_e \Big(R_e - c\; v_e^\top \nabla_w L_e(w_e)\Big), \qquad
    R_e = \sum_{f \neq e} \alpha_{ef} L_f(w_e), \qquad v_e \approx H_e^{-1} \nabla_w R_e$$

    The second term in the brackets is how $w_e$ follows the features (implicit function theorem);
    $v_e$ is a constant, the sum of ten terms of Neumann's series, which ends as soon as an entry is
    above 10 in size. $H_e$ is the Hessian of $L_e$ in $w_e$. The mixture follows the risks as in
    GroupDRO, $\alpha_{ef} \leftarrow \alpha_{ef} e^{\eta L_f(w_e)}$, rows normalised. With one
    domain the mean risk is left.
    """

    aligns = "best heads, by their risks"
    reference = "Xu & Jaakkola, 2021, arXiv 2110.09940"
    config: _TrmConfig = _TrmConfig()
    search: ClassVar[SearchSpace] = {
        "weight": ("cos_lambda", Power(10, -5, 0)),
        "transfer_start": ("iters", Power(10, 0, 4, integer=True)),
        "eta": ("groupdro_eta", Power(10, -3, -1)),
    }
    # The same share of 501 steps, as for ERM++.
    released: ClassVar[Mapping[str, object]] = {"transfer_start": 20}
    mixtures: Tensor

    def __init__(self, config: _TrmConfig, setting: Setting) -> None:
        super().__init__(config, setting)
        head, domains = self.network.head, setting.domains
        self.heads = nn.ModuleList(fresh_copy(head, setting.generator) for _ in range(domains))
        uniform = (1 - torch.eye(domains, dtype=torch.float64)) / max(1, domains - 1)
        self.register_buffer("mixtures", uniform)

    def update(self, step: Step, optimizers: Mapping[str, Optimizer]) -> Terms:
        """A step down the mean risk and, from some step on, the transfer risk."""
        risk = step.statistics.risk.mean()
        transfer = torch.zeros_like(risk)
        if step.number >= self.config.transfer_start and len(self.heads) > 1:
            self._fit_heads(step)
            transfer = self._transfer_risk(step)
        loss = follow(risk + transfer, optimizers, MAIN)
        return detached(risk=risk, transfer=transfer, loss=loss)

    def _risk(self, step: Step, e: int, z: Tensor, f: int) -> Float[Tensor, ""]:
        """Mean loss of the head of domain e on features of domain f."""
        return make_loss(step.loss).values(self.heads[e](z), step.batch.parts[f].y).mean()

    def _fit_heads(self, step: Step) -> None:
        """Train every domain's head on its own features."""
        for e, z in enumerate(step.features_by_domain()):
            parameters = list(trainable(self.heads[e]).values())
            for _ in range(self.config.head_steps if parameters else 0):
                slopes = torch.autograd.grad(self._risk(step, e, z.detach(), e), parameters)
                _move(parameters, slopes, -_HEAD_RATE)

    def _transfer_risk(self, step: Step) -> Float[Tensor, ""]:
        """The second term; the mixtures move on."""
        features, domainbed = step.features_by_domain(), self.config.fidelity == "domainbed"
        terms, domains = [], range(len(features))
        moved = self.mixtures.clone()
        for e in domains:
            risks = torch.stack([self._risk(step, e, features[f], f) for f in domains])
            mixture = self.mixtures[e].to(risks.dtype)
            mixed = mixture @ risks
            terms.append(mixed)
            parameters = list(trainable(self.heads[e]).values())
            if domainbed:
                parameters = [each for each in parameters if each.dim() > 1]
            if parameters:
                goal = _flat(torch.autograd.grad(mixed, parameters, retain_graph=True))
                slope = torch.autograd.grad(risks[e], parameters, create_graph=True)
                response = self._inverse_product(step, e, parameters, goal)
                terms.append(-self.config.weight * (response @ _flat(slope)))
            pull = (mixture * risks if domainbed else risks).detach()
            moved[e] = moved[e] * (self.config.eta * pull).exp()
        self.mixtures = moved / moved.sum(1, keepdim=True)
        return torch.stack(terms).sum() / len(features)

    def _inverse_product(
        self, step: Step, e: int, parameters: Sequence[Tensor], vector: Float[Tensor, " p"]
    ) -> Float[Tensor, " p"]:
        """Neumann's series of a head's inverse Hessian times a vector, until it grows too large."""
        z = step.features_by_domain()[e].detach()
        slope = _flat(torch.autograd.grad(self._risk(step, e, z, e), parameters, create_graph=True))
        total, going = vector, torch.ones((), dtype=torch.bool, device=vector.device)
        for number in range(_NEUMANN_TERMS):
            product = torch.autograd.grad(slope @ vector, parameters, retain_graph=True)
            vector = vector - _flat(product)
            if number == 0 and self.config.fidelity == "domainbed":
                total = vector
            total = torch.where(going, total + vector, total)
            going = going & (total.abs().max() <= _NEUMANN_LIMIT)
        return total


@dataclass(frozen=True)
class _TransferConfig(Options):
    weight: NonNegative = 1.0  # λ, of the gap
    delta: NonNegative = 2.0  # the radius δ
    ascent_steps: Count = 10  # m
    ascent_lr: NonNegative = 1e-3  # r
    # "domainbed" takes two steps of the optimiser one after another: down the risk, and down λ
    # times the gap of the h' that the step before left; then it looks for the next h', up λ times
    # the gap, which starts at the new h.
    fidelity: Fidelity = "paper"


@final
class Transfer(AbstractStepOwner):
    r"""Minimise the mean risk, and the largest gap of the risks under the worst head nearby.

    That head h' is within a distance δ of the network's own h, weights and bias together:

    $$\min_{g, h}\; \frac1E \sum_e L_e(h \circ g) + \lambda \max_{\|h' - h\| \leq \delta}
    \Big(\max_e L_e(h' \circ g) - \min_f L_f(h' \circ g)\Big)$$

    h' starts at h and takes m steps of size r up the gap, each followed by a projection onto the
    ball; derivatives go through the features alone, not through h'.
    """

    aligns = "loss, under the worst head nearby"
    reference = "Zhang et al., 2021, arXiv 2106.03632"
    # DomainBed also draws a weight decay and Adam's first decay rate, which nothing reads, and
    # gda=True, under which no parameter of the network is trained. These are left out.
    config: _TransferConfig = _TransferConfig()
    search: ClassVar[SearchSpace] = {
        "weight": ("t_lambda", Power(10, -2, 1)),
        "delta": ("delta", Uniform(0.1, 3.0)),
        "ascent_steps": ("d_steps_per_g", Choice((1, 2, 5))),
        "ascent_lr": ("lr_d", Power(10, -4.5, -2.5)),
    }

    def __init__(self, config: _TransferConfig, setting: Setting) -> None:
        super().__init__(config, setting)
        self.adversary = fresh_copy(self.network.head, setting.generator)
        self._return_to_head()

    def update(self, step: Step, optimizers: Mapping[str, Optimizer]) -> Terms:
        """The adversary and the network; in which order is a matter of the fidelity."""
        config, risk = self.config, step.statistics.risk.mean()
        if config.fidelity == "domainbed":
            follow(risk, optimizers, MAIN)
            gap = self._gap(step, step.network.features(step.batch.x))
            follow(config.weight * gap, optimizers, MAIN)
            with torch.no_grad():
                z = step.network.features(step.batch.x)
            gap = self._climb(step, z, config.weight)
        else:
            self._climb(step, step.z.detach(), 1.0)
            gap = self._gap(step, step.z)
            follow(risk + config.weight * gap, optimizers, MAIN)
        return detached(risk=risk, gap=gap, loss=risk + config.weight * gap)

    def _gap(self, step: Step, z: Float[Tensor, "n d"]) -> Float[Tensor, ""]:
        """The largest minus the smallest risk under the adversary."""
        risks = step.risks_of(self.adversary(z))
        return risks.max() - risks.min()

    def _return_to_head(self) -> None:
        self.adversary.load_state_dict(self.network.head.state_dict())

    def _climb(self, step: Step, z: Float[Tensor, "n d"], factor: float) -> Float[Tensor, ""]:
        """Look for the worst head, from the network's on; the last gap that a step saw."""
        self._return_to_head()
        heads = (self.adversary, self.network.head)
        parameters, centre = (list(trainable(head).values()) for head in heads)
        gap = self._gap(step, z)
        for _ in range(self.config.ascent_steps if parameters else 0):
            gap = self._gap(step, z)
            _move(parameters, torch.autograd.grad(gap, parameters), factor * self.config.ascent_lr)
            self._project(parameters, centre)
        return gap.detach()

    @torch.no_grad()
    def _project(self, parameters: Sequence[Tensor], centre: Sequence[Tensor]) -> None:
        """Bring parameters back to within δ of a centre."""
        distance = (_flat(parameters) - _flat(centre)).square().sum().sqrt()
        share = (self.config.delta / distance.clamp(min=1e-30)).clamp(max=1)
        for parameter, middle in zip(parameters, centre, strict=True):
            parameter.copy_(middle + share * (parameter - middle))
