"""The inputs of a data set as training and evaluation ask for them: rows of tensors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Protocol, final

import numpy as np
import torch
from torch import Tensor

from hessalign._errors import InputTypeError
from hessalign.bench.data import DomainDataset
from hessalign.bench.models import Network
from hessalign.bench.runs.device import device_of
from hessalign.bench.runs.sampling import Minibatches, Sampler

EVALUATION_BATCH: Final = 64
"""Samples at a time in evaluation, as in DomainBed: networks that adapt to a batch see so many."""


class Inputs(Protocol):
    """The inputs of all domains.

    Attributes:
        shape: Shape of one input.
    """

    shape: tuple[int, ...]

    def sampler(self, rows: Sequence[tuple[int, np.ndarray]], size: int, seed: int) -> Sampler:
        """A source of training batches.

        Args:
            rows: The training domains, each with the samples to draw from.
            size: Samples per domain and step.
            seed: Determines the draws.

        Returns:
            The source.
        """

    def chunks(self, domain: int, rows: np.ndarray, *, augmented: bool = False) -> Iterable[Tensor]:
        """Some inputs of a domain as evaluation sees them, a few at a time.

        Args:
            domain: The number of the domain.
            rows: Which of its samples.
            augmented: Whether images are changed at random.

        Returns:
            `EVALUATION_BATCH` inputs at a time, the last time perhaps fewer; to be gone through
            as often as needed.
        """

    def close(self) -> None:
        """End what works in the background."""


@final
class TensorInputs:
    """Inputs that are in memory: features, or small images.

    Args:
        data: The data set; its inputs are tensors.
    """

    def __init__(self, data: DomainDataset) -> None:
        self.x: list[Tensor] = []
        for domain in data.domains:
            if not isinstance(domain.inputs, Tensor):
                raise InputTypeError(f"Expected tensors as inputs of {data.name}, got files.")
            self.x.append(domain.inputs.float())
        self.y = [domain.labels for domain in data.domains]
        self.shape = tuple(self.x[0].shape[1:])

    def sampler(self, rows: Sequence[tuple[int, np.ndarray]], size: int, seed: int) -> Sampler:
        """Batches drawn with replacement."""
        x = [self.x[domain][torch.from_numpy(chosen)] for domain, chosen in rows]
        y = [self.y[domain][torch.from_numpy(chosen)] for domain, chosen in rows]
        return Minibatches(x, y, size, seed)

    def chunks(self, domain: int, rows: np.ndarray, *, augmented: bool = False) -> Iterable[Tensor]:
        """Some inputs of a domain, a few at a time."""
        gathered: Tensor = self.x[domain][torch.from_numpy(rows)]
        return list(torch.split(gathered, EVALUATION_BATCH))

    def close(self) -> None:
        """Nothing works in the background."""


def predicted_classes(logits: Tensor) -> Tensor:
    """The most likely class of each sample; a single logit tells the second of two classes."""
    return logits.argmax(1) if logits.shape[1] > 1 else (logits.squeeze(1) > 0).long()


def accuracy(network: Network, chunks: Iterable[Tensor], labels: Tensor) -> float:
    """How often a network in evaluation mode is right; NaN if there are no samples."""
    device = device_of(network)
    predicted = [predicted_classes(network(x.to(device))).cpu() for x in chunks]
    if not predicted:
        return float("nan")
    return float((torch.cat(predicted) == labels).double().mean())
