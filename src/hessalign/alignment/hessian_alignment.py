"""The drop-in penalty: align the classifier head's Hessians and gradients across domains."""

from __future__ import annotations

import warnings
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, final, get_args

import torch
from torch import Tensor, nn

from hessalign._errors import InputError, check_name
from hessalign._numbers import check_not_negative, check_positive, is_whole, shown
from hessalign._shapes import Float
from hessalign.alignment.fidelity import Fidelity, Reading, make_reading
from hessalign.alignment.metrics import METRICS, RIDGE, Metric
from hessalign.alignment.moments import Evaluation, check_evaluation
from hessalign.alignment.parts import (
    Communication,
    DomainSums,
    Processes,
    ProcessGroupLike,
    assemble,
    make_processes,
    quantities_summed,
)
from hessalign.alignment.penalties import HessianKind, alignment_dispersions, check_hessian
from hessalign.alignment.quantities import squared_shares
from hessalign.curvature import HeadStatistics, LinearHead, autograd_head, linear_head, make_loss
from hessalign.curvature.activations import Activation, Elementwise
from hessalign.curvature.domains import DomainLike, check_several, check_several_counted
from hessalign.curvature.inputs import reads_values
from hessalign.curvature.losses import LossLike

_UNBIASED = ("full", "diagonal", None)
"""The kinds whose terms are means over pairs of samples."""

_METRIC_KINDS = ("full", None)
"""The kinds that have other metrics."""


def check_kind(hessian: HessianKind | None, metric: Metric, *, unbiased: bool) -> None:
    """Raise an InputError if a kind has no such metric, or no unbiased version."""
    if unbiased and hessian not in _UNBIASED:
        raise InputError(
            f'Expected unbiased=True with hessian="full", "diagonal" or None, got '
            f"{hessian!r}, which is not a mean over pairs of samples."
        )
    if metric != "euclidean" and hessian not in _METRIC_KINDS:
        raise InputError(
            f'Expected metric="euclidean" with hessian={hessian!r}, got {metric!r}: other metrics '
            'are for hessian="full" or None.'
        )


def _full_precision(logits: Tensor) -> AbstractContextManager[object]:
    """No mixed precision, which would round the very differences that are to be measured."""
    device = logits.device.type if isinstance(logits, Tensor) else "cpu"
    device = "cpu" if device == "meta" else device
    if not torch.compiler.is_compiling() and not torch.is_autocast_enabled(device):
        return nullcontext()  # which takes a tenth of the time
    return torch.autocast(device, enabled=False)


@final
@dataclass(frozen=True)
class AlignmentTerms:
    """The terms of the penalty, each a differentiable scalar of the logits' precision.

    Half-precision logits have terms in float32: a half would overflow.

    Attributes:
        penalty: α · hessian + β · gradient, to be added to the loss.
        hessian: Dispersion of the Hessians, before α; a sum over domains if the fidelity says so.
        gradient: Dispersion of the gradients, before β; likewise.
    """

    penalty: Float[Tensor, ""]
    hessian: Float[Tensor, ""]
    gradient: Float[Tensor, ""]


