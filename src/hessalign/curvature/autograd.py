r"""The same statistics for any head module, by automatic differentiation (`torch.func`).

Slower than the closed form by orders of magnitude and limited to heads whose dense Hessian fits in
memory, but it knows nothing of the head's structure: use it for heads with hidden layers. All it
asks of a head is that parameters and sample determine the output: no active dropout, no batch
normalisation in training mode or without running statistics, nothing else that draws random numbers
or changes buffers.

Indices: e domain, n sample, p parameter of the head, m probe.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, hessian, jvp, vmap
from torch.nn.modules.batchnorm import _BatchNorm

from hessalign._errors import InputError, InputTypeError
from hessalign._shapes import Float
from hessalign.curvature.activations import Activation, Elementwise
from hessalign.curvature.domains import DomainLike, Domains, accumulation_dtype, sample_weights
from hessalign.curvature.inputs import (
    check_counted,
    check_features,
    check_is_tensor,
    check_logits,
    check_targets,
    check_weight,
    read_domains,
    reads_values,
)
from hessalign.curvature.lazy import lazy
from hessalign.curvature.losses import HeadLoss, LossLike, by_share, make_loss

_Risk = Callable[[Tensor], Tensor]


@final
@dataclass(frozen=True, eq=False)
class AutogradHead:
    """Per-domain statistics of an arbitrary head, each computed when first asked for.

    Build it with `autograd_head`. Parameters are in the order of `head.parameters()`, flattened;
    those of a plain `nn.Linear` are in the order of `LinearHead`, each output's weights followed
    by its bias.

    Attributes:
        head: Any module that maps features to logits, sample by sample.
        z: The features, domains contiguous.
        y: The targets, domains contiguous.
        domains: The grouping of the samples.
        loss: The loss of the head.
        theta: The head's parameters as one vector, connected to them for backpropagation.
        weight: What each sample's loss is multiplied by in the mean over its domain; None if by 1.
    """

    head: nn.Module
    z: Float[Tensor, "n d"]
    y: Tensor
    domains: Domains
    loss: HeadLoss
    theta: Float[Tensor, " p"]
    weight: Float[Tensor, "n 1"] | None = None

    @property
    def num_parameters(self) -> int:
        """Parameters of the head."""
        return self.theta.numel()

    def _parameters(self, theta: Tensor) -> dict[str, Tensor]:
        """The inverse of `_flat_parameters`, by name."""
        named = dict(self.head.named_parameters())
        if _is_plain_linear(self.head):
            rows = theta.unflatten(0, (len(named["bias"]), -1))
            return {"weight": rows[:, :-1], "bias": rows[:, -1]}
        parts = theta.split([parameter.numel() for parameter in named.values()])
        return {
            name: part.view_as(parameter)
            for (name, parameter), part in zip(named.items(), parts, strict=True)
        }

    def _risks(self) -> list[_Risk]:
        """The risk of each domain as a function of the parameter vector."""

        def make_risk(z: Tensor, y: Tensor, weight: Tensor | None) -> _Risk:
            def risk(theta: Tensor) -> Tensor:
                logits = functional_call(self.head, self._parameters(theta), (z,))
                values = self.loss.values(logits.reshape(len(z), -1), y)
                return (values if weight is None else weight.squeeze(1) * values).mean()

            return risk

        sizes = self.domains.sizes
        weights = [None] * len(sizes) if self.weight is None else self.weight.split(sizes)
        parts = zip(self.z.split(sizes), self.y.split(sizes), weights, strict=True)
        return [make_risk(*part) for part in parts]

    @lazy
    def logits(self) -> Float[Tensor, "n k"]:
        """What the head makes of each sample, domains contiguous."""
        logits: Tensor = functional_call(self.head, self._parameters(self.theta), (self.z,))
        return logits.reshape(len(self.z), -1).to(accumulation_dtype(self.z.device))

    @lazy
    def error(self) -> Float[Tensor, "n k"]:
        """The first derivative r of each sample's loss in the logits, weighted."""
        error = self.loss.error(self.loss.predict(self.logits), self.logits, self.y)
        return error if self.weight is None else self.weight * error

    def _each_domain(self, statistic: Callable[[_Risk], Tensor]) -> Tensor:
        dtype = accumulation_dtype(self.z.device)
        return torch.stack([statistic(risk) for risk in self._risks()]).to(dtype)

    @lazy
    def risk(self) -> Float[Tensor, " e"]:
        """Mean loss of each domain (eq. 1)."""
        return self._each_domain(lambda risk: risk(self.theta))

    @lazy
    def gradient(self) -> Float[Tensor, "e p"]:
        """Gradient of each domain's risk in the head's parameters."""
        return self._each_domain(lambda risk: grad(risk)(self.theta))

    @lazy
    def gradient_variance(self) -> Float[Tensor, "e p"]:
        """Variance over a domain of single samples' gradients, as `LinearHead` has it."""

        def loss(theta: Tensor, z: Tensor, y: Tensor) -> Tensor:
            logits = functional_call(self.head, self._parameters(theta), (z.unsqueeze(0),))
            return self.loss.values(logits.reshape(1, -1), y.unsqueeze(0)).squeeze(0)

        slopes = vmap(grad(loss), in_dims=(None, 0, 0))(self.theta, self.z, self.y)
        slopes = slopes.to(accumulation_dtype(self.z.device))
        if self.weight is not None:
            squares = self.weight * by_share(slopes.square(), self.loss.share(self.y))
            return self.domains.weights.averaging @ squares - self.gradient.square()
        parts = slopes.split(self.domains.sizes)
        return torch.stack([part.var(0, correction=0) for part in parts])

    @lazy
    def hessian(self) -> Float[Tensor, "e p p"]:
        """Dense Hessian of each domain's risk."""
        return self._each_domain(lambda risk: hessian(risk)(self.theta))

    @lazy
    def diagonal(self) -> Float[Tensor, "e p"]:
        """Diagonal of the dense Hessian."""
        return self.hessian.diagonal(dim1=1, dim2=2)

    def hvp(self, vectors: Float[Tensor, "*m e_or_1 p"]) -> Float[Tensor, "*m e p"]:
        """The products of `LinearHead.hvp`, by forward-over-reverse differentiation."""
        several = vectors.reshape(-1, *vectors.shape[-2:])
        several = several.expand(-1, len(self.domains), -1).to(self.theta.dtype)
        products = []
        for index, risk in enumerate(self._risks()):
            slope = grad(risk)

            def along(v: Tensor, slope: Callable[[Tensor], Tensor] = slope) -> Tensor:
                tangent: Tensor = jvp(slope, (self.theta,), (v,))[1]
                return tangent

            products.append(vmap(along)(several[:, index]))
        stacked = torch.stack(products, dim=1).to(accumulation_dtype(self.z.device))
        return stacked.view(*vectors.shape[:-2], len(self.domains), -1)

    def probed_diagonal(self, signs: Float[Tensor, "m e_or_1 p"]) -> Float[Tensor, "e p"]:
        """Sum over probes of r ∘ (H_e r) for each domain, as `LinearHead` has it."""
        return (signs * self.hvp(signs)).sum(0)

    @lazy
    def hgp(self) -> Float[Tensor, "e p"]:
        """Hessian-gradient product H_e g_e (eq. 18)."""
        return self.hvp(self.gradient)


