r"""Closed-form derivatives of the loss of a linear head, per domain.

With augmented features z̃ = [z, 1], error r and curvature S of the loss in the logits:

- gradient   g_e = mean r ⊗ z̃                  (eq. 12, 13)
- Hessian    H_e = mean S ⊗ z̃ z̃ᵀ               (eq. 14, 15, 16)
- diagonal   D_e = mean diag(S) ⊗ z̃²           (eq. 16 at p=u, q=v)
- product    H_e v = mean (S V z̃) ⊗ z̃          (V is v as a k×d̃ matrix; eq. 18 at v = g_e)

All are float64 whatever the inputs, because they exist to be subtracted from one another, and all
are differentiable in features and logits by ordinary backpropagation.

Indices: e domain, n sample, k output of the head, d feature, p = (k, d) parameter, m probe. The
parameters of output k are its weights followed by its bias.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import final

import torch
from torch import Tensor

from hessalign._errors import InputError
from hessalign._shapes import Float, Int
from hessalign.curvature.activations import Activation, Elementwise
from hessalign.curvature.domains import Domains, make_domains
from hessalign.curvature.factors import Features, LogitCurvature
from hessalign.curvature.inputs import check_domain, check_features, check_logits, check_targets
from hessalign.curvature.losses import HeadLoss, make_loss
from hessalign.curvature.products import (
    accumulation_dtype,
    chunk_rows,
    domain_products,
    mean_outer,
    mean_second_moments,
)

MOST_BYTES = 4 << 30
"""What takes more is not formed."""

_PARAMETERS_PER_PROBE = 3
"""With fewer parameters than this times the probes, forming the Hessian is cheaper than probing."""

_MANY_SAMPLES_PER_PROBE = 8
"""From here on it is cheaper to form the products H r than to average over probes per sample."""


@final
@dataclass(frozen=True, eq=False)
class LinearHead:
    """Per-domain statistics of a linear head, each computed when first asked for.

    Build it with `linear_head`, which checks and arranges its inputs.

    Attributes:
        features: The features, domains contiguous.
        logits: The logits in the accumulation precision.
        prediction: What the loss makes of them: probabilities, or activations.
        y: The targets; None where only curvature is asked for.
        domains: The grouping of the samples.
        loss: The loss of the head.
        bias: Whether the head has a bias.
        curvature: The second derivative S of each sample's loss in the logits.
    """

    features: Features
    logits: Float[Tensor, "n k"]
    prediction: Float[Tensor, "n k"]
    y: Tensor | None
    domains: Domains
    loss: HeadLoss
    bias: bool
    curvature: LogitCurvature

    @property
    def shape(self) -> tuple[int, int]:
        """Outputs k, and parameters of each: d weights and the bias."""
        return self.logits.shape[1], self.features.z.shape[1] + self.bias

    @property
    def num_parameters(self) -> int:
        """Parameters of the head, p = k·d̃."""
        outputs, width = self.shape
        return outputs * width

    def _targets(self) -> Tensor:
        if self.y is None:
            raise InputError("Expected targets y: risk and gradient depend on them.")
        return self.y

    @cached_property
    def losses(self) -> Float[Tensor, " n"]:
        """The loss of each sample, domains contiguous."""
        return self.loss.values(self.logits, self._targets())

    @cached_property
    def error(self) -> Float[Tensor, "n k"]:
        """The first derivative r of each sample's loss in the logits."""
        return self.loss.error(self.prediction, self.logits, self._targets())

    @cached_property
    def risk(self) -> Float[Tensor, " e"]:
        r"""Mean loss of each domain (eq. 1)."""
        return torch.stack([part.mean() for part in self.losses.split(self.domains.sizes)])

    def _mean(self, left: Float[Tensor, "n k"], *, squared: bool = False) -> Float[Tensor, "e p"]:
        """Mean of left ⊗ z̃ or left ⊗ z̃², flattened to parameters."""
        z, sizes = self.features.z, self.domains.sizes
        return mean_outer(left, z, sizes, bias=self.bias, squared=squared).flatten(1)

    @cached_property
    def gradient(self) -> Float[Tensor, "e p"]:
        """Gradient of each domain's risk, g_e = mean r ⊗ z̃ (eq. 12, 13)."""
        return self._mean(self.error)

    @cached_property
    def gradient_variance(self) -> Float[Tensor, "e p"]:
        """Variance over a domain of single samples' gradients, mean r² ⊗ z̃² − g_e²."""
        return self._mean(self.error.square(), squared=True) - self.gradient.square()

    @cached_property
    def diagonal(self) -> Float[Tensor, "e p"]:
        """Hessian diagonal, D_e = mean diag(S) ⊗ z̃² (eq. 16 at p=u, q=v)."""
        return self._mean(self.curvature.diagonal(), squared=True)

    @cached_property
    def hessian(self) -> Float[Tensor, "e p p"]:
        r"""Dense Hessian, $H_e = \text{mean}\, S \otimes \tilde z \tilde z^\top$ (eq. 14 to 16).

        It has (k·d̃)² entries per domain. Distances between Hessians do not need it: see
        `hessalign.alignment`.

        Raises:
            InputError: If it would take gigabytes.
        """
        outputs, width = self.shape
        size = 8 * len(self.domains) * self.num_parameters**2
        if size > MOST_BYTES:
            raise InputError(
                f"Expected dense Hessians of at most {MOST_BYTES >> 30} GiB, but those of "
                f"{len(self.domains)} domains and {self.num_parameters:,} parameters take "
                f"{size / 2**30:.0f} GiB. Use hvp for products with them, or hessian_distance and "
                "HessianAlignment, which do not form them."
            )
        z, sizes = self.features.z, self.domains.sizes
        rows = self.curvature.matrix().flatten(1)
        moments = mean_second_moments(rows, z, sizes)
        if self.bias:
            border = mean_outer(rows, z, sizes, bias=True).unsqueeze(3)
            moments = torch.cat([moments, border[:, :, :-1]], dim=3)
            moments = torch.cat([moments, border.mT], dim=2)
        blocks: Tensor = moments.unflatten(1, (outputs, outputs))
        return blocks.transpose(2, 3).reshape(-1, outputs * width, outputs * width)

    def hvp(self, vectors: Float[Tensor, "*m e_or_1 p"]) -> Float[Tensor, "*m e p"]:
        r"""Hessian-vector products, $H_e v = \text{mean}\,(S V \tilde z) \otimes \tilde z$.

        Args:
            vectors: One vector for each domain, or one for all (length 1 on the domain axis);
                further axes in front run over several vectors.

        Returns:
            The product of each domain's Hessian with its vectors.

        Example:
            >>> z, logits = torch.eye(2), torch.zeros(2, 2)
            >>> head = linear_head(z, logits, None, torch.tensor([0, 0]), bias=False)
            >>> v = torch.tensor([[1.0, 2.0, 3.0, 4.0]], dtype=torch.float64)
            >>> torch.allclose(head.hvp(v), (head.hessian @ v.unsqueeze(2)).squeeze(2))
            True
        """
        sizes = self.domains.sizes
        several = vectors.reshape(-1, *vectors.shape[-2:]).expand(-1, len(sizes), -1)
        if len(several) == 1:
            bent = self.curvature.apply(self._logits(several[0]), slice(None))
            product = self._mean(bent)
            return product.view(*vectors.shape[:-2], len(sizes), -1)
        several = several.to(self.features.z.dtype)
        products, start = [], 0
        for index, z in enumerate(self.features.z.split(sizes)):
            matrices = several[:, index].unflatten(1, self.shape)
            products.append(self._domain_hvp(z, matrices, start) / sizes[index])
            start += sizes[index]
        return torch.stack(products, dim=1).view(*vectors.shape[:-2], len(sizes), -1)

    def _domain_hvp(
        self, z: Float[Tensor, "n d"], matrices: Float[Tensor, "m k d_bias"], start: int
    ) -> Float[Tensor, "m p"]:
        """Sum over one domain of (S V z̃) ⊗ z̃, in chunks of samples."""
        probes, outputs, _ = matrices.shape
        weights = matrices[..., : z.shape[1]].flatten(0, 1)
        dtype = accumulation_dtype(z.device)
        feature_part = z.new_zeros((probes * outputs, z.shape[1]), dtype=dtype)
        bias_part = z.new_zeros((probes * outputs, 1), dtype=dtype)
        for chunk in z.split(chunk_rows(max(probes * outputs, z.shape[1]))):
            directions = (chunk @ weights.T).unflatten(1, (probes, outputs))
            if self.bias:
                directions = directions + matrices[..., -1]
            samples = slice(start, start + len(chunk))
            bent = self.curvature.apply(directions, samples).flatten(1)
            feature_part = feature_part + (bent.T @ chunk).to(dtype)
            if self.bias:
                bias_part = bias_part + bent.sum(0).to(dtype).unsqueeze(1)
            start += len(chunk)
        parts = [feature_part, bias_part] if self.bias else [feature_part]
        return torch.cat(parts, dim=1).view(probes, -1)

    def probed_diagonal(self, signs: Float[Tensor, "m e_or_1 p"]) -> Float[Tensor, "e p"]:
        r"""Sum over probes of r ∘ (H_e r), the estimate of eq. 19 times the number of probes.

        Args:
            signs: Probes r for each domain, or the same for all (length 1 on the domain axis).

        Returns:
            One sum per domain.
        """
        sizes = self.domains.sizes
        if self.num_parameters <= min(_PARAMETERS_PER_PROBE * len(signs), sum(sizes)):
            each = signs.to(self.hessian.dtype).expand(-1, len(sizes), -1)
            return (each * torch.einsum("epq,meq->mep", self.hessian, each)).sum(0)
        if max(sizes) > _MANY_SAMPLES_PER_PROBE * len(signs):
            return (signs * self.hvp(signs)).sum(0)
        # Contract over the probes before the samples, so that the products H r, one for each
        # probe, are never held.
        probes = signs.expand(-1, len(sizes), -1).to(self.features.z.dtype)
        dtype = accumulation_dtype(probes.device)
        sums, start = [], 0
        for index, z in enumerate(self.features.z.split(sizes)):
            if self.bias:
                z = torch.cat([z, torch.ones_like(z[:, :1])], dim=1)
            matrices = probes[:, index].unflatten(1, self.shape)
            directions = (z @ matrices.flatten(0, 1).T).unflatten(1, matrices.shape[:2])
            bent = self.curvature.apply(directions, slice(start, start + len(z)))
            classes = chunk_rows(z.numel(), at_least=1)
            pulled = [
                (torch.bmm(b, r) * z).sum(1)
                for b, r in zip(
                    bent.permute(2, 0, 1).split(classes),
                    matrices.transpose(0, 1).split(classes),
                    strict=True,
                )
            ]
            sums.append(torch.cat(pulled).to(dtype).flatten() / len(z))
            start += len(z)
        return torch.stack(sums)

    @cached_property
    def gradient_logits(self) -> Float[Tensor, "n k"]:
        """What a head with its domain's gradient as parameters makes of each sample, G_e z̃.

        The gradient is itself a mean over samples, so where features are many and samples few the
        Gram matrix of the features gives it without forming the gradient.
        """
        if self.features.z.shape[1] <= max(self.domains.sizes):
            return self._logits(self.gradient)
        averaging = self.domains.averaging
        same_domain = (averaging > 0).to(averaging.dtype).T @ averaging
        return (same_domain * self.features.inner(slice(None), bias=self.bias)) @ self.error

    def _logits(self, vectors: Float[Tensor, "e p"]) -> Float[Tensor, "n k"]:
        """Logits of a head whose parameters are one vector per domain."""
        matrices = vectors.reshape(-1, *self.shape).to(self.logits.dtype)
        width = self.features.z.shape[1]
        logits = domain_products(self.features.z, matrices[..., :width], self.domains.sizes)
        if not self.bias:
            return logits
        sizes = torch.tensor(self.domains.sizes, device=logits.device)
        return logits + matrices[..., -1].repeat_interleave(sizes, dim=0)

    @cached_property
    def hgp(self) -> Float[Tensor, "e p"]:
        r"""Hessian-gradient product $H_e g_e$ (eq. 18)."""
        return self.hvp(self.gradient)

    def domain(self, index: int) -> LinearHead:
        """The same head seen from one domain alone.

        Args:
            index: Position of the domain in `domains.ids`.

        Returns:
            Statistics with a single domain.
        """
        sizes = self.domains.sizes
        start = sum(sizes[:index])
        rows = slice(start, start + sizes[index])
        domains = Domains(self.domains.ids[index : index + 1], (sizes[index],), None)
        y = None if self.y is None else self.y[rows]
        return arranged_head(
            self.features.z[rows], self.logits[rows], y, domains, self.loss, bias=self.bias
        )


