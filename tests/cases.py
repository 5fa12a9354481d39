"""The cases that the exact core is checked on: small float64 batches, built when asked for.

Between them they cover every loss, activation and shape of head, with and without bias, domains
of unequal size, unsorted and negative ids, one sample per domain, and one domain alone.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


class Batch(NamedTuple):
    """The arguments of the library's functions, in their order."""

    z: Tensor
    logits: Tensor
    y: Tensor
    domain: Tensor

    @property
    def inputs(self):
        """What derivatives are taken in."""
        return (self.z, self.logits)


@dataclass(frozen=True)
class Case:
    """How to build a batch, and with which options the library should read it."""

    name: str
    loss: str
    outputs: int = 1
    activation: str | Callable[[Tensor], Tensor] = "identity"
    bias: bool = True
    features: int = 4
    domain: tuple[int, ...] = (0,) * 5 + (1,) * 3 + (2,) * 4
    flat: bool = False
    seed: int = 0

    @property
    def options(self):
        """Keyword arguments of the library's functions, and of the oracles."""
        return {"loss": self.loss, "activation": self.activation, "bias": self.bias}

    def build(self, *, requires_grad=True, dtype=torch.float64):
        """Features and logits drawn independently: no field may rely on how they are related."""
        generator = torch.Generator().manual_seed(self.seed)
        n = len(self.domain)
        z = torch.randn(n, self.features, generator=generator, dtype=torch.float64)
        logits = torch.randn(n, self.outputs, generator=generator, dtype=torch.float64)
        y = self._targets(n, generator)
        if self.flat:
            logits = logits.squeeze(1)
        return Batch(
            z.to(dtype).requires_grad_(requires_grad),
            logits.to(dtype).requires_grad_(requires_grad),
            y,
            torch.tensor(self.domain),
        )

    def _targets(self, n, generator):
        if self.loss == "cross_entropy":
            return torch.randint(self.outputs, (n,), generator=generator)
        if self.loss == "binary":
            return torch.randint(2, (n,), generator=generator)
        shape = (n,) if self.flat else (n, self.outputs)
        return torch.randn(shape, generator=generator, dtype=torch.float64)


UNSORTED = (7, -3, 7, 0, -3, 0, 0, 7, 0, -3, 0)
"""Three domains in no order: sizes 3, 5 and 3 for the ids -3, 0 and 7."""


def cube(a):
    return a**3


CASES = [
    Case("softmax-2", "cross_entropy", 2),
    Case("softmax-3", "cross_entropy", 3, domain=UNSORTED),
    Case("softmax-3-no-bias", "cross_entropy", 3, bias=False),
    Case("softmax-7-wide", "cross_entropy", 7, features=9, domain=(1, 1, 2, 2, 3, 3)),
    Case("softmax-5-one-sample", "cross_entropy", 5, features=3, domain=(3, 1, 2)),
    Case("softmax-4-one-domain", "cross_entropy", 4, domain=(5,) * 6),
    Case("softmax-12", "cross_entropy", 12, features=2, domain=UNSORTED),
    Case("binary", "binary", flat=True),
    Case("binary-column", "binary", domain=UNSORTED),
    Case("binary-no-bias", "binary", bias=False, flat=True, features=9, domain=(0, 0, 1, 1)),
    Case("squared-identity", "squared", flat=True),
    Case("squared-identity-2", "squared", 2, domain=UNSORTED),
    Case("squared-sigmoid-3", "squared", 3, "sigmoid"),
    Case("squared-tanh-no-bias", "squared", 1, "tanh", bias=False, flat=True),
    Case("squared-softplus-2", "squared", 2, "softplus", features=7, domain=(0, 1, 0, 1)),
    Case("squared-cube", "squared", 1, cube, domain=UNSORTED),
    Case("squared-sin-2-no-bias", "squared", 2, torch.sin, bias=False),
]

BY_NAME = {case.name: case for case in CASES}
ONE_PER_LOSS = [BY_NAME[name] for name in ("softmax-3", "binary-column", "squared-softplus-2")]
"""A short list for what has been multiplied by other parameters already."""


def name(case):
    """The name of a case in a test's id."""
    return case.name
