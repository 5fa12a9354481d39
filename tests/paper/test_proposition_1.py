"""Equations 1 and 12 to 16, element by element: derivatives of softmax cross-entropy in the head.

Every sample is a domain of its own, so that a domain's statistics are those of one sample.
"""

import pytest
import torch
from tests.comparison import assert_agrees
from torch.func import grad, hessian

from hessalign.curvature import linear_head

N, C, D = 4, 3, 2


def ell(W, b, z, y):
    """The loss of one sample, eq. 21 to 23."""
    a = torch.stack([sum(W[k, i] * z[i] for i in range(D)) + b[k] for k in range(C)])
    y_hat = a.exp() / a.exp().sum()
    one_hot = torch.eye(C, dtype=torch.float64)[y]
    return -(one_hot * y_hat.log()).sum()


class Setup:
    def __init__(self):
        generator = torch.Generator().manual_seed(3)
        draw = {"generator": generator, "dtype": torch.float64}
        self.W, self.b = torch.randn(C, D, **draw), torch.randn(C, **draw)
        self.z = torch.randn(N, D, **draw)
        self.y = torch.tensor([0, 2, 1, 2])
        logits = self.z @ self.W.T + self.b
        self.y_hat = logits.softmax(1)
        self.one_hot = torch.eye(C, dtype=torch.float64)[self.y]
        self.head = linear_head(self.z, logits, self.y, torch.arange(N))
        gradient = self.head.gradient.view(N, C, D + 1)
        self.gradient_w, self.gradient_b = gradient[..., :D], gradient[..., D]
        blocks = self.head.hessian.view(N, C, D + 1, C, D + 1)
        self.hessian_ww = blocks[:, :, :D, :, :D]
        self.hessian_wb = blocks[:, :, :D, :, D]
        self.hessian_bb = blocks[:, :, D, :, D]

    def samples(self):
        return zip(range(N), self.z, self.y, strict=True)


@pytest.fixture(scope="module")
def s():
    return Setup()


def delta(u, v):
    return float(u == v)


def assert_elements(library, derivative, equation):
    """All three agree in every element; the equation is a function of the indices."""
    assert_agrees(library, derivative)
    for index in torch.cartesian_prod(*[torch.arange(n) for n in library.shape]).tolist():
        index = index if isinstance(index, list) else [index]
        value = equation(*index)
        assert library[tuple(index)].item() == pytest.approx(float(value), abs=1e-12)


def test_eq1(s):
    """The risk of a domain is the expectation of the loss over it."""
    losses = torch.stack([ell(s.W, s.b, z, y) for _, z, y in s.samples()])
    assert_agrees(s.head.risk, losses)
    domain = torch.tensor([5, 5, 5, 8])
    pooled = linear_head(s.z, s.z @ s.W.T + s.b, s.y, domain)
    assert_agrees(pooled.risk, torch.stack([losses[:3].mean(), losses[3]]))


def test_eq12(s):
    """∂ℓ/∂b_p = ŷ_p − y_p."""
    for n, z, y in s.samples():
        derivative = grad(ell, argnums=1)(s.W, s.b, z, y)
        for library in (s.gradient_b[n], s.head.error[n]):
            assert_elements(library, derivative, lambda p, n=n: s.y_hat[n, p] - s.one_hot[n, p])


def test_eq13(s):
    """∂ℓ/∂w_pq = (ŷ_p − y_p) z_q."""
    for n, z, y in s.samples():
        assert_elements(
            s.gradient_w[n],
            grad(ell, argnums=0)(s.W, s.b, z, y),
            lambda p, q, n=n, z=z: (s.y_hat[n, p] - s.one_hot[n, p]) * z[q],
        )


def test_eq14(s):
    """∂²ℓ/∂b_u∂b_v = ŷ_u (δ_uv − ŷ_v)."""
    for n, z, y in s.samples():
        derivative = hessian(ell, argnums=1)(s.W, s.b, z, y)
        for library in (s.hessian_bb[n], s.head.curvature.matrix()[n]):
            assert_elements(
                library,
                derivative,
                lambda u, v, n=n: s.y_hat[n, u] * (delta(u, v) - s.y_hat[n, v]),
            )


def test_eq15(s):
    """∂²ℓ/∂w_pq∂b_u = z_q ŷ_p (δ_pu − ŷ_u)."""
    for n, z, y in s.samples():
        derivative = torch.func.jacfwd(grad(ell, argnums=0), argnums=1)(s.W, s.b, z, y)
        assert_elements(
            s.hessian_wb[n],
            derivative,
            lambda p, q, u, n=n, z=z: z[q] * s.y_hat[n, p] * (delta(p, u) - s.y_hat[n, u]),
        )


def test_eq16(s):
    """∂²ℓ/∂w_pq∂w_uv = ŷ_p z_q z_v (δ_pu − ŷ_u); at p = u, q = v it is the diagonal."""
    for n, z, y in s.samples():

        def equation(p, q, u, v, n=n, z=z):
            return s.y_hat[n, p] * z[q] * z[v] * (delta(p, u) - s.y_hat[n, u])

        derivative = hessian(ell, argnums=0)(s.W, s.b, z, y)
        assert_elements(s.hessian_ww[n], derivative, equation)
        diagonal = s.head.diagonal.view(N, C, D + 1)[n, :, :D]
        assert_elements(
            diagonal,
            torch.einsum("pqpq->pq", derivative),
            lambda p, q, equation=equation: equation(p, q, p, q),
        )