@final
@dataclass
class HessianAlignment:
    r"""Penalty on the differences between domains of the head's Hessian and gradient.

    $$\alpha \frac1E \sum_e \|H_e - \bar H\|^2 + \beta \frac1E \sum_e \|g_e - \bar g\|^2$$

    with the means over domains H̄ and ḡ, nothing detached: eq. 17 and 20 of Hemati et al. (2023),
    where the Hessian itself, its diagonal, an estimate of the diagonal or its product with the
    gradient takes the place of H. To align by its closed form, as "full" does, is the idea of CMA
    (Chen et al., UAI 2025, arXiv 2506.07378); here it is not formed.

    Args:
        alpha: Weight α of the Hessian term. It carries the units of the head (features to the
            fourth power), so no value travels between data sets.
        beta: Weight β of the gradient term.
        hessian: "full" (exact), "diagonal" (exact), "sampled" (the paper's Hutchinson), "expected"
            (its expectation over the probes), "product" (the paper's HGP), or None for gradients
            only.
        loss: "cross_entropy", "binary", "squared", "multilabel" (independent logits); a loss object
            such as `CrossEntropy(class_weight=..., label_smoothing=..., ignore_index=...)`; or any
            twice differentiable function of one sample's logits and target, see `OwnLoss`.
        activation: The activation of a head with squared error.
        bias: Whether the head has a bias.
        probes: Probes per domain for "sampled" and "expected"; None for those of the fidelity.
        shared_probes: The same probes for all domains. They estimate the difference of Hessians
            with less noise; independent probes also shrink each domain's off-diagonal curvature.
        generator: Source of the probes; torch's global one if None.
        fidelity: "paper" for the equations as printed, with 100 probes. "domainbed" for the
            authors' code on DomainBed: targets taken from the mean loss (H̄ḡ, an extra estimate of
            diag H̄) and detached, 300 probes. "released" for their Colored MNIST scripts: the same
            targets, not detached, sums over domains instead of means, 150 probes. The names mean
            the same in the algorithms; see `hessalign.alignment.fidelity`.
        evaluation: "auto", "primal" or "dual"; see `hessalign.alignment.moments`.
        unbiased: Leave out pairs of one sample with itself. With independent draws of n_e samples
            the dispersion of means m̄_e is too large by (E−1)/E² Σ_e tr Cov(m)/n_e on average; the
            unbiased one is on average that of the domains they are drawn from, so that its mean
            over micro-batches converges to it. It can be negative, and needs two samples of each
            domain. For "full", "diagonal" and None.
        metric: "euclidean" as above; or one that small features and sure predictions cannot lower,
            for "full" and None: "relative" (each block of the Hessian against its own mean),
            "whitened" (features by their covariance, curvature by its mean) or "exact" (by the mean
            Hessian, which must fit into memory). In the last two the gradient term is what a
            Newton step of its own would gain a domain, in units of the loss. α and β have no units
            then. See `hessalign.alignment.metrics`.
        ridge: What "whitened" and "exact" add to the eigenvalues of what they invert, as a share of
            their mean.
        conditional: Compare samples of a class with those of the same class in other domains, and
            take the mean over classes: domains that differ in nothing but how frequent classes are
            differ in nothing then. A class of a single domain is left out.
        checks: Whether to look at the values of what is given, which waits for its device: always,
            never, or if None always on the CPU and in the first call elsewhere.
        group: Processes of torch.distributed among which the batch is divided: a group, or "world"
            for all there are. Each gives its own samples, gets the terms of all of them, and has
            slopes such that the mean over processes, which DistributedDataParallel takes, is the
            slope of the whole batch. None for this process alone. See `hessalign.alignment.parts`.

    Attributes:
        sent: What the last call sent to other processes; None if there are none.

    Example:
        >>> align = HessianAlignment(alpha=1e-2, beta=1e-3, hessian="full")
        >>> z = torch.randn(8, 5, requires_grad=True)
        >>> logits = nn.Linear(5, 3)(z)
        >>> y, domain = torch.randint(3, (8,)), torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
        >>> terms = align(z, logits, y, domain)
        >>> loss = nn.functional.cross_entropy(logits, y) + terms.penalty
        >>> loss.backward()
    """

    alpha: float
    beta: float
    hessian: HessianKind | None = "full"
    loss: LossLike = "cross_entropy"
    activation: str | Elementwise | Activation = "identity"
    bias: bool = True
    probes: int | None = None
    shared_probes: bool = False
    generator: torch.Generator | None = None
    fidelity: Fidelity = "paper"
    evaluation: Evaluation = "auto"
    unbiased: bool = False
    metric: Metric = "euclidean"
    ridge: float = RIDGE
    conditional: bool = False
    checks: bool | None = None
    group: ProcessGroupLike = None
    sent: Communication | None = field(default=None, init=False, repr=False, compare=False)
    _warned: bool = field(default=False, init=False, repr=False)
    _checked: bool = field(default=False, init=False, repr=False)

    def __post_init__(self) -> None:
        for name, weight in (("alpha", self.alpha), ("beta", self.beta)):
            check_not_negative(weight, name)
        for name in ("bias", "shared_probes", "unbiased", "conditional"):
            if not isinstance(value := getattr(self, name), bool):
                raise InputError(f"Expected {name} as True or False, got {value!r}.")
        if self.probes is not None and not is_whole(self.probes):
            raise InputError(f"Expected probes as a whole number, got {shown(self.probes)}")
        check_hessian(self.hessian)
        check_name("fidelity", self.fidelity, get_args(Fidelity))
        self.probes = self.reading.probes
        if self.probes < 1:
            raise InputError(f"Expected at least 1 probe, got {self.probes}.")
        check_evaluation(self.evaluation)
        make_loss(self.loss, self.activation)
        check_name("metric", self.metric, METRICS)
        check_positive(self.ridge, "ridge")
        check_kind(self.hessian, self.metric, unbiased=self.unbiased)
        plain = self.metric == "euclidean"
        if self.group is not None and not (plain and not self.conditional):
            raise InputError(
                "Expected no group with conditional terms or a metric other than 'euclidean': they "
                "are not divided among processes."
            )

    @property
    def reading(self) -> Reading:
        """What the fidelity says, with the probes asked for."""
        return make_reading(self.fidelity, self.probes)

    def __call__(
        self,
        z: Float[Tensor, "n d"],
        logits: Tensor,
        y: Tensor,
        domain: DomainLike,
        *,
        head: nn.Module | None = None,
        weight: Float[Tensor, " n"] | None = None,
    ) -> AlignmentTerms:
        """The penalty of one batch that mixes samples of several domains.

        Args:
            z: Features that enter the head.
            logits: What the head made of them.
            y: Targets; with cross-entropy also soft ones, `[n, classes]`.
            domain: The domain of each sample, any integers; or a layout (`domain_layout`), or the
                sizes of contiguous domains. In graphs (`torch.compile`, `torch.export`) and on a
                device that is not to be waited for, one of the latter two.
            head: A head that is not linear, for statistics by automatic differentiation.
            weight: What each sample counts in the mean of its domain; by default they count alike.

        Returns:
            The terms. What does not suit raises an InputError.
        """
        with _full_precision(logits):
            processes = make_processes(self.group)
            if processes is not None:
                return self._across(processes, (z, logits, y, domain, weight), head)
            return self._terms(self._statistics(head, z, logits, y, domain, weight), logits)

    def _across(
        self,
        processes: Processes,
        part: tuple[Tensor, Tensor, Tensor, DomainLike, Tensor | None],
        head: nn.Module | None,
    ) -> AlignmentTerms:
        """The terms of the samples of all processes; see `hessalign.alignment.parts`."""
        seed = 0
        if self.hessian == "sampled":
            source = torch.device("cpu") if self.generator is None else self.generator.device
            seed = int(torch.randint(2**62, (), generator=self.generator, device=source))
        loss = make_loss(self.loss, self.activation)
        whole, seed, self.sent = assemble(
            processes,
            part,
            loss=loss,
            bias=self.bias,
            quantities=quantities_summed(self.hessian, self.evaluation) if head is None else (),
            unbiased=self.unbiased,
            checks=self._looks(),
            settings=self._settings(loss.name),
            seed=seed,
        )
        if isinstance(whole, DomainSums):
            self._checked = True
            if len(whole) == 1:
                return self._nothing(part[1])
            *hessian, gradient = whole.dispersions()
            first = hessian[0] if hessian else torch.zeros_like(gradient)
            return self._weighed(first, gradient, len(whole), part[1])
        statistics = self._statistics(head, *whole)
        return self._terms(statistics, whole.logits, torch.Generator().manual_seed(seed))

    def _settings(self, loss: str) -> str:
        """What must be the same on all processes."""
        names = "alpha beta hessian bias probes shared_probes fidelity evaluation unbiased"
        named = {name: getattr(self, name) for name in names.split()} | {"loss": loss}
        return ", ".join(f"{name}={value!r}" for name, value in named.items())

    def _statistics(
        self,
        head: nn.Module | None,
        z: Tensor,
        logits: Tensor,
        y: Tensor,
        domain: DomainLike,
        weight: Tensor | None,
    ) -> HeadStatistics:
        """Those of a linear head, or of a head that is given, on checked samples."""
        checks = self._looks()
        options: dict[str, Any] = {"activation": self.activation, "weight": weight}
        options |= {"loss": self.loss, "checks": checks}
        if head is None:
            found: HeadStatistics = linear_head(z, logits, y, domain, bias=self.bias, **options)
        else:
            found = autograd_head(head, z, y, domain, **options)
        self._checked = True
        pairs = self.unbiased and not self.conditional and reads_values(z, checks)
        if pairs and isinstance(found, LinearHead) and found.weight is not None:
            check_several_counted(squared_shares(found))
        return found

    def _looks(self) -> bool | None:
        """Whether this call looks at values; None for where it costs nothing."""
        return True if self.checks is None and not self._checked else self.checks

    def _terms(
        self,
        statistics: HeadStatistics,
        logits: Tensor,
        generator: torch.Generator | None = None,
    ) -> AlignmentTerms:
        if len(statistics.domains) == 1:
            return self._nothing(logits)
        if self.unbiased and not self.conditional:
            check_several(statistics.domains.sizes)
        reading = self.reading
        hessian, gradient = alignment_dispersions(
            statistics,
            self.hessian,
            metric=self.metric,
            ridge=self.ridge,
            conditional=self.conditional,
            unbiased=self.unbiased,
            target=reading.target,
            evaluation=self.evaluation,
            probes=reading.probes,
            shared_probes=self.shared_probes,
            generator=self.generator if generator is None else generator,
        )
        return self._weighed(hessian, gradient, len(statistics.domains), logits)

    def _weighed(
        self, hessian: Tensor, gradient: Tensor, domains: int, logits: Tensor
    ) -> AlignmentTerms:
        """The terms, given the dispersions."""
        dtype = torch.promote_types(logits.dtype, torch.float32)
        if self.reading.summed:
            hessian, gradient = (domains * x for x in (hessian, gradient))
        hessian, gradient = hessian.to(dtype), gradient.to(dtype)
        alpha, beta = (float(w) if is_whole(w) else w for w in (self.alpha, self.beta))
        penalty = torch.add(alpha * hessian, gradient, alpha=beta)
        return AlignmentTerms(penalty, hessian, gradient)

    def _nothing(self, logits: Tensor) -> AlignmentTerms:
        """The terms of one domain, with a warning the first time."""
        if not self._warned and not torch.compiler.is_compiling():  # a graph cannot warn
            warnings.warn(
                "All samples come from one domain: there is nothing to align and the penalty is 0. "
                "Put at least two domains into each batch.",
                stacklevel=4,
            )
            self._warned = True
        zero = (0 * logits.to(torch.promote_types(logits.dtype, torch.float32))).sum()
        return AlignmentTerms(zero, zero, zero)
