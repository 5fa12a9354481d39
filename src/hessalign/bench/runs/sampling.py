"""The inputs of a data set as a run asks for them: batches to train on, and all of a part in turn.

Every source of batches can be put back to where it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Final, Protocol, final

import numpy as np
import torch
from torch import Tensor

from hessalign._errors import InputError, InputTypeError, Warn
from hessalign._numbers import check_count
from hessalign._protocol import seed_hash
from hessalign.bench.algorithms import Batch
from hessalign.bench.data import Augmentation, DomainDataset, ImageReader, cache_folder, open_images
from hessalign.bench.models import Network
from hessalign.bench.models.sharded import sharing
from hessalign.bench.runs.image_batches import ImageChunks, ImageMinibatches
from hessalign.bench.runs.machine import device_of, free_memory
from hessalign.bench.runs.processes import shared_out, summed
from hessalign.curvature.losses import HeadLoss
from hessalign.diagnosis.preparation import Preparation

EVALUATION_BATCH: Final = 64
"""Samples at a time in evaluation, as in DomainBed: networks that adapt to a batch see so many."""

_Chunks = Sequence[Tensor] | ImageChunks
"""Inputs a few at a time, each to be asked for by its number."""


class Sampler(Protocol):
    """A source of batches."""

    def draw(self) -> Batch:
        """The next batch."""

    def state_dict(self) -> dict[str, Tensor]:
        """Its position."""

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go back to a position, which `state_dict` gave."""


def in_use(sampler: Sampler) -> AbstractContextManager[object]:
    """End the processes that make its batches, if it has some, when the block ends."""
    return sampler if isinstance(sampler, ImageMinibatches) else nullcontext()


