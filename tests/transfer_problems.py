"""Small problems with two or more domains of unequal size, float64."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Problem:
    """Samples and options of `transfer_measure` and `transfer_bound`."""

    z: Tensor
    y: Tensor
    domain: Tensor
    loss: str
    l2: float
    bias: bool = True
    outputs: int | None = None

    @property
    def arguments(self):
        return self.z, self.y, self.domain

    @property
    def options(self):
        return {"loss": self.loss, "l2": self.l2, "bias": self.bias, "outputs": self.outputs}

    def of(self, domain):
        rows = self.domain == domain
        return self.z[rows], self.y[rows]


def domains(rng, sizes, features):
    """Features whose mean and scale differ from domain to domain."""
    parts = [
        rng.normal(size=features) * 0.5 + rng.uniform(0.5, 2) * rng.normal(size=(n, features))
        for n in sizes
    ]
    ids = np.repeat(np.arange(len(sizes)), sizes)
    return torch.tensor(np.concatenate(parts)), torch.tensor(ids)


def regression(seed, *, features=3, outputs=2, sizes=(7, 12), l2=0.1, bias=True):
    rng = np.random.default_rng(seed)
    z, domain = domains(rng, sizes, features)
    y = torch.tensor(rng.normal(size=(len(z), outputs)))
    return Problem(z, y, domain, "squared", l2, bias)


def classification(seed, loss="cross_entropy", *, features=3, sizes=(15, 25), l2=0.05, bias=True):
    rng = np.random.default_rng(seed)
    z, domain = domains(rng, sizes, features)
    classes = 2 if loss == "binary" else 3
    logits = z.numpy() @ rng.normal(size=(features, classes)) + rng.gumbel(size=(len(z), classes))
    y = torch.tensor(logits.argmax(1))
    return Problem(z, y, domain, loss, l2, bias, 1 if loss == "binary" else classes)
