r"""One batch in micro-batches, one after another: the penalty of all of it, exactly.

A batch that does not fit is passed through the network in pieces whose slopes are accumulated. The
sum of the pieces' penalties is not the penalty P. Two passes make it so: the first collects
features and logits without a graph, from which P and its slopes in them follow; the second passes
each piece i through the network again and adds to its loss a scalar with these slopes,

$$s_i = \frac{n_i}{n} P + \Big\langle \frac{\partial P}{\partial z_i}, z_i - [z_i] \Big\rangle
+ \Big\langle \frac{\partial P}{\partial a_i}, a_i - [a_i] \Big\rangle$$

with logits a and [·] held fixed. Its slope in the network's parameters is what P owes to piece i,
so their sum is the slope of P; its value is the piece's share, so their sum is P.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor

from hessalign._errors import InputError, InputTypeError
from hessalign._numbers import is_whole, shown
from hessalign._shapes import Float
from hessalign.alignment.hessian_alignment import AlignmentTerms, HessianAlignment
from hessalign.alignment.parts import Part, joined, kinds_of, make_part
from hessalign.curvature import make_loss
from hessalign.curvature.domains import DomainLike
from hessalign.curvature.inputs import reads_values

_TOLERANCE = 1e-2
"""Relative difference between both passes that is more than rounding of half precision."""


@final
@dataclass
class MicroBatches:
    """The penalty of a batch that passes through the network in pieces, for a linear head.

    Call `add` for each piece, then `terms`, then `surrogate` for each piece again; before the next
    batch, `clear`. Both passes must give the same features: put dropout to rest, or have it draw
    the same in both (`torch.random.fork_rng`), and let batch normalisation use its running
    statistics.

    Args:
        align: The penalty. With a group, each process has micro-batches of its own, as many as it
            likes but one at least, which may be empty; all of them call `terms`.

    Example:
        >>> network, head = torch.nn.Linear(4, 5), torch.nn.Linear(5, 3)
        >>> x, y, domain = torch.randn(12, 4), torch.randint(3, (12,)), torch.arange(12) % 2
        >>> pieces = MicroBatches(HessianAlignment(alpha=1e-2, beta=1e-3))
        >>> with torch.no_grad():
        ...     for rows in (slice(0, 7), slice(7, 12)):
        ...         z = network(x[rows])
        ...         pieces.add(z, head(z), y[rows], domain[rows])
        >>> penalty = pieces.terms().penalty
        >>> values = []
        >>> for index, rows in enumerate((slice(0, 7), slice(7, 12))):
        ...     z = network(x[rows])
        ...     surrogate = pieces.surrogate(index, z, head(z))
        ...     surrogate.backward()  # slopes add up
        ...     values.append(surrogate.detach())
        >>> torch.allclose(sum(values), penalty)
        True
    """

    align: HessianAlignment
    _parts: list[Part] = field(default_factory=list, init=False, repr=False)
    _terms: AlignmentTerms | None = field(default=None, init=False, repr=False)
    _slopes: list[tuple[Tensor, Tensor]] = field(default_factory=list, init=False, repr=False)

    def __len__(self) -> int:
        """How many pieces were added."""
        return len(self._parts)

    def add(
        self,
        z: Float[Tensor, "n d"],
        logits: Tensor,
        y: Tensor,
        domain: DomainLike,
        weight: Float[Tensor, " n"] | None = None,
    ) -> None:
        """Add a piece; its graph, if there is one, is not kept.

        Args:
            z: Features that enter the head.
            logits: What the head made of them.
            y: Targets.
            domain: The domain of each sample, as in `HessianAlignment`. A piece may lack domains;
                give ids, then: sizes number the domains of a piece from 0.
            weight: What each sample counts in the mean of its domain over the whole batch.

        Raises:
            InputError: If `terms` has been called, or the piece does not match the first one.
        """
        if self._terms is not None:
            raise InputError(
                "Expected all micro-batches before terms(), got another one after it. Call clear() "
                "before the next batch."
            )
        loss = make_loss(self.align.loss, self.align.activation)
        part = make_part(z, logits, y, domain, weight, loss, self.align.checks)
        part = part.changed(torch.Tensor.detach)
        if self._parts:
            first = kinds_of(self._parts[0])
            for name, found in kinds_of(part).items():
                if found != first[name]:
                    raise InputError(
                        f"Expected {name} as in the first micro-batch, {first[name]}, got {found}. "
                        "Only the number of samples may differ."
                    )
        self._parts.append(part)

    def terms(self) -> AlignmentTerms:
        """The terms of all pieces together, computed once.

        Returns:
            The terms, as constants.

        Raises:
            InputError: If there are no pieces.
        """
        if self._terms is not None:
            return self._terms
        if not self._parts:
            raise InputError("Expected micro-batches, got none. Call add() for each of them first.")
        whole = joined(self._parts)
        # Slopes of a half would be halves, too small for many of them.
        z, logits = (
            x.to(torch.promote_types(x.dtype, torch.float32)).requires_grad_()
            for x in (whole.z, whole.logits)
        )
        with torch.enable_grad():
            found = self.align(z, logits, whole.y, whole.domain, weight=whole.weight)
        slopes = torch.autograd.grad(
            found.penalty, [z, logits], allow_unused=True, materialize_grads=True
        )
        sizes = [len(part.z) for part in self._parts]
        self._slopes = list(zip(*(slope.split(sizes) for slope in slopes), strict=True))
        self._terms = AlignmentTerms(
            found.penalty.detach(), found.hessian.detach(), found.gradient.detach()
        )
        return self._terms

    def surrogate(self, index: int, z: Float[Tensor, "n d"], logits: Tensor) -> Float[Tensor, ""]:
        """A scalar with the slopes of the whole penalty in one piece.

        Args:
            index: Which piece, in the order of `add`, from 0.
            z: Its features again, now with a graph.
            logits: Its logits again.

        Returns:
            The scalar, to be added to the loss of the piece. Its value is the share n_i/n of the
            penalty, so that those of all pieces add up to the penalty.

        Raises:
            InputError: If `terms` has not been called, there is no such piece, or it is another.
        """
        if self._terms is None:
            raise InputError(
                "Expected terms() before surrogate(): the slopes of a piece depend on all pieces."
            )
        if not is_whole(index) or not 0 <= index < len(self):
            raise InputError(
                f"Expected the index of a micro-batch from 0 to {len(self) - 1}, got {shown(index)}"
            )
        part, penalty = self._parts[index], self._terms.penalty
        scalar = penalty * (len(part.z) / max(1, sum(len(each.z) for each in self._parts)))
        given = (("features z", z, part.z), ("logits", logits, part.logits))
        with torch.autocast(penalty.device.type, enabled=False):
            for (name, now, before), slope in zip(given, self._slopes[index], strict=True):
                self._check_same(name, now, before, index)
                product = (now.to(slope.dtype) * slope).sum()
                scalar = scalar + (product - product.detach()).to(scalar.dtype)
        return scalar

    def _check_same(self, name: str, now: Tensor, before: Tensor, index: int) -> None:
        """Raise unless a piece is what it was in the first pass."""
        if not isinstance(now, Tensor):
            raise InputTypeError(f"Expected {name} as a tensor, got {type(now).__name__}.")
        if now.shape != before.shape:
            raise InputError(
                f"Expected {name} of micro-batch {index}, {list(before.shape)} as in the first "
                f"pass, got {list(now.shape)}. Pass the pieces in the order of add()."
            )
        if not reads_values(now, self.align.checks):
            return
        change = torch.linalg.vector_norm((now.detach() - before).float())
        if not change <= _TOLERANCE * torch.linalg.vector_norm(before.float()):
            raise InputError(
                f"Expected {name} of micro-batch {index} as in the first pass, found others. Pass "
                "the pieces in the order of add(), with the same parameters, and with dropout and "
                "batch normalisation that do the same in both passes."
            )

    def clear(self) -> None:
        """Forget all pieces, for the next batch."""
        self._parts, self._slopes, self._terms = [], [], None
