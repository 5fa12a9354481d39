"""The head of a trained run with what enters it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import final

import torch
from torch import Tensor, nn

from hessalign._errors import InputError
from hessalign.bench.runs.run import Run, head_samples, load_run
from hessalign.bench.runs.run_folder import find_run


@final
@dataclass(frozen=True, eq=False)
class TrainedHead:
    """A linear head and samples of every domain as it sees them.

    Attributes:
        z: Features that enter the head.
        y: Targets.
        domain: The number of each sample's domain.
        head: The head.
        loss: The loss it was trained with, by name.
        names: Of the domains, by number.
        targets: Numbers of the domains that were not trained on.
        algorithm: Name of the algorithm it was trained with.
        seed: The seed or trial.
    """

    z: Tensor
    y: Tensor
    domain: Tensor
    head: nn.Linear
    loss: str
    names: tuple[str, ...]
    targets: tuple[int, ...]
    algorithm: str
    seed: int

    @property
    def logits(self) -> Tensor:
        """What the head makes of the samples."""
        with torch.no_grad():
            outputs: Tensor = self.head(self.z)
        return outputs

    @property
    def sources(self) -> tuple[int, ...]:
        """Numbers of the domains that were trained on."""
        return tuple(each for each in range(len(self.names)) if each not in self.targets)


def load_trained_head(
    folder: Path, samples: int | None = None, seed: int = 0, data_dir: Path | None = None
) -> TrainedHead:
    """The head of a complete run, from its folder.

    Args:
        folder: Of a run that kept its model, see `find_run`.
        samples: Samples of each domain, at most; all if None.
        seed: Of the draw.
        data_dir: The folder that holds the data set now; None if it is where it was.

    Returns:
        The head. Where there is no such run, or its data are not found, a RunFolderError is raised.
    """
    return trained_head(load_run(find_run(folder), data_dir), samples, seed)


def trained_head(
    run: Run, samples: int | None = None, seed: int = 0, *, held_out: bool = False
) -> TrainedHead:
    """The head of a run.

    Args:
        run: The run, with its trained network.
        samples: Samples of each domain, at most; all if None.
        seed: Of the draw.
        held_out: Whether to take only the part of each domain that is held out.

    Returns:
        The head.

    Raises:
        InputError: If the head is not linear.
    """
    head, plan = run.network.head, run.plan
    if not isinstance(head, nn.Linear):
        raise InputError(f"Expected a run with a linear head, got {type(head).__name__}.")
    return TrainedHead(
        *head_samples(run, samples, seed, held_out=held_out),
        head,
        plan.loss,
        plan.data.domain_names,
        plan.job.test_domains,
        plan.info.name,
        plan.job.trial_seed,
    )
