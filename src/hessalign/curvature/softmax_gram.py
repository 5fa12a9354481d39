r"""Inner products of softmax curvatures, $\langle S_n, S_m\rangle$, of all pairs of samples.

The formula is that of `SoftmaxCurvature.inner`. Its backward pass is written out here because left
to autograd it is a graph of some forty small operations, which take longer than the products that
matter.

Indices: n and m sample, c class.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from hessalign._shapes import Float


class _SoftmaxGram(Function):
    """The formula, with p = p_t e_t + p', t the most probable class of each sample.

    ⟨S, S⟩ = h·h' + o² − p'²·q'² + 2 o (u + uᵀ + a) + 2 u ∘ uᵀ

    where h = p(1 − p), o = p'·q', u = p_t q'_t, and a = p_t q_t for samples with the same t. In the
    code p_t is `lead`, p' is `rest`, q_t and q'_t are `picked` and `seen`, o is `others`, u is
    `ours` and uᵀ `theirs`.
    """

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - torch's context has no public type
        probs: Float[Tensor, "n c"],
    ) -> Float[Tensor, "n n"]:
        lead, top = probs.max(1, keepdim=True)
        rest = probs.scatter(1, top, 0)
        tail = rest.sum(1, keepdim=True)
        squares = rest.square()
        diagonal = (rest - squares).scatter_(1, top, lead * tail)
        picked = probs.T.contiguous().index_select(0, top.squeeze(1))
        seen = picked.masked_fill(top == top.T, 0)
        ours = lead * seen
        theirs = ours.T.contiguous()
        cross = torch.addcmul(theirs, lead, picked)
        others = rest @ rest.T
        ctx.save_for_backward(
            top, lead, tail, rest, squares, diagonal, picked, seen, theirs, others, cross
        )
        inner = torch.add(others, cross, alpha=2).mul_(others).addcmul_(ours, theirs, value=2)
        return inner.addmm_(squares, squares.T, alpha=-1).addmm_(diagonal, diagonal.T)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any,  # noqa: ANN401
        *grad_outputs: Tensor,
    ) -> Tensor:
        top, lead, tail, rest, squares, diagonal, picked, seen, theirs, others, cross = (
            ctx.saved_tensors
        )
        weights = grad_outputs[0] + grad_outputs[0].T
        weighted, turned = weights * others, weights * theirs
        # Half of what comes through o, u and a: to p_t, then to p'.
        d_lead = (weighted * picked).addcmul_(turned, seen).sum(1, keepdim=True)
        d_seen = (weighted + turned).mul_(lead)
        d_rest = weighted.addcmul_(weights, cross) @ rest
        d_rest.index_add_(1, top.squeeze(1), d_seen.T)
        # And through h and p'².
        d_diagonal = weights @ diagonal
        at_top = d_diagonal.gather(1, top)
        d_rest.addcmul_(rest, torch.addmm(d_diagonal, weights, squares), value=-1)
        d_probs = torch.add(d_diagonal, d_rest, alpha=2).addcmul_(at_top, lead)
        return d_probs.scatter_(1, top, torch.addcmul(2 * d_lead, at_top, tail))


softmax_gram: Callable[[Tensor], Tensor] = _SoftmaxGram.apply
"""Inner products between the curvatures of all pairs of samples, given their probabilities."""
