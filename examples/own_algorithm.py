"""An algorithm of your own: one class, nothing to register.

Any `AbstractObjective` trains in the loop of the package, with its schedules, checkpoints and exact
resumption. This one aligns the spread of the loss inside each domain, and the gradients.

    python examples/own_algorithm.py --folder outputs/own

Every verb takes it by its module, here from the folder of this file, with options and search space:

    hessalign train --algorithm own_algorithm:Spread --dataset PACS --data-dir data ... spread=1
"""

import argparse
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import nn

from hessalign.alignment import gradient_dispersion
from hessalign.bench.algorithms import (
    AbstractObjective,
    NonNegative,
    ObjectiveTerms,
    Options,
    PenaltySchedule,
    Power,
    SearchSpace,
    Setting,
    Step,
)
from hessalign.bench.data import make_shifted_data
from hessalign.bench.models import Network
from hessalign.bench.runs import LoopConfig, Minibatches, RunFolder, train
from hessalign.curvature import make_loss


@dataclass(frozen=True)
class SpreadConfig(Options):
    """How much the spread of the loss counts besides the gradients."""

    spread: NonNegative = 0.1


class Spread(AbstractObjective):
    """Mean risk, plus dispersions of the gradients and of the losses' variances."""

    config: SpreadConfig = SpreadConfig()
    search: ClassVar[SearchSpace] = {"spread": Power(10, -2, 1)}

    def terms(self, step: Step) -> ObjectiveTerms:
        """The loop adds the risk and the scheduled weight times the penalty."""
        head = step.statistics  # closed-form derivatives of every domain, computed when asked for
        losses = make_loss(step.loss).values(step.logits, step.batch.y)
        parts = losses.split(step.batch.sizes)
        variances = torch.stack([part.var(correction=0) for part in parts])
        spread = (variances - variances.mean()).square().mean()
        gradient = gradient_dispersion(head)
        parts = {"spread": spread, "gradient": gradient}
        return ObjectiveTerms(head.risk.mean(), gradient + self.config.spread * spread, parts)


def make_network(**_: int) -> Network:
    """Ten inputs, sixteen features, one logit."""
    torch.manual_seed(0)
    return Network(nn.Sequential(nn.Linear(10, 16), nn.ReLU()), nn.Linear(16, 1))


def main() -> None:
    """Train, and continue where an earlier call with the same folder stopped."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="where to keep records and checkpoints")
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args()
    data = make_shifted_data("correlation", seed=0, domains=3)

    def evaluate(network: Network) -> dict[str, float]:
        right = (network(data.target.x).squeeze(1) > 0).long() == data.target.y
        return {"unseen": float(right.double().mean())}

    config = LoopConfig(
        steps=options.steps,
        learning_rate=0.01,
        loss="binary",
        l2=1e-4,
        schedule=PenaltySchedule(before=0.0, after=1000.0, jump=50),
    )
    own, generator = SpreadConfig(), torch.Generator().manual_seed(0)
    setting = Setting(make_network, 1, len(data.source), "binary", options.steps, generator)
    with ExitStack() as stack:
        folder = None
        if options.folder is not None:
            described = {"algorithm": "spread", **asdict(own), "steps": options.steps}
            folder = stack.enter_context(RunFolder(options.folder, described, warn=print))
        records = train(
            Spread(own, setting),
            Minibatches([d.x for d in data.source], [d.y for d in data.source], 64, seed=0),
            evaluate,
            config,
            generator,
            folder,
        )
    for record in records:
        terms = " ".join(f"{name}={value:.4f}" for name, value in record.terms.items())
        print(f"step {record.step:3}: unseen accuracy {record.metrics['unseen']:.3f}, {terms}")


if __name__ == "__main__":
    main()
