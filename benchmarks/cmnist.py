"""Table 3: a whole training step of Colored MNIST, relative to plain training.

Two domains of 25,000 samples in one full batch, the 392-390-390-1 network, binary cross-entropy,
the L2 term and Adam as in the paper's protocol. The data are random numbers of the right shape;
the penalty sees features after a ReLU, as it does in training.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import hessalign
from benchmarks.targets import Target
from benchmarks.timing import Effort, Run, measure
from hessalign.alignment.penalties import HessianKind
from hessalign.report.progress import Progress

ERM = "ERM"
SAMPLES = 25_000
QUICK_SAMPLES = 5_000
PIXELS, HIDDEN, DOMAINS, PROBES = 392, 390, 2, 100
LEARNING_RATE, L2 = 0.0004898536566546834, 0.00110794568

VARIANTS: dict[str, HessianKind | None] = {
    "gradient only": None,
    "product (HGP)": "product",
    "diagonal": "diagonal",
    "expected": "expected",
    "full": "full",
    f"sampled, {PROBES} probes": "sampled",
}
BOUNDS: dict[str, float] = {
    "product (HGP)": 1.1,
    "diagonal": 1.1,
    "expected": 1.3,
    "full": 1.3,
    f"sampled, {PROBES} probes": 1.6,
}


def make_data(samples: int) -> tuple[Tensor, Tensor, Tensor]:
    """Images in one of two colours, labels and domains, all random.

    Args:
        samples: Samples per domain.

    Returns:
        Pixels, labels 0 or 1, domain ids.
    """
    generator = torch.Generator().manual_seed(0)
    total = DOMAINS * samples
    ink = torch.rand(total, PIXELS // 2, generator=generator)
    strokes = ink * (torch.rand(total, PIXELS // 2, generator=generator) < 0.2)
    red = torch.randint(2, (total, 1), generator=generator).float()
    x = torch.cat([strokes * red, strokes * (1 - red)], dim=1)
    y = torch.randint(2, (total,), generator=generator).float()
    return x, y, torch.arange(DOMAINS).repeat_interleave(samples)


class Network(nn.Module):
    """The 392-390-390-1 network: a featurizer of two layers and a linear head."""

    def __init__(self) -> None:
        super().__init__()
        self.featurizer = nn.Sequential(
            nn.Linear(PIXELS, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU()
        )
        self.head = nn.Linear(HIDDEN, 1)
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                nn.init.xavier_uniform_(layer.weight)
                nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Features and logits.

        Args:
            x: Pixels.

        Returns:
            What enters the head, and what comes out.
        """
        z = self.featurizer(x)
        return z, self.head(z).squeeze(1)


def plain_loss(network: Network, logits: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy and the L2 term.

    Args:
        network: The network.
        logits: Its outputs.
        y: Labels.

    Returns:
        The loss of plain training.
    """
    squares = torch.stack([parameter.square().sum() for parameter in network.parameters()])
    return functional.binary_cross_entropy_with_logits(logits, y) + L2 * squares.sum()


def penalty(
    z: Tensor, logits: Tensor, y: Tensor, domain: Tensor, kind: HessianKind | None
) -> Tensor:
    """Hessian and gradient dispersion of the head.

    Args:
        z: Features.
        logits: Logits.
        y: Labels.
        domain: Domain ids.
        kind: The variant of Hessian dispersion; None for the gradient term alone.

    Returns:
        Their sum.
    """
    align = hessalign.HessianAlignment(1.0, 1.0, kind, loss="binary", probes=PROBES)
    return align(z, logits, y, domain).penalty


def make_step(data: tuple[Tensor, Tensor, Tensor], extra: partial[Tensor] | None) -> Run:
    """A training step: forward, loss, backward, update.

    Args:
        data: Pixels, labels, domain ids.
        extra: The penalty as a function of features, logits, labels and domains; None for plain
            training.

    Returns:
        The procedure, which trains a network of its own.
    """
    torch.manual_seed(0)
    network = Network()
    optimizer = torch.optim.Adam(network.parameters(), lr=LEARNING_RATE)
    x, y, domain = data

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        z, logits = network(x)
        loss = plain_loss(network, logits, y)
        if extra is not None:
            loss = loss + extra(z, logits, y, domain)
        loss.backward()
        optimizer.step()

    return step


def run(quick: bool, effort: Effort, progress: Progress) -> tuple[dict[str, Any], list[Target]]:
    """Measure the table.

    Args:
        quick: Fewer samples per domain; the ratios are then not those of the real step.
        effort: How long to measure each variant.
        progress: Where to report.

    Returns:
        The table as it is written to JSON, and the targets.
    """
    progress.title = "cmnist"
    samples = QUICK_SAMPLES if quick else SAMPLES
    data = make_data(samples)
    steps: dict[str, Run] = {ERM: make_step(data, None)}
    for name, kind in VARIANTS.items():
        steps[name] = make_step(data, partial(penalty, kind=kind))
    timings = measure(steps, effort, progress)
    floor = timings[ERM].median
    found = [
        Target(
            f"Colored MNIST step, {name}, relative to ERM",
            timings[name].median / floor,
            "at most",
            bound,
        )
        for name, bound in BOUNDS.items()
    ]
    record = {
        "domains": DOMAINS,
        "samples_per_domain": samples,
        "network": [PIXELS, HIDDEN, HIDDEN, 1],
        "rows": {
            name: {**timing.record(), "times_erm": timing.median / floor}
            for name, timing in timings.items()
        },
        "targets": [target.record() for target in found],
    }
    return record, found
