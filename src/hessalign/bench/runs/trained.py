"""A trained model by itself: on disk, and in use without the data it was trained on.

    model.safetensors  the parameters and buffers of the network that predicts
    model.json         written after it: what the network is and what it takes

Nothing in these files is run as code. What they name is made by this package, or, for a backbone or
an algorithm of one's own (`package.module:Name`), by a module that Python finds.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Callable, Iterator
from math import prod
from pathlib import Path
from typing import Final, NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from hessalign._errors import InputError
from hessalign._files import write_atomically
from hessalign.bench.algorithms import Setting, find_algorithm, make_config
from hessalign.bench.models import Network, NetworkSpec, make_coloured_mlp, make_network
from hessalign.bench.runs.given_inputs import Given, given_batches
from hessalign.bench.runs.inputs import EVALUATION_BATCH
from hessalign.bench.runs.machine import device_of
from hessalign.bench.runs.model_description import (
    ColouredMlp,
    ModelDescription,
    TrainedModelError,
    read_description,
    write_description,
)

_WEIGHTS: Final = "model.safetensors"
DESCRIPTION: Final = "model.json"

_SHOWN: Final = 3
"""How many runs an error names."""


class Outputs(NamedTuple):
    """What a model makes of some inputs, one row each.

    Attributes:
        names: Paths of the images, or numbers of the rows.
        features: What enters the head.
        probabilities: Of each class.
        predicted: Index of the most likely class.
    """

    names: tuple[str, ...]
    features: np.ndarray
    probabilities: np.ndarray
    predicted: np.ndarray


@final
class TrainedModel:
    """A trained network that takes what its evaluation took; `load` makes it.

    Inputs are arrays or tensors with one row per sample, a file of such rows (`.npy`, `.npz`,
    `.safetensors`), or image files: a path, a folder that is walked, or a list of both. Image files
    are read, resized and normalised as in evaluation. Arrays of images are for models that were
    trained on image files if they hold grey values: whole numbers 0 to 255 as uint8, or floats from
    0 to 1. Other arrays are taken as they are, as in training.

    Networks that adapt to a batch (ARM, MTL) predict as in evaluation: 64 samples at a time, in
    the order given, each batch taken as one domain.

    Args:
        network: The network.
        description: What it is.

    Attributes:
        network: The torch module, in evaluation mode; prepared inputs to logits.
        description: What it is: algorithm, domains, accuracies, job.
        classes_: Names of the classes.
    """

    def __init__(self, network: Network, description: ModelDescription) -> None:
        self.network = network.eval()
        self.description = description
        self.classes_: np.ndarray = np.array(description.classes)

    def to(self, device: torch.device | str) -> TrainedModel:
        """Move the network, which inputs follow; this model."""
        self.network.to(device)
        return self

    def predict(self, x: Given, batch_size: int = EVALUATION_BATCH) -> np.ndarray:
        """The most likely class of each sample, an element of `classes_`."""
        predicted: np.ndarray = self.classes_[self._all(x, batch_size).predicted]
        return predicted

    def predict_proba(self, x: Given, batch_size: int = EVALUATION_BATCH) -> np.ndarray:
        """How likely each class is: a row per sample, a column per element of `classes_`."""
        return self._all(x, batch_size).probabilities

    def features(self, x: Given, batch_size: int = EVALUATION_BATCH) -> np.ndarray:
        """What enters the head, one row per sample."""
        return self._all(x, batch_size).features

    def outputs(
        self,
        x: Given,
        batch_size: int = EVALUATION_BATCH,
        unreadable: Callable[[InputError], None] | None = None,
    ) -> Iterator[Outputs]:
        """Everything the model tells, batch by batch, for more inputs than fit in memory.

        Args:
            x: Arrays, tensors, or image files.
            batch_size: Samples at a time.
            unreadable: Called with what is wrong with an image that cannot be read, which is then
                left out; None raises it.

        Yields:
            What it makes of a batch.
        """
        kind, shape = self.description.inputs, self.description.input_shape
        for names, batch in given_batches(x, kind, shape, batch_size, unreadable):
            yield Outputs(names, *self._of(batch))

    def _all(self, x: Given, batch_size: int) -> Outputs:
        names, *arrays = zip(*self.outputs(x, batch_size), strict=True)
        rows = (np.concatenate(each) for each in arrays)
        return Outputs(tuple(name for batch in names for name in batch), *rows)

    def _of(self, x: Tensor) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Features, probabilities and the most likely class of prepared inputs."""
        example = next(self.network.parameters())
        with torch.no_grad():  # classes by the logits: probabilities may be equal by rounding
            z = self.network.features(x.to(device_of(self.network), example.dtype))
            logits = self.network.head(z)
            if self.description.loss == "binary":
                probabilities = torch.cat([(-logits).sigmoid(), logits.sigmoid()], dim=1)
                predicted = (logits > 0).long().squeeze(1)
            else:
                probabilities, predicted = logits.softmax(1), logits.argmax(1)
        return z.cpu().numpy(), probabilities.cpu().numpy(), predicted.cpu().numpy()

    def __repr__(self) -> str:
        about = self.description
        shape = "×".join(map(str, about.input_shape))
        return (
            f"TrainedModel({about.algorithm}, {about.inputs} {shape}, {len(about.classes)} classes)"
        )


def write_model(folder: Path, description: ModelDescription, network: Network) -> None:
    """Keep a trained network, so that `load` needs nothing else; its description comes last."""
    from safetensors.torch import save

    state = {name: value.detach().cpu().clone() for name, value in network.state_dict().items()}
    content = save(state)
    write_atomically(folder / _WEIGHTS, content)
    digest = hashlib.sha256(content).hexdigest()
    adapted = repr(_plain_network(description)) != repr(network)
    stored = dataclasses.replace(description, adapted=adapted, weights_sha256=digest)
    write_description(folder / DESCRIPTION, stored)