def _is_plain_linear(head: nn.Module) -> bool:
    """A linear layer with a bias whose parameters are its own, not those of a parametrisation."""
    names = [name for name, _ in head.named_parameters()]
    return isinstance(head, nn.Linear) and names == ["weight", "bias"]


def _flat_parameters(head: nn.Module) -> Float[Tensor, " p"]:
    parameters = list(head.parameters())
    if _is_plain_linear(head):
        weight, bias = parameters
        return torch.cat([weight, bias.unsqueeze(1)], dim=1).flatten()
    return torch.cat([parameter.flatten() for parameter in parameters])


def _check_samples_apart(head: nn.Module) -> None:
    """Refuse a head whose batch normalisation has only the batch to take its statistics from."""
    for name, module in head.named_modules():
        if isinstance(module, _BatchNorm) and module.running_mean is None:
            raise InputError(
                f"Expected a head that treats each sample on its own, got {type(module).__name__} "
                f"without running statistics{f' as {name!r}' if name else ''}, which mixes the "
                "samples of a batch. Make it with track_running_stats=True, or leave it out of the "
                "head."
            )


def _traceless_logits(head: nn.Module, z: Float[Tensor, "n d"]) -> Tensor:
    """What a head makes of some features, refusing one that random numbers or buffers change."""
    buffers = {name: buffer.clone() for name, buffer in head.named_buffers()}
    with torch.no_grad(), torch.random.fork_rng([z.device] if z.is_cuda else []):
        before = _random_state(z.device)
        try:
            logits: Tensor = functional_call(head, buffers, (z,))
        except RuntimeError as error:
            raise InputError(
                f"Expected a head for features of shape {list(z.shape)} and {z.dtype}, got "
                f"{type(head).__name__}, which says: {error}"
            ) from error
        random = not torch.equal(before, _random_state(z.device))
    changed = [name for name, old in head.named_buffers() if not torch.equal(old, buffers[name])]
    if random or changed:
        does = "draws random numbers" if random else f"changes its buffer {changed[0]!r}"
        raise InputError(
            f"Expected a deterministic head, got {type(head).__name__}, whose forward pass {does}. "
            "Use head.eval(), or leave dropout and batch normalisation out of the head."
        )
    return logits