@final
class Ahead:
    """Batches of a sampler, on an accelerator each on its way there while another is in use.

    Its position is that of the batch which is drawn next, also if that has been fetched.
    """

    def __init__(self, sampler: Sampler, device: torch.device) -> None:
        self._sampler, self._device = sampler, device
        self._fetched: tuple[dict[str, Tensor], Batch] | None = None  # the position before it
        self._last: tuple[Batch, Batch] | None = None  # as it was drawn, and there
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def draw(self) -> Batch:
        """The next batch, on the device."""
        if self._fetched is None:
            return self._move(self._sampler.draw())
        _, batch = self._fetched
        self._fetched = None
        if self._stream is not None:
            now = torch.cuda.current_stream(self._device)
            now.wait_stream(self._stream)
            batch.use_in(now)
        return batch

    def fetch(self) -> None:
        """Draw what comes next, and copy it while the device computes; on a processor nothing."""
        if self._device.type == "cpu":
            return
        position, batch = self._sampler.state_dict(), self._sampler.draw()
        with nullcontext() if self._stream is None else torch.cuda.stream(self._stream):
            self._fetched = position, self._move(batch)

    def _move(self, batch: Batch) -> Batch:
        if batch.y.device == self._device:
            return batch
        last, like = self._last or (None, None)
        if like is not None and batch is last:  # as all samples are
            return like
        known = like if last is not None and batch.domain is last.domain else None
        moved = batch.to(self._device, known)
        self._last = batch, moved
        return moved

    def state_dict(self) -> dict[str, Tensor]:
        """The position of the next batch."""
        return self._sampler.state_dict() if self._fetched is None else self._fetched[0]

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go to a position."""
        self._fetched = None
        self._sampler.load_state_dict(state)


@final
class FullBatch:
    """All samples at every step."""

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
    """Samples drawn with replacement, `batch_size` of every domain; the seed decides which.

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
        check_count(batch_size, "a batch size")
        if empty := [index for index, labels in enumerate(y) if len(labels) == 0]:
            raise InputError(f"Expected samples in every domain, domain {empty[0]} has none.")
        self.x, self.y, self.batch_size = x, y, batch_size
        self.generator = torch.Generator().manual_seed(seed)
        domain = torch.arange(len(y)).repeat_interleave(batch_size)
        self._form = Batch(domain, domain, domain).to(y[0].device)  # what is the same in all

    def draw(self) -> Batch:
        """The next batch, one forward pass for all domains."""
        size, generator = (self.batch_size,), self.generator
        rows = [
            torch.randint(len(labels), size, generator=generator).to(labels.device)
            for labels in self.y
        ]
        x, y = (
            torch.cat([values[index] for values, index in zip(part, rows, strict=True)])
            for part in (self.x, self.y)
        )
        return self._form.holding(x, y)

    def state_dict(self) -> dict[str, Tensor]:
        """The state of the generator."""
        return {"generator": self.generator.get_state()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from a position."""
        self.generator.set_state(state["generator"])


@final
class TensorInputs:
    """Inputs of all domains that are in memory: features, made ready if so, or small images."""

    def __init__(self, data: DomainDataset, preparation: Preparation | None = None) -> None:
        self.x: list[Tensor] = []
        for domain in data.domains:
            if not isinstance(domain.inputs, Tensor):
                raise InputTypeError(f"Expected tensors as inputs of {data.name}, got files.")
            x = domain.inputs.float()
            self.x.append(x if preparation is None else preparation.apply(x))
        self.y = [domain.labels for domain in data.domains]

    def suit(self, device: torch.device, workers: int | None) -> None:
        """Move to the device what is read, if that leaves most of its memory free."""
        if 2 * sum(x.nbytes for x in self.x) <= free_memory(device) / 4:
            self.x, self.y = ([each.to(device) for each in part] for part in (self.x, self.y))

    def sampler(self, rows: Mapping[int, np.ndarray], size: int, seed: int) -> Sampler:
        """Batches of `size` samples per domain, from the given rows of each training domain."""
        chosen = [(domain, torch.from_numpy(each)) for domain, each in rows.items()]
        x, y = ([part[domain][each] for domain, each in chosen] for part in (self.x, self.y))
        return Minibatches(x, y, size, seed)

    def chunks(self, domain: int, rows: np.ndarray, *, augmented: bool = False) -> _Chunks:
        """Some inputs of a domain, `EVALUATION_BATCH` at a time, to be gone through repeatedly."""
        return torch.split(self.x[domain][torch.from_numpy(rows)], EVALUATION_BATCH)


@final
class ImageInputs:
    """Images from their cache where there is one, else from their files; see `TensorInputs`."""

    def __init__(
        self, data: DomainDataset, size: int, seed: int, *, augment: bool, warn: Warn
    ) -> None:
        if data.root is None:
            self.reader = ImageReader(data, size, None, allow_truncated=False)
            remedy = (
                "If it names the folder it comes from as its root, `hessalign datasets prepare` "
                "can keep decoded images beside that, which makes training several times faster."
            )
        else:
            folder = cache_folder(data.root, size, data.variant)
            self.reader = open_images(data, folder, size, warn=warn)
            which = f"{data.root} --preset {data.name}" if data.variant else data.root
            remedy = (
                f"`hessalign datasets prepare {which} --size {size}` decodes it once and makes "
                "training several times faster."
            )
        if not self.reader.cached:
            warn(f"{data.name} is read image by image. {remedy}")
        self.seed, self.augment, self.augmentation = seed, augment, Augmentation(size=size)
        self.workers: int | None = None

    def suit(self, device: torch.device, workers: int | None) -> None:
        """Have so many processes make batches; None for what suits the machine."""
        self.workers = workers

    def sampler(self, rows: Mapping[int, np.ndarray], size: int, seed: int) -> Sampler:
        """Batches made ahead by one pool of workers, to be closed."""
        change = self.augmentation if self.augment else None
        return ImageMinibatches(self.reader, rows, size, seed, change, self.workers)

    def chunks(self, domain: int, rows: np.ndarray, *, augmented: bool = False) -> _Chunks:
        """Some images of a domain."""
        change, seed = self.augmentation if augmented else None, seed_hash(self.seed, "evaluation")
        return ImageChunks(self.reader, domain, rows, EVALUATION_BATCH, change, seed)


Inputs = TensorInputs | ImageInputs
"""The inputs of all domains."""


def accuracy_and_loss(
    network: Network, chunks: _Chunks, labels: Tensor, loss: HeadLoss | None = None
) -> tuple[float, float]:
    """How often a network in evaluation mode is right, and its mean loss, 0 if not asked for."""
    if not len(labels):
        return float("nan"), float("nan")
    device, right, total = device_of(network), 0, 0.0
    split = labels.split(EVALUATION_BATCH)
    own = shared_out(len(chunks))
    with sharing(None):  # processes share out whole chunks, to which a network may adapt
        for number in own:
            logits = network(chunks[number].to(device)).cpu()
            # A single one tells the second of two classes.
            predicted = logits.argmax(1) if logits.shape[1] > 1 else logits.squeeze(1) > 0
            right += int((predicted == split[number]).sum())
            if loss is not None:
                total += float(loss.values(logits, split[number]).double().sum())
    return summed(right) / len(labels), summed(total) / len(labels)