def load(run: str | os.PathLike[str]) -> TrainedModel:
    """A trained model from the folder of its run; neither its data nor its job are needed.

    Args:
        run: The folder of a run that is complete, or a folder that holds one such run.

    Returns:
        The model, on the processor; `to` moves it. Where there is none, or it is damaged, the error
        says so.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> description = ModelDescription(NetworkSpec((4,), outputs=2), classes=("cat", "dog"))
        >>> write_model(folder, description, make_network(NetworkSpec((4,), outputs=2)))
        >>> model = load(folder)
        >>> model
        TrainedModel(erm, arrays 4, 2 classes)
        >>> probabilities = model.predict_proba(np.ones((3, 4)))
        >>> probabilities.shape, model.predict(np.ones((3, 4)))[0] in model.classes_
        ((3, 2), True)
    """
    folder = _find_model(Path(run))
    description = read_description(folder / DESCRIPTION)
    network = _rebuilt(description)
    load_weights(network, folder)
    return TrainedModel(network, description)


def load_weights(
    network: Network,
    folder: Path,
    what: str = f"the network that {DESCRIPTION} describes",
    remedy: str = "If a backbone of your own has changed, restore it as it was in training.",
) -> None:
    """Give a network, in place, the parameters of the model in a folder, if they fit."""
    path, digest = folder / _WEIGHTS, read_description(folder / DESCRIPTION).weights_sha256
    state = _weights(path, digest)
    try:
        network.load_state_dict(state, assign=True)
    except RuntimeError as error:
        reason = " ".join((str(error).splitlines() or [""])[-1].split()).rstrip(".")
        raise TrainedModelError(
            f"The weights {path} do not fit {what}: {reason}. {remedy}"
        ) from error


def _find_model(folder: Path) -> Path:
    """The folder of a trained model, which may be named by the folder that holds it alone."""
    if (folder / DESCRIPTION).is_file():
        return folder
    found = sorted(path.parent for path in folder.glob(f"*/{DESCRIPTION}"))
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(path.name for path in found[:_SHOWN]) + ", …" * (len(found) > _SHOWN)
        raise TrainedModelError(
            f"Expected one trained model in {folder}, found {len(found)}: {names}. Name one of "
            "them; or choose by `hessalign predict --select training-domain`."
        )
    if not folder.is_dir():
        raise TrainedModelError(f"Expected the folder of a run, found no folder {folder}.")
    raise TrainedModelError(
        f"Expected a trained model, {DESCRIPTION} and {_WEIGHTS}, in {folder}, found none. "
        "`hessalign train --output OUTPUT` writes one when it ends; sweeps do if their "
        "specification says `keep_models: true` (or --keep-models). Of runs of "
        "version 0.1, which have a model.pt alone, `hessalign convert` converts those on Colored "
        "MNIST; others are to be trained again."
    )


def _plain_network(
    description: ModelDescription, *, extra_channels: int = 0, head_factor: int = 1
) -> Network:
    """The network with new parameters, as an algorithm asks for it; no weights are looked for."""
    spec = description.network
    with torch.random.fork_rng(devices=[]):
        if isinstance(spec, NetworkSpec):
            bare = dataclasses.replace(spec, weights=None)
            return make_network(bare, extra_channels=extra_channels, head_factor=head_factor)
        channels, *size = spec.input_shape
        pixels = int(np.prod(size))
        generator = torch.Generator().manual_seed(0)
        return make_coloured_mlp(
            channels + extra_channels, pixels, spec.width, generator, head_factor
        )


def _rebuilt(description: ModelDescription) -> Network:
    """The network that predicts, with new parameters."""

    def make(*, extra_channels: int = 0, head_factor: int = 1) -> Network:
        return _plain_network(description, extra_channels=extra_channels, head_factor=head_factor)

    if not description.adapted:
        return make()
    setting = Setting(
        make,
        outputs=description.outputs,
        domains=max(1, len(description.trained_on)),
        loss=description.loss,
        steps=description.steps,
        generator=torch.Generator().manual_seed(0),
        input_shape=_setting_shape(description),
        batch_size=description.batch_size,
    )
    info = find_algorithm(description.algorithm)
    with torch.random.fork_rng(devices=[]):
        return info.make(make_config(description.algorithm, description.options), setting).network


def _setting_shape(description: ModelDescription) -> tuple[int, ...]:
    """The shape of inputs that the algorithm is told: pixels of Colored MNIST are in one row."""
    shape = description.input_shape
    return (shape[0], prod(shape[1:])) if isinstance(description.network, ColouredMlp) else shape


def _weights(path: Path, digest: str) -> dict[str, Tensor]:
    """The content of a file of weights, if it is the one with this checksum."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    remedy = "Copy the run's folder anew, or train it again."
    if not path.is_file():
        raise TrainedModelError(
            f"Expected the weights of the model in {path}, found none. {remedy}"
        )
    content = path.read_bytes()
    found = hashlib.sha256(content).hexdigest()
    if found != digest:
        raise TrainedModelError(
            f"Expected the SHA-256 sum {digest[:12]}… of {path}, found {found[:12]}…: the file is "
            f"damaged, or of another model than {DESCRIPTION}. {remedy}"
        )
    try:
        return load(content)
    except SafetensorError as error:
        raise TrainedModelError(f"Expected weights in {path}: {error}. {remedy}") from error
