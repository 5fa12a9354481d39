"""Methods whose penalty aligns the distribution of the features."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar, Final, final

import torch
from torch import Tensor

from hessalign._shapes import Float
from hessalign.alignment import squared_distances
from hessalign.bench.algorithms.auxiliary import count_classes, draw_uniform, sum_over_rows
from hessalign.bench.algorithms.kinds import AbstractObjective, ObjectiveTerms, Setting, Step
from hessalign.bench.algorithms.options import (
    Choice,
    Fidelity,
    NonNegative,
    PenaltyFidelity,
    PenaltyOptions,
    Power,
    Range,
    SearchSpace,
)
from hessalign.curvature.domains import domain_layout
from hessalign.curvature.gram import gram

_GAMMAS: Final = (1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2, 1e3)  # inverse squared widths of MMD's kernels
_SEARCH: Final[SearchSpace] = {"penalty_weight": ("mmd_gamma", Power(10, -1, 1))}


def _covariance(z: Float[Tensor, "n d"]) -> Float[Tensor, "d d"]:
    """Covariance of the features, unbiased; 0 for a single sample."""
    centred = z - z.mean(0)
    return centred.T @ centred / max(1, len(z) - 1)


def _mean_pair_distance(points: Float[Tensor, " e *p"]) -> Float[Tensor, ""]:
    """Mean over pairs of domains of the squared distance: 2 / (E − 1) Σ ‖a_e − ā‖²."""
    return 2 * (points - points.mean(0)).square().sum() / max(1, len(points) - 1)


def _covariance_distance(features: Sequence[Float[Tensor, "n d"]]) -> Float[Tensor, ""]:
    """Mean over pairs of domains of the squared distance of their covariances."""
    sizes = [len(z) for z in features]
    if sum(sizes) >= features[0].shape[1]:
        return _mean_pair_distance(torch.stack([_covariance(z) for z in features]))
    rows = torch.cat([(z - z.mean(0)) / max(1, len(z) - 1) ** 0.5 for z in features])
    squares = gram(rows).square()
    domain = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    same = (domain[:, None] == domain).to(squares)
    weights = 2 * (same - 1 / len(sizes)) / max(1, len(sizes) - 1)
    return (weights * squares).sum().to(rows.dtype)


def _coral_penalty(
    features: Sequence[Float[Tensor, "n d"]], fidelity: Fidelity = "paper"
) -> Float[Tensor, ""]:
    width = features[0].shape[1]
    distance = _covariance_distance(features) / width**2
    if fidelity == "paper":
        return distance / 4
    return distance + _mean_pair_distance(torch.stack([z.mean(0) for z in features])) / width


@final
class Coral(AbstractObjective):
    r"""Minimise the mean risk and the distance of the features' covariances.

    $$\frac{2}{E(E-1)} \sum_{e<f} \frac{1}{4 d^2} \|C_e - C_f\|_F^2, \qquad
    C_e = \frac{1}{n_e - 1} \sum_{n \in e} (z_n - \bar z_e)(z_n - \bar z_e)^\top$$

    The paper has one source and one target; with several source domains it is the mean over their
    pairs. A domain with one sample has covariance 0. With fewer samples than features the d×d
    covariances are never formed: for rows $a_n$, centred and divided by $\sqrt{n_e - 1}$, inner
    products are $\langle C_e, C_f \rangle = \sum_{n \in e, m \in f} (a_n \cdot a_m)^2$, and the
    mean over pairs is the sum over all pairs of samples of $\frac{2}{E-1} (\delta_{ef} - \frac1E)
    (a_n \cdot a_m)^2$.
    """

    aligns = "covariance"
    reference = "Sun & Saenko, 2016"
    # Fidelity "domainbed" for the mean of squared differences of the means' d entries plus that of
    # the covariances' d² entries, averaged over pairs.
    config: PenaltyFidelity = PenaltyFidelity()
    search: ClassVar[SearchSpace] = _SEARCH

    def terms(self, step: Step) -> ObjectiveTerms:
        """Risk and penalty."""
        penalty = _coral_penalty(step.features_by_domain(), self.config.fidelity)
        return ObjectiveTerms(step.statistics.risk.mean(), penalty)


def squared_discrepancy(
    z: Float[Tensor, "n d"], averaging: Float[Tensor, "e n"], gammas: Sequence[float] = _GAMMAS
) -> Float[Tensor, ""]:
    """Mean over pairs of distributions, by weights that add up to 1, of their squared MMD."""
    # `gammas` are the inverse squared widths of kernels that are added up.
    domains = len(averaging)
    if domains == 1:
        return z.new_zeros(()) * z.sum()
    z = z.to(averaging.dtype)
    z = z - z.detach().mean(0)  # leaves distances as they are and keeps their digits

    def part(rows: Tensor, weights: Tensor) -> Tensor:
        norms = rows.square().sum(1).unsqueeze(1) + z.square().sum(1)
        squares = (norms - 2 * rows @ z.T).clamp(min=0)
        kernel = torch.stack([torch.exp(-gamma * squares) for gamma in gammas]).sum(0)
        return weights.T @ kernel @ averaging.T

    means = sum_over_rows(part, z, averaging.T)
    return squared_distances(means).sum() / (domains * (domains - 1))


@final
class Mmd(AbstractObjective):
    r"""Minimise the mean risk and the maximum mean discrepancy of the features.

    MMD (Gretton et al., 2012; for domains: Li et al., 2018, MMD-AAE) is the squared distance of the
    domains' mean embeddings in the space of a kernel, averaged over pairs:

    $$\frac{2}{E(E-1)} \sum_{e<f} \left(K_{ee} + K_{ff} - 2 K_{ef}\right), \qquad
    K_{ef} = \text{mean}_{n \in e,\, m \in f}\; k(z_n, z_m), \qquad
    k(z, z') = \sum_\gamma e^{-\gamma \|z - z'\|^2}$$

    with γ from 10⁻³ to 10³ in powers of ten. $K_{ee}$ includes the pairs n = m (the biased
    estimate, which is never below 0). Of the adversarial autoencoder of Li et al. only this term is
    taken, as in DomainBed. With one domain it is 0, and so is CORAL's.
    """

    aligns = "the distribution of features"
    reference = "Li et al., 2018"
    config: PenaltyOptions = PenaltyOptions()
    search: ClassVar[SearchSpace] = _SEARCH

    def terms(self, step: Step) -> ObjectiveTerms:
        """Risk and penalty."""
        penalty = squared_discrepancy(step.z, step.batch.domains.weights.averaging)
        return ObjectiveTerms(step.statistics.risk.mean(), penalty)


@final
class Ddc(AbstractObjective):
    r"""Deep domain confusion: minimise the mean risk and the distance of mean features.

    It is MMD with a linear kernel, the squared distance of the domains' mean features, averaged
    over pairs (eq. 1 and 2). Its adaptation layer is whatever layer makes the features.
    """

    aligns = "feature"
    reference = "Tzeng et al., 2014, arXiv 1412.3474"
    config: PenaltyOptions = PenaltyOptions(penalty_weight=0.25)  # the paper's
    search: ClassVar[SearchSpace] = {"penalty_weight": Power(10, -1, 1)}  # ours, as for MMD

    def terms(self, step: Step) -> ObjectiveTerms:
        """Risk and penalty."""
        means = torch.stack([z.mean(0) for z in step.features_by_domain()])
        return ObjectiveTerms(step.statistics.risk.mean(), _mean_pair_distance(means))


def _mixture_terms(
    step: Step, generator: torch.Generator, penalty: Callable[[list[Tensor]], Tensor]
) -> ObjectiveTerms:
    """Risk, and a penalty of the first and the second parts of domains cut in two at random."""
    features, risk = step.features_by_domain(), step.statistics.risk.mean()
    shares = draw_uniform(generator, len(features)).tolist()
    cuts = [int(share * len(z)) for share, z in zip(shares, features, strict=True)]
    first = torch.cat([z[:cut] for z, cut in zip(features, cuts, strict=True)])
    second = torch.cat([z[cut:] for z, cut in zip(features, cuts, strict=True)])
    fits = min(len(first), len(second)) > 1
    return ObjectiveTerms(risk, penalty([first, second]) if fits else torch.zeros_like(risk))


@final
class CausIrlCoral(AbstractObjective):
    r"""Minimise the mean risk and CORAL's distance of two random mixtures of the domains.

    CausIRL asks that features have one distribution whatever the mixture of the domains. Each
    domain is cut in two at random, which is before sample $\lfloor u_e n_e \rfloor$ for uniform
    $u_e$; all first parts make one mixture, all second parts another, and the penalty is CORAL's or
    MMD's for the two. It is 0 where a mixture has less than two samples.
    """

    aligns = "covariance, of mixtures of domains"
    reference = "Chevalley et al., 2022, arXiv 2206.11646"
    config: PenaltyFidelity = PenaltyFidelity()  # as for CORAL
    search: ClassVar[SearchSpace] = _SEARCH

    def terms(self, step: Step) -> ObjectiveTerms:
        """Risk and penalty."""
        penalty = partial(_coral_penalty, fidelity=self.config.fidelity)
        return _mixture_terms(step, self.generator, penalty)


@final
class CausIrlMmd(AbstractObjective):
    """Minimise the mean risk and the MMD of two random mixtures, those of `CausIrlCoral`."""

    aligns = "the distribution of features, of mixtures of domains"
    reference = "Chevalley et al., 2022, arXiv 2206.11646"
    config: PenaltyOptions = PenaltyOptions()
    search: ClassVar[SearchSpace] = _SEARCH

    def terms(self, step: Step) -> ObjectiveTerms:
        """Risk and penalty."""

        def penalty(mixtures: list[Tensor]) -> Tensor:
            averaging = domain_layout(tuple(map(len, mixtures)), step.z.device).weights.averaging
            return squared_discrepancy(torch.cat(mixtures), averaging)

        return _mixture_terms(step, self.generator, penalty)


@final
@dataclass(frozen=True)
class CadConfig(PenaltyOptions):
    """The bottleneck's weight λ, and how similarity is measured."""

    penalty_weight: NonNegative = 0.1
    temperature: Annotated[float, Range(0, open_low=True)] = 0.1  # T
    conditional: bool = False  # whether among the samples of one class (CondCAD)
    # "domainbed" for the authors' own code there, for which default and range of the weight were
    # made, and which they found more stable. "paper" for the logarithm of p itself, which has no
    # lower bound. DomainBed's is_normalized, is_project and is_flipped are those of its draws:
    # neither of the first two, and the last.
    fidelity: Fidelity = "domainbed"


