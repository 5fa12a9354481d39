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
    code p_t is `lead` and p' is `rest`.
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
        seen = rest[:, top[:, 0]].T
        same = (top == top.T).to(probs.dtype)
        others, ours = rest @ rest.T, lead * seen
        cross = ours + ours.T + same * (lead * lead.T)
        ctx.save_for_backward(top, lead, tail, rest, squares, diagonal, seen, same, others, cross)
        inner = torch.addmm(
            torch.addmm(others.square(), squares, squares.T, alpha=-1), diagonal, diagonal.T
        )
        return inner.addcmul_(others, cross, value=2).addcmul_(ours, ours.T, value=2)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any,  # noqa: ANN401
        *grad_outputs: Tensor,
    ) -> Tensor:
        top, lead, tail, rest, squares, diagonal, seen, same, others, cross = ctx.saved_tensors
        weights = grad_outputs[0] + grad_outputs[0].T
        weighted = weights * others
        d_diagonal = weights @ diagonal
        at_top = d_diagonal.gather(1, top)
        d_ours = torch.addcmul(weighted, weights, (lead * seen).T).mul_(2)
        d_lead = (d_ours * seen).sum(1, keepdim=True) + 2 * (weighted * same) @ lead
        d_lead += at_top * tail
        d_rest = 2 * torch.addcmul(weighted, weights, cross) @ rest
        d_rest.addcmul_(rest, weights @ squares, value=-2)
        d_rest.index_add_(1, top[:, 0], (d_ours * lead).T)
        d_rest += d_diagonal * (1 - 2 * rest) + at_top * lead
        d_probs: Tensor = d_rest.scatter_(1, top, d_lead)
        return d_probs


softmax_gram: Callable[[Tensor], Tensor] = _SoftmaxGram.apply
"""Inner products between the curvatures of all pairs of samples, given their probabilities."""