def _random_state(device: torch.device) -> Tensor:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def autograd_head(
    head: nn.Module,
    z: Float[Tensor, "n d"],
    y: Tensor,
    domain: DomainLike,
    *,
    loss: LossLike = "cross_entropy",
    activation: str | Elementwise | Activation = "identity",
    weight: Float[Tensor, " n"] | None = None,
    checks: bool | None = None,
) -> AutogradHead:
    """Statistics of any head module.

    Args:
        head: Maps features `[n, d]` to logits, each sample on its own and always in the same way:
            with dropout, batch normalisation or a spectral norm in it, call `head.eval()` first.
        z: Features that enter the head.
        y: Targets.
        domain: The domain of each sample, any integers; or what `domain_layout` takes or gives.
        loss: "cross_entropy", "binary", "squared", "multilabel", a loss object or a function; see
            `hessalign.curvature.make_loss`.
        activation: The activation of a head with squared error.
        weight: What each sample counts in the mean of its domain.
        checks: Whether to look at values, which waits for the device; None for the CPU alone.

    Returns:
        The statistics, lazily computed.

    Raises:
        InputTypeError: If the head is no module.
        InputError: If the head has no parameters, mixes the samples of a batch, or its forward
            pass draws random numbers or changes its buffers; if a domain has no weight; or in a
            graph.

    Example:
        >>> mlp = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
        >>> z, y = torch.randn(6, 3), torch.tensor([0, 1, 0, 1, 0, 1])
        >>> statistics = autograd_head(mlp, z, y, torch.tensor([0, 0, 0, 1, 1, 1]))
        >>> statistics.hessian.shape
        torch.Size([2, 26, 26])
    """
    if not isinstance(head, nn.Module):
        raise InputTypeError(f"Expected head as a torch.nn.Module, got {type(head).__name__}.")
    if torch.compiler.is_compiling():
        raise InputError(
            "Expected a linear head in a graph, got head=, whose statistics are made by automatic "
            "differentiation. Compile the network and leave the penalty outside."
        )
    head_loss = make_loss(loss, activation)
    values = reads_values(z, checks)
    check_features(z, values=values)
    domains = read_domains(domain, z)
    if next(head.parameters(), None) is None:
        raise InputError(f"Expected a head with parameters, got {type(head).__name__} with none.")
    _check_samples_apart(head)
    logits = check_logits(_traceless_logits(head, z), len(z), values=values)
    check_is_tensor(y)
    check_targets(y, logits, head_loss, values=values)
    check_weight(weight, len(z), values=values)
    targets = domains.arrange(y)
    weight = None if weight is None else domains.arrange(weight)
    counted = sample_weights(weight, head_loss.share(targets), domains)
    check_counted(counted, values=values)
    theta = _flat_parameters(head)
    return AutogradHead(head, domains.arrange(z), targets, domains, head_loss, theta, counted)
