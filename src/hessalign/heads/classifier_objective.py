r"""What an aligned classifier minimises, with all slopes in closed form.

The objective of `AlignedObjective` for labels, and for the two penalties whose slopes are short:
gradients $g_e$ and Hessian diagonals $D_e$. With weights ω of samples that add up to 1 in each
domain, error r, curvature S and diagonal c = p(1 − p) of the loss in the logits,

$$g_e = \sum_n \omega_n r_n \otimes \tilde z_n, \quad
D_e = \sum_n \omega_n c_n \otimes \tilde z_n^2,$$

and the slope of the penalties in the logits of sample n of domain e is

$$\omega_n S_n \big( B_e \tilde z_n + (1 - 2 p_n) \circ A_e \tilde z_n^2 \big), \quad
B_e = \tfrac{2\beta}{E} (g_e - \bar g), \; A_e = \tfrac{2\alpha}{E} (D_e - \bar D),$$

since ∂c = (1 − 2p) ∘ S ∂a for softmax as for a single logit. An evaluation reads the features once,
and once more if there are penalties.

Indices: e domain, n sample, k output, d feature (with the constant of the bias).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from hessalign._shapes import Float
from hessalign.heads.aligned_objective import Weights
from hessalign.heads.design import Design, Matrix

_SAMPLE: Final = 4000  # samples of which curvature is modelled, at least; and
_SAMPLES_PER_FEATURE: Final = 16
_BENT: Final = 4  # every so many of them go into the model of the diagonals' slopes
_FEW: Final = 3  # rows up to which products one by one are faster than one of matrices
_WIDEST: Final = 2000  # heads with more features than this go without a model of curvature


class _Pass(NamedTuple):
    """One reading of the features: loss, sums over each domain, and the probabilities."""

    loss: float
    gradients: np.ndarray  # [e k d]
    diagonals: np.ndarray | None  # [e k d]
    p: list[np.ndarray]  # of each domain, [n k]


@final
@dataclass(frozen=True, eq=False)
class ClassifierObjective:
    """The objective for the labels of some samples; one output stands for two classes."""

    design: Design
    labels: tuple[np.ndarray, ...]  # the class of each sample, domain by domain
    shares: tuple[np.ndarray, ...]  # its weight, 1 for all of a domain together
    outputs: int
    l2: float  # weight of the L2 term over all parameters but the biases
    diagonal: bool  # whether Hessian diagonals are aligned, too

    rounding = 1e-14  # the share of the objective by which a step lowers it or not
    quadratic = False
    device = torch.device("cpu")

    @property
    def shape(self) -> tuple[int, int]:
        """Outputs, and parameters of each."""
        return self.outputs, self.design.width

    @property
    def sampling(self) -> float:
        """The part of a slope that chance makes, as a share of single samples' gradient norms."""
        return 1 / math.sqrt(sum(self.design.sizes) * self.shape[1])

    def ridge(self, head: Float[Tensor, "k d"]) -> float:
        """The L2 term."""
        return self.l2 / 2 * float(head[:, :-1].square().sum())

    def value_and_gradient(
        self, head: Float[Tensor, "k d"], weights: Weights
    ) -> tuple[float, Float[Tensor, "k d"]]:
        """The objective with weighted penalties, and its derivative in each parameter."""
        theta = head.numpy()
        alpha = weights.alpha if self.diagonal else 0.0
        read = self._read(theta, diagonal=alpha > 0)
        value, slope = read.loss, read.gradients.mean(0)
        toward, bend = None, None
        if len(self.labels) > 1 and weights.beta > 0:
            deviation = read.gradients - slope
            value += weights.beta * _dispersion(deviation)
            toward = 2 * weights.beta / len(self.labels) * deviation
        if len(self.labels) > 1 and read.diagonals is not None and alpha > 0:
            deviation = read.diagonals - read.diagonals.mean(0)
            value += alpha * _dispersion(deviation)
            bend = 2 * alpha / len(self.labels) * deviation
        if toward is not None or bend is not None:
            slope = slope + self._pull(read.p, toward, bend)
        slope[:, :-1] += self.l2 * theta[:, :-1]
        return value + self.ridge(head), torch.from_numpy(slope)

    def terms(self, head: Float[Tensor, "k d"]) -> tuple[float, float, float]:
        """Mean loss, dispersion of Hessian diagonals, 0 if not asked for, and of gradients."""
        read = self._read(head.numpy(), diagonal=self.diagonal and len(self.labels) > 1)
        gradient = _dispersion(read.gradients - read.gradients.mean(0))
        if read.diagonals is None:
            return read.loss, 0.0, gradient
        return read.loss, _dispersion(read.diagonals - read.diagonals.mean(0)), gradient

    @cached_property
    def _last(self) -> list[tuple[np.ndarray, _Pass]]:
        """The head that was read last, as the only entry."""
        return []

    def _read(self, head: np.ndarray, *, diagonal: bool) -> _Pass:
        """Everything that the logits alone determine."""
        for known, read in self._last:
            if (read.diagonals is not None or not diagonal) and np.array_equal(known, head):
                return read
        self._last[:] = [(head.copy(), self._read_anew(head, diagonal=diagonal))]
        return self._last[0][1]

    def _read_anew(self, head: np.ndarray, *, diagonal: bool) -> _Pass:
        """The same, not remembered."""
        design, (outputs, width) = self.design, self.shape
        weights, constants = design.linear(head)
        rows = 2 * outputs if diagonal else outputs
        count = len(self.labels)
        first, one = np.zeros((count, rows, width - 1)), np.zeros((count, rows))
        square = np.zeros((count, outputs, width - 1))
        p = [np.empty((size, outputs)) for size in design.sizes]
        loss = 0.0
        for e, part, x in design.blocks():
            share = self.shares[e][part]
            own, values, error = losses(x @ weights.T + constants, self.labels[e][part])
            p[e][part] = own
            loss += float(share @ values) / count
            left = error * share[:, None]
            if diagonal:
                curved = share[:, None] * own * (1 - own)
                left = np.concatenate([left, curved], axis=1)
                _add_products(square[e], curved, design.squares(x))
            _add_products(first[e], left, x)
            one[e] += left.sum(0)
        gradients = design.first(first[:, :outputs], one[:, :outputs])
        if not diagonal:
            return _Pass(loss, gradients, None, p)
        diagonals = design.second(square, first[:, outputs:], one[:, outputs:])
        return _Pass(loss, gradients, diagonals, p)

    def _pull(
        self, p: list[np.ndarray], toward: np.ndarray | None, bend: np.ndarray | None
    ) -> np.ndarray:
        """The slope of the penalties, given their slopes in each domain's means."""
        design, outputs = self.design, self.outputs
        heads, constants, squares = [], [], []
        for e in range(len(p)):
            own = [] if toward is None else [design.linear(toward[e])]
            if bend is not None:
                square, *rest = design.quadratic(bend[e])
                squares.append(square.T)
                own.append((rest[0], rest[1]))
            heads.append(np.concatenate([weights for weights, _ in own]).T)
            constants.append(np.concatenate([constant for _, constant in own]))

        def left(e: int, part: slice, x: Matrix) -> np.ndarray:
            own, found = p[e][part], np.asarray(x @ heads[e] + constants[e])
            if bend is not None:
                found[:, -outputs:] += design.squares(x) @ squares[e]
                found[:, -outputs:] *= 1 - 2 * own
            if found.shape[1] > outputs:
                found = found[:, :outputs] + found[:, outputs:]
            return _bent(own, found)

        return np.asarray(self._sums(left).sum(0))

    def _sums(self, left: Callable[[int, slice, Matrix], np.ndarray]) -> np.ndarray:
        """Weighted sums over each domain of a function of its blocks, ⊗ z̃."""
        count, (outputs, width) = len(self.labels), self.shape
        first, one = np.zeros((count, outputs, width - 1)), np.zeros((count, outputs))
        for e, part, x in self.design.blocks():
            own = self.shares[e][part][:, None] * left(e, part, x)
            _add_products(first[e], own, x)
            one[e] += own.sum(0)
        return self.design.first(first, one)

    @cached_property
    def typical_gradient(self) -> float:
        """The mean gradient norm of single samples at a head of zeros, which sets the scale."""
        zero = np.zeros((1, self.shape[0]))
        total = 0.0
        for e, part, x in self.small.design.blocks():
            labels = self.small.labels[e][part]
            error = losses(zero.repeat(len(labels), 0), labels)[2]
            squares, weights, constants = self.design.quadratic(np.ones((1, self.shape[1])))
            norms = self.design.squares(x) @ squares.T + x @ weights.T + constants
            norms = np.sqrt(np.maximum(norms[:, 0], 0)) * np.linalg.norm(error, axis=1)
            total += float(self.small.shares[e][part] @ norms) / len(self.labels)
        return total

    @property
    def small(self) -> ClassifierObjective:
        """The objective of some of the samples, if there are many more than a model needs."""
        return self._drawn or self

    @cached_property
    def _drawn(self) -> ClassifierObjective | None:
        """That of some of the samples; None, for an object that holds itself is freed late."""
        wanted = max(_SAMPLE, _SAMPLES_PER_FEATURE * self.shape[1])
        sizes = self.design.sizes
        if sum(sizes) <= 2 * wanted:
            return None
        each = -(-wanted // len(sizes))
        rng = np.random.default_rng(0)
        chosen = [np.sort(rng.permutation(size)[:each]) for size in sizes]
        shares = [own[rows] for own, rows in zip(self.shares, chosen, strict=True)]
        if not all(own.sum() > 0 for own in shares):
            return None
        return replace(
            self,
            design=self.design.only(chosen),
            labels=tuple(own[rows] for own, rows in zip(self.labels, chosen, strict=True)),
            shares=tuple(own / own.sum() for own in shares),
        )

    def metric(self, head: Float[Tensor, "k d"], weights: Weights) -> Float[Tensor, "d d"] | None:
        """A model of the curvature that all outputs share, as its Cholesky factor; None if none."""
        # It is of some of the samples; with too many features it does not pay, and too large
        # ones leave float32.
        # Ā + λ I + 2β/E Σ (A_e − Ā)² with the mean over outputs A_e of the blocks of H_e, and
        # likewise the Gauss-Newton part of the diagonals' penalty.
        if self.shape[1] > _WIDEST:
            return None
        with np.errstate(over="ignore", invalid="ignore"):
            model = self._model(head.numpy(), weights)
        if not np.isfinite(model).all():
            return None
        model[np.diag_indices(len(model))] += self.l2 + 1e-5 * np.trace(model) / len(model)
        return torch.from_numpy(np.linalg.cholesky(model.astype(np.float64)))

    def _model(self, head: np.ndarray, weights: Weights) -> np.ndarray:
        """The curvature of the objective, without that of the L2 term."""
        blocks, bends = self._models(head)
        model = blocks.mean + 0.0
        if weights.beta > 0:
            model += 2 * weights.beta * blocks.dispersion
        if weights.alpha > 0 and bends is not None:
            model += 2 * weights.alpha * bends.dispersion
            if self.small is not self:
                model += 2 * weights.alpha * self._common(head)
        return model

    @cached_property
    def _known(self) -> list[tuple[_Spread, _Spread | None]]:
        """What `_models` found at the first head it was asked for, as the only entry."""
        return []

    def _models(self, head: np.ndarray) -> tuple[_Spread, _Spread | None]:
        """A_e of some samples at a head, and the slopes of their diagonals in it; at the first."""
        if not self._known:
            small = self.small
            weights, constants = small.design.linear(head)
            blocks, bends = [], []
            for e, share in enumerate(small.shares):
                p = losses(small.design.part(e) @ weights.T + constants, small.labels[e])[0]
                z, curved = small.design.dense(e), self._whole * p * (1 - p)
                blocks.append(_moment(z, share, curved.mean(1), self.shares[e]))
                if self.diagonal and len(small.shares) > 1:
                    # What `_common` leaves is small: a part of the samples shows whether it is.
                    some = slice(None, None, 1 if small is self else _BENT)
                    z, own = z[some], share[some] / share[some].sum()
                    third = (curved * (1 - 2 * p)).mean(1)[some]
                    bends.append(_moment(z, own, third, self.shares[e], z * z))
            self._known.append((_spread(blocks), _spread(bends) if bends else None))
        return self._known[0]

    @property
    def _whole(self) -> float:
        """What p(1 − p) is to be multiplied by for S where outputs add up to 0 and p are alike."""
        return 1.0 if self.outputs == 1 else self.outputs / (self.outputs - 1)

    def _common(self, head: np.ndarray) -> np.ndarray:
        """What diagonals that grow and shrink as a whole add, which few samples do not show."""
        p = self._read(head, diagonal=True).p
        third = [self._whole * own * (1 - own) * (1 - 2 * own) for own in p]
        pulled = self._sums(lambda e, part, _: third[e][part])
        pulled = (pulled - pulled.mean(0)).reshape(-1, self.shape[1])
        return np.asarray(self.shape[1] / len(pulled) * pulled.T @ pulled)


class _Moment(NamedTuple):
    """The weighted sum of left ⊗ right over some samples of a domain."""

    sum: np.ndarray
    noise: float  # by how much its squared distance to that of the domain is above 0, on average
    rest: float  # the same, if the sum were over all samples of the domain


def _moment(
    right: np.ndarray,
    share: np.ndarray,
    value: np.ndarray,
    all_shares: np.ndarray,
    left: np.ndarray | None = None,
) -> _Moment:
    """The sum of share · value · left ⊗ right; without left, of right ⊗ right and values ≥ 0."""
    weight = (share * value).astype(right.dtype)
    sizes = np.square(right).sum(1)
    if left is None:
        rooted = right * np.sqrt(weight)[:, None]
        found, lefts = rooted.T @ rooted, sizes
    else:
        found, lefts = (left * weight[:, None]).T @ right, np.square(left).sum(1)
    noise = float(np.square(weight) @ (lefts * sizes))
    return _Moment(found, noise, noise * float(np.square(all_shares).sum() / (share @ share)))


class _Spread(NamedTuple):
    """The mean over domains of M_e, and of (M_e − M̄)ᵀ(M_e − M̄) as all samples would have it."""

    mean: np.ndarray
    dispersion: np.ndarray


def _spread(moments: list[_Moment]) -> _Spread:
    """Of what some samples show, chance is as much less as there are more samples."""
    mean = np.mean([own.sum for own in moments], axis=0)
    deviations = np.concatenate([own.sum - mean for own in moments])
    squared = deviations.T @ deviations / len(moments)
    seen, free = float(np.trace(squared)), 1 - 1 / len(moments)
    noise = min(seen, free * float(np.mean([own.noise for own in moments])))
    rest = min(noise, free * float(np.mean([own.rest for own in moments])))
    return _Spread(mean, squared * ((seen - noise + rest) / seen if seen > 0 else 1.0))


def _add_products(total: np.ndarray, left: np.ndarray, x: Matrix) -> None:
    """Add the sum of left ⊗ x over a block."""
    if not isinstance(x, np.ndarray):
        total += (x.T @ left.astype(x.dtype)).T
        return
    rows = np.ascontiguousarray(left.T, dtype=x.dtype)
    if len(rows) > _FEW:
        total += rows @ x
        return
    for row, own in zip(rows, total, strict=True):
        own += row @ x


def _dispersion(deviations: np.ndarray) -> float:
    return float(np.square(deviations).sum()) / len(deviations)


def _bent(p: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """S v: p(1 − p) v for a single logit, p ∘ (v − ⟨p, v⟩) for several."""
    if p.shape[1] == 1:
        return np.asarray(p * (1 - p) * vectors)
    return np.asarray(p * (vectors - (p * vectors).sum(1, keepdims=True)))


def losses(logits: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Probabilities, the loss of each sample, and its slope in the logits."""
    if logits.shape[1] == 1:
        from scipy.special import expit

        a, p = logits[:, 0], expit(logits)
        return p, np.logaddexp(0, a) - labels * a, p - labels[:, None]
    rows = np.arange(len(labels))
    logits = logits - logits.max(1, keepdims=True)
    own = logits[rows, labels]
    p = np.exp(logits, out=logits)
    total = p.sum(1, keepdims=True)
    p /= total
    error = p.copy()
    error[rows, labels] -= 1
    return p, np.log(total[:, 0]) - own, error
