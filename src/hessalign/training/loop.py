"""Full-batch training of a featurizer and head on several domains: one loop, top to bottom.

Indices: n sample, d feature, k output of the head.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, final

import torch
from torch import Tensor

from hessalign._shapes import Float, Int
from hessalign.algorithms import Objective, ObjectiveTerms
from hessalign.alignment import distances, inner_products
from hessalign.curvature import LinearHead, linear_head
from hessalign.models import ColouredImages, Network
from hessalign.training.records import Record
from hessalign.training.schedule import PenaltySchedule

LOSS: Final = "binary"
REMEDY: Final = "Lower the learning rate or the penalty weight."


@final
class DivergedError(RuntimeError):
    """Training met a loss that is not a finite number."""


@final
@dataclass(frozen=True, eq=False)
class Batch:
    """Inputs with targets and domains.

    Attributes:
        x: Inputs, samples on the first axis.
        y: Binary labels.
        domain: The domain of each sample.
    """

    x: Tensor | ColouredImages
    y: Int[Tensor, " n"]
    domain: Int[Tensor, " n"]


@final
@dataclass(frozen=True)
class LoopConfig:
    """How to train.

    Attributes:
        steps: Updates of the parameters.
        learning_rate: Of Adam.
        l2: Factor of the sum of squares of all parameters, added to the loss.
        schedule: Weight of the penalty by step.
        evaluate_every: Evaluate when the step is a multiple of this, and at the last step.
        hessian_distance: Whether evaluations measure the distance between the domains' Hessians.
    """

    steps: int
    learning_rate: float
    l2: float
    schedule: PenaltySchedule
    evaluate_every: int
    hessian_distance: bool


def train(
    network: Network,
    source: Batch,
    target: Batch,
    objective: Objective,
    config: LoopConfig,
    report: Callable[[Record], None] = lambda record: None,
) -> list[Record]:
    """Train on all source samples at every step.

    Evaluations describe the network before the update of their step, as the published Colored
    MNIST numbers do.

    Args:
        network: The network; it is trained in place.
        source: The training domains.
        target: The unseen domain, for evaluation only.
        objective: The algorithm.
        config: How to train.
        report: Called with every record as it is made.

    Returns:
        One record per evaluation.

    Raises:
        DivergedError: If the logits or the loss are not finite.
    """
    optimizer = torch.optim.Adam(network.parameters(), lr=config.learning_rate)
    records: list[Record] = []
    start = time.perf_counter()
    for step in range(config.steps):
        z = network.features(source.x)
        logits = network.head(z)
        if not bool(logits.sum().isfinite()):
            raise DivergedError(f"The logits are not finite at step {step}. {REMEDY}")
        statistics = linear_head(z, logits, source.y, source.domain, loss=LOSS)

        terms = objective(statistics)
        loss = terms.risk + config.l2 * sum_of_squares(network)
        if terms.penalty is not None:
            loss = loss + config.schedule.weight(step) * terms.penalty
            loss = loss / config.schedule.divisor(step)
        if not bool(loss.isfinite()):
            raise DivergedError(describe_divergence(step, terms))

        if step % config.evaluate_every == 0 or step == config.steps - 1:
            seconds = time.perf_counter() - start
            record = evaluate(network, statistics, target, terms, loss, step, seconds, config)
            records.append(record)
            report(record)

        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return records


def sum_of_squares(network: Network) -> Float[Tensor, ""]:
    """Squared norm of all parameters.

    Args:
        network: The network.

    Returns:
        The sum over all parameters, biases included.
    """
    return torch.stack([parameter.square().sum() for parameter in network.parameters()]).sum()


def describe_divergence(step: int, terms: ObjectiveTerms) -> str:
    """Say which term of the loss went bad.

    Args:
        step: Where it happened.
        terms: The terms of the loss.

    Returns:
        A message for the user.
    """
    values = {"risk": terms.risk, **terms.parts}
    bad = [f"{name} = {value.item()}" for name, value in values.items() if not value.isfinite()]
    return (
        f"The loss is not finite at step {step}: {', '.join(bad) or 'the parameters diverged'}. "
        + REMEDY
    )


@torch.no_grad()
def evaluate(
    network: Network,
    statistics: LinearHead,
    target: Batch,
    terms: ObjectiveTerms,
    loss: Float[Tensor, ""],
    step: int,
    seconds: float,
    config: LoopConfig,
) -> Record:
    """Measure the network as it is now.

    Args:
        network: The network.
        statistics: Its statistics on the source domains.
        target: The unseen domain.
        terms: The terms of the loss.
        loss: The loss itself.
        step: The current step.
        seconds: Time since the start.
        config: How to train, for what to measure.

    Returns:
        The record.
    """
    # An error of more than one half is a wrong decision, whichever the label.
    wrong = (statistics.error.abs() > 0.5).float().squeeze(1)
    train_accuracy = torch.stack([1 - w.mean() for w in wrong.split(statistics.domains.sizes)])
    z = network.features(target.x)
    unseen = linear_head(z, network.head(z), target.y, target.domain, loss=LOSS)
    distance = None
    if config.hessian_distance:
        distance = float(distances(inner_products(statistics, "hessian")).max())
    return Record(
        step=step,
        loss=float(loss),
        risk=float(terms.risk),
        penalty=0.0 if terms.penalty is None else float(terms.penalty),
        parts={name: float(value) for name, value in terms.parts.items()},
        train_accuracy=float(train_accuracy.mean()),
        test_accuracy=float((unseen.error.abs() <= 0.5).float().mean()),
        test_loss=float(unseen.risk.mean()),
        hessian_distance=distance,
        seconds=seconds,
    )
