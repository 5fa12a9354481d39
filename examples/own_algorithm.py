"""An algorithm of your own in the training engine: one class, nothing to register.

Any `AbstractObjective` trains in the loop of the package, with its schedules, checkpoints and exact
resumption. This one aligns the spread of the loss inside each domain, and the gradients.

    python examples/own_algorithm.py --folder outputs/own
"""

import argparse
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import nn

from hessalign.alignment import gradient_dispersion
from hessalign.bench.algorithms import AbstractObjective, ObjectiveTerms, PenaltySchedule, Step
from hessalign.bench.data import make_shifted_data
from hessalign.bench.models import Network
from hessalign.bench.runs import LoopConfig, Minibatches, RunFolder, train


@dataclass(frozen=True)
class SpreadConfig:
    """How much the spread of the loss counts besides the gradients."""

    spread: float = 0.1


class Spread(AbstractObjective):
    """Mean risk, plus dispersions of the gradients and of the losses' deviations."""

    def __init__(self, config: SpreadConfig, network: Network) -> None:
        super().__init__()
        self.config = config
        self.network = network

    def terms(self, step: Step) -> ObjectiveTerms:
        """The loop adds the risk and the scheduled weight times the penalty."""
        head = step.statistics  # closed-form derivatives of every domain, computed when asked for
        deviations = torch.stack([part.std() for part in head.losses.split(step.batch.sizes)])
        spread = (deviations - deviations.mean()).square().mean()
        gradient = gradient_dispersion(head)
        parts = {"spread": spread, "gradient": gradient}
        return ObjectiveTerms(head.risk.mean(), gradient + self.config.spread * spread, parts)


def make_network(seed: int) -> Network:
    """Ten inputs, sixteen features, one logit."""
    torch.manual_seed(seed)
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
    own = SpreadConfig()
    with ExitStack() as stack:
        folder = None
        if options.folder is not None:
            described = {"algorithm": "spread", **asdict(own), "steps": options.steps}
            folder = stack.enter_context(RunFolder(options.folder, described, warn=print))
        records = train(
            Spread(own, make_network(seed=0)),
            Minibatches([d.x for d in data.source], [d.y for d in data.source], 64, seed=0),
            evaluate,
            config,
            torch.Generator().manual_seed(0),
            folder,
        )
    for record in records:
        terms = " ".join(f"{name}={value:.4f}" for name, value in record.terms.items())
        print(f"step {record.step:3}: unseen accuracy {record.metrics['unseen']:.3f}, {terms}")


if __name__ == "__main__":
    main()