def arranged_head(
    z: Float[Tensor, "n d"],
    logits: Float[Tensor, "n k"],
    y: Tensor | None,
    domains: Domains,
    loss: HeadLoss,
    *,
    bias: bool = True,
) -> LinearHead:
    """Statistics of a head from inputs that are known to be sound, with domains contiguous.

    `linear_head` checks and arranges what it is given; a training loop that made the batch itself
    can do without.

    Args:
        z: Features that enter the head, finite.
        logits: What the head made of them, finite.
        y: Targets; None where only curvature is wanted.
        domains: The grouping of the samples.
        loss: The loss of the head.
        bias: Whether the head has a bias.

    Returns:
        The statistics, lazily computed.
    """
    features = z if z.dtype == torch.float64 else z.float()
    logits = logits.to(accumulation_dtype(z.device))
    prediction = loss.predict(logits)
    curvature = loss.curvature(prediction, logits, y)
    return LinearHead(Features(features), logits, prediction, y, domains, loss, bias, curvature)


def linear_head(
    z: Float[Tensor, "n d"],
    logits: Tensor,
    y: Tensor | None,
    domain: Int[Tensor, " n"],
    *,
    loss: str | HeadLoss = "cross_entropy",
    activation: str | Elementwise | Activation = "identity",
    bias: bool = True,
) -> LinearHead:
    """Closed-form statistics of the head that produced these logits from these features.

    Args:
        z: Features that enter the head.
        logits: What the head made of them, `[n, classes]`, or `[n]` for a single output.
        y: Targets; None where only curvature is wanted.
        domain: The domain of each sample, any integers.
        loss: "cross_entropy", "binary" or "squared".
        activation: The activation of a head with squared error.
        bias: Whether the head has a bias.

    Returns:
        The statistics, lazily computed.

    Example:
        >>> z = torch.tensor([[1.0], [3.0]])
        >>> head = linear_head(z, torch.zeros(2), torch.tensor([1, 1]), torch.tensor([0, 1]),
        ...                    loss="binary")
        >>> head.gradient
        tensor([[-0.5000, -0.5000],
                [-1.5000, -0.5000]], dtype=torch.float64)
    """
    head_loss = make_loss(loss, activation)
    check_features(z)
    logits = check_logits(logits, len(z))
    check_domain(domain, len(z))
    check_targets(y, logits, head_loss)
    domains = make_domains(domain)
    targets = None if y is None else domains.arrange(y)
    arrange = domains.arrange
    return arranged_head(arrange(z), arrange(logits), targets, domains, head_loss, bias=bias)
