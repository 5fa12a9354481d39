"""Equations 34 to 38, element by element: squared error of one output with any activation."""

import pytest
import torch
from tests.comparison import assert_agrees
from torch.func import grad, hessian, jacfwd

from hessalign.curvature import linear_head

N, D = 5, 3
ACTIVATIONS = {
    "identity": lambda a: a,
    "sigmoid": lambda a: 1 / (1 + torch.exp(-a)),
    "tanh": lambda a: (torch.exp(a) - torch.exp(-a)) / (torch.exp(a) + torch.exp(-a)),
    "softplus": lambda a: torch.log(1 + torch.exp(a)),
    "cube": lambda a: a**3,
    "sine": torch.sin,
}


class Setup:
    """Every sample is a domain of its own."""

    def __init__(self, name):
        generator = torch.Generator().manual_seed(4)
        draw = {"generator": generator, "dtype": torch.float64}
        self.w, self.b = torch.randn(D, **draw), torch.randn((), **draw)
        self.z, self.y = torch.randn(N, D, **draw), torch.randn(N, **draw)
        self.sigma = ACTIVATIONS[name]
        self.first, self.second = grad(self.sigma), grad(grad(self.sigma))
        self.a = self.z @ self.w + self.b
        activation = self.sigma if name in {"cube", "sine"} else name
        self.head = linear_head(
            self.z, self.a, self.y, torch.arange(N), loss="squared", activation=activation
        )

    def ell(self, w, b, z, y):
        """Eq. 39 to 41."""
        return (self.sigma(w @ z + b) - y) ** 2 / 2

    def arguments(self, n):
        return self.w, self.b, self.z[n], self.y[n]

    def slope(self, n):
        """(ŷ − y) σ'(a)."""
        return (self.sigma(self.a[n]) - self.y[n]) * self.first(self.a[n])

    def bend(self, n):
        """σ'(a)² + (ŷ − y) σ''(a)."""
        residual = self.sigma(self.a[n]) - self.y[n]
        return self.first(self.a[n]) ** 2 + residual * self.second(self.a[n])


@pytest.fixture(params=ACTIVATIONS)
def s(request):
    return Setup(request.param)


def assert_all_agree(library, derivative, equation):
    assert_agrees(library, derivative)
    assert_agrees(library, equation)


def test_eq34(s):
    """∂ℓ/∂b = (ŷ − y) σ'(a)."""
    for n in range(N):
        derivative = grad(s.ell, argnums=1)(*s.arguments(n))
        assert_all_agree(s.head.gradient[n, D], derivative, s.slope(n))
        assert_agrees(s.head.error[n, 0], derivative)


def test_eq35(s):
    """∂ℓ/∂w_i = (ŷ − y) σ'(a) z_i."""
    for n in range(N):
        derivative = grad(s.ell, argnums=0)(*s.arguments(n))
        for i in range(D):
            assert_all_agree(s.head.gradient[n, i], derivative[i], s.slope(n) * s.z[n, i])


def test_eq36(s):
    """∂²ℓ/∂b² = σ'(a)² + (ŷ − y) σ''(a)."""
    for n in range(N):
        derivative = hessian(s.ell, argnums=1)(*s.arguments(n))
        assert_all_agree(s.head.hessian[n, D, D], derivative, s.bend(n))
        assert_agrees(s.head.curvature.diagonal()[n, 0], derivative)


def test_eq37(s):
    """∂²ℓ/∂w_i∂b = σ'(a)² z_i + (ŷ − y) σ''(a) z_i."""
    for n in range(N):
        derivative = jacfwd(grad(s.ell, argnums=0), argnums=1)(*s.arguments(n))
        for i in range(D):
            equation = s.bend(n) * s.z[n, i]
            assert_all_agree(s.head.hessian[n, i, D], derivative[i], equation)
            assert_agrees(s.head.hessian[n, D, i], equation)


def test_eq38(s):
    """∂²ℓ/∂w_i∂w_k = σ'(a)² z_i z_k + (ŷ − y) σ''(a) z_i z_k."""
    for n in range(N):
        derivative = hessian(s.ell, argnums=0)(*s.arguments(n))
        for i in range(D):
            for k in range(D):
                equation = s.bend(n) * s.z[n, i] * s.z[n, k]
                assert_all_agree(s.head.hessian[n, i, k], derivative[i, k], equation)
            assert_agrees(s.head.diagonal[n, i], derivative[i, i])
