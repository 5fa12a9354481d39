"""Where the batches of a run come from; every source can be put back to where it was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, final

import torch
from torch import Tensor

from hessalign._errors import InputError
from hessalign.bench.algorithms import Batch


class Sampler(Protocol):
    """A source of batches."""

    def draw(self) -> Batch:
        """The next batch."""

    def state_dict(self) -> dict[str, Tensor]:
        """Its position."""

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go back to a position, which `state_dict` gave."""


@final
class FullBatch:
    """All samples at every step.

    Args:
        batch: The samples.
    """

    def __init__(self, batch: Batch) -> None:
        self.batch = batch

    def draw(self) -> Batch:
        """All samples."""
        return self.batch

    def state_dict(self) -> dict[str, Tensor]:
        """Nothing: there is one batch only."""
        return {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Nothing to do."""


@final
class Minibatches:
    """Samples drawn with replacement, the same number from every domain.

    Args:
        x: Inputs of each domain.
        y: Labels of each domain.
        batch_size: Samples per domain and step.
        seed: Determines the draws.

    Raises:
        InputError: If a domain is empty or the batch size is not positive.

    Example:
        >>> x, y = [torch.zeros(5, 2), torch.ones(7, 2)], [torch.zeros(5), torch.ones(7)]
        >>> batch = Minibatches(x, y, batch_size=3, seed=0).draw()
        >>> batch.x.shape, batch.domain.tolist()
        (torch.Size([6, 2]), [0, 0, 0, 1, 1, 1])
    """

    def __init__(
        self, x: Sequence[Tensor], y: Sequence[Tensor], batch_size: int, seed: int
    ) -> None:
        if batch_size < 1:
            raise InputError(f"Expected a batch size of 1 or more, got {batch_size}.")
        for index, labels in enumerate(y):
            if len(labels) == 0:
                raise InputError(f"Expected samples in every domain, domain {index} has none.")
        self.x, self.y, self.batch_size = x, y, batch_size
        self.generator = torch.Generator().manual_seed(seed)
        self.domain = torch.arange(len(y)).repeat_interleave(batch_size)

    def draw(self) -> Batch:
        """The next batch, one forward pass for all domains."""
        rows = [
            torch.randint(len(labels), (self.batch_size,), generator=self.generator)
            for labels in self.y
        ]
        x = torch.cat([inputs[index] for inputs, index in zip(self.x, rows, strict=True)])
        y = torch.cat([labels[index] for labels, index in zip(self.y, rows, strict=True)])
        return Batch(x, y, self.domain)

    def state_dict(self) -> dict[str, Tensor]:
        """The state of the generator."""
        return {"generator": self.generator.get_state()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from a position."""
        self.generator.set_state(state["generator"])
