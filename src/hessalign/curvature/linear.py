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
from typing import final

import torch
from torch import Tensor
from torch.nn import functional

from hessalign._errors import InputError, InputTypeError
from hessalign._shapes import Float
from hessalign.curvature.activations import Activation, Elementwise
from hessalign.curvature.domains import (
    PAIR_ELEMENTS,
    DomainLike,
    Domains,
    accumulation_dtype,
    sample_weights,
)
from hessalign.curvature.factors import Features, LogitCurvature, ScaledCurvature
from hessalign.curvature.fused import is_traced
from hessalign.curvature.inputs import (
    check_counted,
    check_features,
    check_logits,
    check_targets,
    check_weight,
    read_domains,
    reads_values,
)
from hessalign.curvature.lazy import lazy
from hessalign.curvature.losses import HeadLoss, LossLike, by_share, make_loss
from hessalign.curvature.products import (
    chunk_rows,
    domain_products,
    mean_outer,
    mean_products,
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
        given: The logits, as they were given.
        y: The targets; None where only curvature is asked for.
        domains: The grouping of the samples.
        loss: The loss of the head.
        bias: Whether the head has a bias.
        weight: What each sample's loss is multiplied by in the mean over its domain; None if by 1.
    """

    features: Features
    given: Float[Tensor, "n k"]
    y: Tensor | None
    domains: Domains
    loss: HeadLoss
    bias: bool
    weight: Float[Tensor, "n 1"] | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """Outputs k, and parameters of each: d weights and the bias."""
        return self.given.shape[1], self.features.z.shape[1] + self.bias

    @property
    def num_parameters(self) -> int:
        """Parameters of the head, p = k·d̃."""
        outputs, width = self.shape
        return outputs * width

    @lazy
    def logits(self) -> Float[Tensor, "n k"]:
        """The logits in the accumulation precision."""
        return self.given.to(accumulation_dtype(self.given.device))

    @lazy
    def prediction(self) -> Float[Tensor, "n k"]:
        """What the loss makes of the logits: probabilities, or activations."""
        return self.loss.predict(self.logits)

    @lazy
    def curvature(self) -> LogitCurvature:
        """The second derivative S of each sample's loss in the logits, weighted."""
        curvature = self.loss.curvature(self.prediction, self.logits, self.y)
        return curvature if self.weight is None else ScaledCurvature(curvature, self.weight)

    @lazy
    def counts(self) -> Float[Tensor, "n 1"]:
        """The weight of each sample in the mean of its domain, 1 on average."""
        share = None if self.y is None else self.loss.share(self.y)
        weight = torch.ones_like(self.logits[:, :1]) if self.weight is None else self.weight
        return weight if share is None else weight * share.to(weight.dtype).unsqueeze(1)

    def _targets(self) -> Tensor:
        if self.y is None:
            raise InputError("Expected targets y: risk and gradient depend on them.")
        return self.y

    @lazy
    def losses(self) -> Float[Tensor, " n"]:
        """The weighted loss of each sample, domains contiguous."""
        values = self.loss.values(self.logits, self._targets())
        return values if self.weight is None else self.weight.squeeze(1) * values

    @lazy
    def error(self) -> Float[Tensor, "n k"]:
        """The first derivative r of each sample's loss in the logits, weighted."""
        error = self.loss.error(self.prediction, self.logits, self._targets())
        return error if self.weight is None else self.weight * error

    @lazy
    def risk(self) -> Float[Tensor, " e"]:
        r"""Mean loss of each domain (eq. 1)."""
        if is_traced():
            return self.domains.weights.averaging @ self.losses
        return torch.stack([part.mean() for part in self.losses.split(self.domains.sizes)])

    def _mean(self, left: Float[Tensor, "n k"], *, squared: bool = False) -> Float[Tensor, "e p"]:
        """Mean of left ⊗ z̃ or left ⊗ z̃², flattened to parameters."""
        z, domains = self.features.z, self.domains
        return mean_outer(left, z, domains, bias=self.bias, squared=squared).flatten(1)

    @lazy
    def gradient(self) -> Float[Tensor, "e p"]:
        """Gradient of each domain's risk, g_e = mean r ⊗ z̃ (eq. 12, 13)."""
        return self._mean(self.error)

    @lazy
    def gradient_variance(self) -> Float[Tensor, "e p"]:
        """Variance over a domain of single samples' gradients, mean r² ⊗ z̃² − g_e².

        The gradient of a sample that counts more or less than 1 is that of its loss without its
        weight and the class weight of its label, which are its weight in the variance.
        """
        squares = self.error.square()
        if self.weight is not None:
            error = self.loss.error(self.prediction, self.logits, self._targets())
            squares = self.weight * by_share(error.square(), self.loss.share(self._targets()))
        return self._mean(squares, squared=True) - self.gradient.square()

    @lazy
    def diagonal(self) -> Float[Tensor, "e p"]:
        """Hessian diagonal, D_e = mean diag(S) ⊗ z̃² (eq. 16 at p=u, q=v)."""
        return self._mean(self.curvature.diagonal(), squared=True)

    @lazy
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
        z, domains = self.features.z, self.domains
        rows = self.curvature.matrix().flatten(1)
        moments = mean_second_moments(rows, z, domains)
        if self.bias:
            border = mean_outer(rows, z, domains, bias=True).unsqueeze(3)
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
        several = vectors.reshape(-1, *vectors.shape[-2:]).expand(-1, len(self.domains), -1)
        if len(several) == 1:
            bent = self.curvature.apply(self._logits(several[0]), slice(None))
            return self._mean(bent).view(*vectors.shape[:-2], len(self.domains), -1)
        several, sizes = several.to(self.features.z.dtype), self.domains.sizes
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
        if is_traced():
            return self._plainly_probed(signs)
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

    def _plainly_probed(self, signs: Float[Tensor, "m e_or_1 p"]) -> Float[Tensor, "e p"]:
        """The same domain by domain, in operations that do not depend on its size."""
        z = self.features.z.to(self.logits.dtype)
        z = functional.pad(z, (0, 1), value=1.0) if self.bias else z
        probes = signs.to(z.dtype).expand(-1, len(self.domains), -1)
        sums = []
        for index in range(len(self.domains)):
            matrices = probes[:, index].unflatten(1, self.shape)
            bent = self.curvature.apply(torch.einsum("nd,mkd->nmk", z, matrices), slice(None))
            share = self.domains.weights.averaging[index]
            products = torch.einsum("nmk,nd->mkd", bent * share.view(-1, 1, 1), z)
            sums.append((matrices * products).sum(0).flatten())
        return torch.stack(sums)

    @property
    def gradient_logits(self) -> Float[Tensor, "n k"]:
        """What a head with its domain's gradient as parameters makes of each sample, G_e z̃."""
        return self._through_gradients[0]

    @property
    def gradient_features(self) -> Features:
        """The features for what is made of `gradient_logits`; see `mean_products`."""
        return self._through_gradients[1]

    @lazy
    def _through_gradients(self) -> tuple[Float[Tensor, "n k"], Features]:
        """Where features are many and samples few, without forming gradients: by Gram matrices."""
        samples = len(self.features.z)
        if torch.compiler.is_compiling():  # a choice that serves batches of all sizes
            few = samples**2 <= PAIR_ELEMENTS
        else:
            known = self.features.known(bias=self.bias) is not None
            few = known or samples <= 2 * self.shape[0]
        if not few:
            logits, z = mean_products(self.error, self.features.z, self.domains, bias=self.bias)
            return logits, Features(z)
        products = self.features.inner(slice(None), bias=self.bias)
        return (self.domains.weights.within * products) @ self.error, self.features

    def _logits(self, vectors: Float[Tensor, "e p"]) -> Float[Tensor, "n k"]:
        """Logits of a head whose parameters are one vector per domain."""
        matrices = vectors.reshape(-1, *self.shape).to(self.logits.dtype)
        width = self.features.z.shape[1]
        logits = domain_products(self.features.z, matrices[..., :width], self.domains)
        if not self.bias:
            return logits
        return logits + self.domains.weights.membership.to(logits.dtype) @ matrices[..., -1]

    @lazy
    def hgp(self) -> Float[Tensor, "e p"]:
        r"""Hessian-gradient product $H_e g_e$ (eq. 18)."""
        return self.hvp(self.gradient)

    def domain(self, index: int) -> LinearHead:
        """The same head seen from one domain alone, given its position in `domains.ids`."""
        sizes = self.domains.sizes
        start = sum(sizes[:index])
        rows = slice(start, start + sizes[index])
        domains = Domains(self.domains.ids[index : index + 1], (sizes[index],), None)
        y = None if self.y is None else self.y[rows]
        weight = None if self.weight is None else self.weight[rows].squeeze(1)
        z, logits = self.features.z[rows], self.logits[rows]
        return arranged_head(z, logits, y, domains, self.loss, bias=self.bias, weight=weight)


def arranged_head(
    z: Float[Tensor, "n d"],
    logits: Float[Tensor, "n k"],
    y: Tensor | None,
    domains: Domains,
    loss: HeadLoss,
    *,
    bias: bool = True,
    weight: Float[Tensor, " n"] | None = None,
) -> LinearHead:
    """Statistics of a head from inputs that are known to be sound, with domains contiguous."""
    features = z if z.dtype == torch.float64 else z.float()
    counted = sample_weights(weight, None if y is None else loss.share(y), domains)
    return LinearHead(Features(features), logits, y, domains, loss, bias, counted)


def linear_head(
    z: Float[Tensor, "n d"],
    logits: Tensor,
    y: Tensor | None,
    domain: DomainLike,
    *,
    loss: LossLike = "cross_entropy",
    activation: str | Elementwise | Activation = "identity",
    bias: bool = True,
    weight: Float[Tensor, " n"] | None = None,
    checks: bool | None = None,
) -> LinearHead:
    """Closed-form statistics of the head that produced these logits from these features.

    Args:
        z: Features that enter the head.
        logits: What the head made of them, `[n, classes]`, or `[n]` for a single output.
        y: Targets; None where only curvature is wanted.
        domain: The domain of each sample, any integers; or what `domain_layout` takes or gives.
        loss: "cross_entropy", "binary", "squared", "multilabel", a loss object or a function; see
            `hessalign.curvature.make_loss`.
        activation: The activation of a head with squared error.
        bias: Whether the head has a bias.
        weight: What each sample counts in the mean of its domain.
        checks: Whether to look at values, which waits for the device; None for the CPU alone.

    Returns:
        The statistics, lazily computed. What does not suit raises an InputError, a domain in which
        no sample counts too.

    Raises:
        InputTypeError: If `bias` is neither True nor False.

    Example:
        >>> z = torch.tensor([[1.0], [3.0]])
        >>> head = linear_head(z, torch.zeros(2), torch.tensor([1, 1]), torch.tensor([0, 1]),
        ...                    loss="binary")
        >>> head.gradient
        tensor([[-0.5000, -0.5000],
                [-1.5000, -0.5000]], dtype=torch.float64)
    """
    if not isinstance(bias, bool):
        raise InputTypeError(f"Expected bias as True or False, got {bias!r}.")
    head_loss = make_loss(loss, activation)
    values = reads_values(z, checks)
    check_features(z, values=values)
    logits = check_logits(logits, len(z), values=values)
    domains = read_domains(domain, z)
    check_targets(y, logits, head_loss, values=values)
    check_weight(weight, len(z), values=values)
    arrange = domains.arrange
    targets = None if y is None else arrange(y)
    weight = None if weight is None else arrange(weight)
    head = arranged_head(
        arrange(z), arrange(logits), targets, domains, head_loss, bias=bias, weight=weight
    )
    check_counted(head.weight, values=values)
    if y is None:
        _ = head.curvature  # some losses refuse to have one without targets
    return head
