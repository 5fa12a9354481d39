r"""Inner products of softmax curvatures, $\langle S_n, S_m\rangle$, of all pairs of samples.

$\langle S, S'\rangle = p·q − p²·q − p·q² + (p·q)²$ is grouped as
Σ_c p_c(1−p_c) q_c(1−q_c) + Σ_{c≠k} p_c q_c p_k q_k, with the most probable class of either sample
apart from the rest, so that no large terms cancel: with p = p_t e_t + p', t that class,

⟨S, S'⟩ = h·h' + o² − p'²·q'² + 2 o (u + uᵀ + a) + 2 u ∘ uᵀ

where h = p(1 − p), o = p'·q', u = p_t q'_t, and a = p_t q_t for samples with the same t.

`softmax_inner` is that formula. `softmax_gram` is the same for all pairs with its backward pass
written out, because left to autograd it is a graph of some forty small operations, which take
longer than the products that matter.

Indices: n and m sample, c class.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from hessalign._shapes import Float
from hessalign.curvature.gram import inner


def softmax_inner(probs: Float[Tensor, "n c"], block: slice) -> Float[Tensor, "b n"]:
    """Inner products of the curvatures of a block of samples with those of all."""
    top = probs.argmax(1, keepdim=True)
    lead, rest = probs.gather(1, top), probs.scatter(1, top, 0)
    squares = rest.square()
    diagonal = (rest - squares).scatter_add(1, top, lead * rest.sum(1, keepdim=True))
    # What p·q owes to the leading class of n (of m: its mirror image), and to a common one.
    ours = lead[block] * rest[:, top[block, 0]].T
    theirs = rest[block][:, top[:, 0]] * lead.T
    common = torch.where(top[block] == top.T, lead[block] * lead.T, 0)
    others = inner(rest, block)
    pairs = others * (others + 2 * (ours + theirs + common)) + 2 * ours * theirs
    return inner(diagonal, block) + (pairs - inner(squares, block))


class _SoftmaxGram(Function):
    """The formula above.

    In the code p_t is `lead`, p' is `rest`, q_t and q'_t are `picked` and `seen`, o is `others`, u
    is `ours` and uᵀ `theirs`.
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
            probs, top, lead, tail, rest, squares, diagonal, picked, seen, theirs, others, cross
        )
        inner = torch.add(others, cross, alpha=2).mul_(others).addcmul_(ours, theirs, value=2)
        return inner.addmm_(squares, squares.T, alpha=-1).addmm_(diagonal, diagonal.T)

    @staticmethod
    def backward(
        ctx: Any,  # noqa: ANN401
        *grad_outputs: Tensor,
    ) -> Tensor:
        probs, *saved = ctx.saved_tensors
        if torch.is_grad_enabled():  # a graph of the gradient is wanted
            again = softmax_inner(probs, slice(None))
            slopes: tuple[Tensor] = torch.autograd.grad(
                again, probs, grad_outputs, create_graph=True
            )
            return slopes[0]
        top, lead, tail, rest, squares, diagonal, picked, seen, theirs, others, cross = saved
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