@final
class Cad(AbstractObjective):
    r"""Contrastive adversarial domain bottleneck: features by which domains are hard to tell.

    There is no discriminator to be trained: what tells the domain of a sample is how similar it is
    to others of the batch (section 4.2),

    $$p_n = \frac{\sum_{m \in e(n),\, m \neq n} e^{z_n \cdot z_m / T}}
    {\sum_{m \neq n} e^{z_n \cdot z_m / T}}, \qquad
    \text{"paper"}: \text{mean}_n \log p_n, \qquad
    \text{"domainbed"}: -\frac{T}{0.07}\, \text{mean}_n \log(1 - p_n)$$

    CondCAD (its appendix C.4) does so among the samples of one class: all m have $y_m = y_n$.
    Samples for which the logarithm is of 0 are left out; so are for CAD in DomainBed those that
    have no other sample of their class in the batch.
    """

    aligns = "the distribution of features"
    reference = "Ruan et al., 2022, arXiv 2201.00057"
    config: CadConfig = CadConfig()
    search: ClassVar[SearchSpace] = {
        "penalty_weight": ("lmbda", Choice((1e-4, 1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2))),
        "temperature": ("temperature", Choice((0.05, 0.1))),
    }

    def __init__(self, config: CadConfig, setting: Setting) -> None:
        super().__init__(config, setting)
        if config.conditional or config.fidelity == "domainbed":
            count_classes(setting)  # refuses a loss without classes

    def _bottleneck(self, z: Float[Tensor, "n d"], y: Tensor, domain: Tensor) -> Tensor:
        """The penalty of a batch."""
        config, place = self.config, torch.arange(len(z), device=z.device)
        domainbed = config.fidelity == "domainbed"

        def part(rows: Tensor, labels: Tensor, domains: Tensor, places: Tensor) -> Tensor:
            scores = rows @ z.T / config.temperature
            others = places.unsqueeze(1) != place
            alike = others & (labels.unsqueeze(1) == y)
            among = alike if config.conditional else others
            at_home = domains.unsqueeze(1) == domain
            wanted = among & (~at_home if domainbed else at_home)
            counted = (wanted.any(1) & alike.any(1)) if domainbed else wanted.any(1)
            # Rows that do not count are not masked, so that they stay finite.
            sums = [
                scores.masked_fill(~mask & counted.unsqueeze(1), -torch.inf).logsumexp(1)
                for mask in (wanted, among)
            ]
            return torch.stack([((sums[0] - sums[1]) * counted).sum(), counted.sum().to(scores)])

        total, count = sum_over_rows(part, z, y, domain, place)
        mean: Tensor = total / count.clamp(min=1)
        return -config.temperature / 0.07 * mean if domainbed else mean

    def terms(self, step: Step) -> ObjectiveTerms:
        """Risk and penalty."""
        penalty = self._bottleneck(step.z, step.batch.y, step.batch.domain)
        return ObjectiveTerms(step.statistics.risk.mean(), penalty)
