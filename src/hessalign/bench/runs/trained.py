"""A trained model in use without the data it was trained on, and in forms for other programs.

Whatever the form, an exported network takes prepared inputs `x` [n, …] for any n and gives `logits`
[n, k], and the file carries the model's description (`CONTENT`), which names the classes and says
how images are prepared. Each is read back and compared before it is left there.
"""

from __future__ import annotations

import copy
import io
import json
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, final

import numpy as np
import torch
from torch import Tensor, nn

from hessalign._errors import MENDABLE, InputError, check_name
from hessalign._files import atomic_file
from hessalign._plugins import import_optional
from hessalign.bench.models import Network
from hessalign.bench.runs.given_inputs import Given, given_batches
from hessalign.bench.runs.machine import device_of
from hessalign.bench.runs.model_description import (
    DESCRIPTION,
    WEIGHTS,
    ModelDescription,
    TrainedModelError,
    load_weights,
    name_some,
    read_description,
    rebuild,
)
from hessalign.bench.runs.sampling import EVALUATION_BATCH

CONTENT: Final = DESCRIPTION
"""What the description is called in exported files."""

_Predict = Callable[[Tensor], Tensor]  # what was exported, read back: inputs to logits


class Outputs(NamedTuple):
    """What a model makes of some inputs, one row each."""

    names: tuple[str, ...]  # paths of images, or numbers of rows
    features: np.ndarray  # what enters the head
    probabilities: np.ndarray
    predicted: np.ndarray  # index of the most likely class


@final
class TrainedModel:
    """A trained network that takes what its evaluation took; `load` makes it.

    Inputs are arrays or tensors with one row per sample, a file of such rows (`.npy`, `.npz`,
    `.safetensors`), or image files: a path, a folder that is walked, or a list of both. Image files
    are read, resized and normalised as in evaluation. Arrays of images are for models that were
    trained on image files if they hold grey values: whole numbers 0 to 255 as uint8, or floats from
    0 to 1. Other arrays are taken as they are, as in training. A model that was trained on a table
    takes tables with the same columns (`.csv`, `.tsv`), or rows of their features with NaN where
    they are missing, and makes them ready as in training.

    Networks that adapt to a batch (ARM, MTL) predict as in evaluation: 64 samples at a time, in
    the order given, each batch taken as one domain.

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
        table = self.description.table
        for names, batch in given_batches(x, kind, shape, batch_size, unreadable, table):
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
        about, classes = self.description, len(self.classes_)
        shape = "×".join(map(str, about.input_shape))
        return f"TrainedModel({about.algorithm}, {about.inputs} {shape}, {classes} classes)"


def load(run: str | os.PathLike[str]) -> TrainedModel:
    """A trained model from the folder of its run; neither its data nor its job are needed.

    Args:
        run: The folder of a run that is complete, or a folder that holds one such run.

    Returns:
        The model, on the processor; `to` moves it. Where there is none, or it is damaged, the error
        says so.

    Example:
        >>> import tempfile
        >>> from hessalign.bench.models import NetworkSpec, make_network
        >>> from hessalign.bench.runs.model_description import write_model
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
    description = read_description(folder)
    network = rebuild(description)
    load_weights(network, folder)
    return TrainedModel(network, description)


def _find_model(folder: Path) -> Path:
    """The folder of a trained model, which may be named by the folder that holds it alone."""
    if (folder / DESCRIPTION).is_file():
        return folder
    found = sorted(path.parent for path in folder.glob(f"*/{DESCRIPTION}"))
    if len(found) == 1:
        return found[0]
    if found:
        raise TrainedModelError(
            f"Expected one trained model in {folder}, found {len(found)}: {name_some(found)}. Name "
            "one of them; or choose by `hessalign predict --select training-domain`."
        )
    if not folder.is_dir():
        raise TrainedModelError(f"Expected the folder of a run, found no folder {folder}.")
    raise TrainedModelError(
        f"Expected a trained model, {DESCRIPTION} and {WEIGHTS}, in {folder}, found none. "
        "`hessalign train --output OUTPUT` writes one when it ends; sweeps do if their "
        "specification says `keep_models: true` (or --keep-models). Of runs of "
        "version 0.1, which have a model.pt alone, `hessalign convert` converts those on Colored "
        "MNIST; others are to be trained again."
    )


def export_model(model: TrainedModel, path: Path, form: str) -> None:
    """Write a trained network in one of `FORMATS`, read it back and compare, and leave it there."""
    check_name("format", form, FORMATS)
    network, about = copy.deepcopy(model.network).cpu().eval(), model.description
    dtype = next(network.parameters()).dtype
    sizes = [3, 1, 2, 5]  # of the batches that are compared; the form is made from the first
    if about.adapted and about.batch_size:
        sizes.append(2 * about.batch_size)  # some cut a batch into as many (ARM)
    generator, shape = torch.Generator().manual_seed(0), about.input_shape
    batches = [torch.randn(size, *shape, generator=generator).to(dtype) for size in sizes]
    content = {
        **about.to_json(),
        "input": {"name": "x", "shape": ["n", *shape], "dtype": str(dtype).removeprefix("torch.")},
        "output": {
            "name": "logits",
            "probabilities": "sigmoid" if about.loss == "binary" else "softmax",
        },
    }
    description = json.dumps(content, ensure_ascii=False, allow_nan=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as partial:
        reason = _fault(form, network, batches, description, partial)
        if reason is not None:
            raise TrainedModelError(
                f"The network of {about.algorithm} cannot be exported as {form} for batches of any "
                f"size: {reason}. As safetensors every network can; hessalign.load uses it from "
                "Python."
            )


def _fault(
    form: str, network: nn.Module, batches: list[Tensor], description: str, path: Path
) -> str | None:
    """Write the file; why it is not the network, if so."""
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # torch warns about itself, and about what is compared here
        try:
            read = FORMATS[form](network, batches[0], description, path)
            for x in batches:
                found, expected = read(x), network(x)
                near = 1e-5 * float(expected.abs().max()) + 1e-7
                same = found.shape == expected.shape
                if not same or not torch.allclose(found, expected, rtol=1e-4, atol=near):
                    return f"it gives other logits for {len(x)} samples"
        except MENDABLE:
            raise
        except Exception as error:  # whatever torch and onnx stumble over
            return " ".join(str(error).split())[:200]
    return None


def _safetensors(network: nn.Module, _: Tensor, description: str, path: Path) -> _Predict:
    """The weights, for this network wherever it is built."""
    from safetensors.torch import load, save

    state = {name: value.detach().clone() for name, value in network.state_dict().items()}
    path.write_bytes(save(state, metadata={CONTENT: description}))
    back: dict[str, Tensor] = load(path.read_bytes())
    return lambda x: torch.func.functional_call(network, back, (x,))


def _torchscript(network: nn.Module, x: Tensor, description: str, path: Path) -> _Predict:
    """What the network computed for a batch; runs in libtorch without Python."""
    with path.open("wb") as file:
        traced = torch.jit.trace(network, x, check_trace=False)
        torch.jit.save(traced, file, _extra_files={CONTENT: description})
    back: _Predict = torch.jit.load(io.BytesIO(path.read_bytes()))
    return back


def _pt2(network: nn.Module, x: Tensor, description: str, path: Path) -> _Predict:
    """A program of torch.export."""
    buffer = io.BytesIO()
    torch.export.save(_program(network, x), buffer, extra_files={CONTENT: description})
    path.write_bytes(buffer.getvalue())
    back: _Predict = torch.export.load(io.BytesIO(path.read_bytes())).module()
    return back


def _onnx(network: nn.Module, x: Tensor, description: str, path: Path) -> _Predict:
    """A graph for onnxruntime and others."""
    onnx, onnxruntime, _ = (
        import_optional(name, f"Exporting to ONNX needs {name}: pip install 'hessalign[export]'.")
        for name in ("onnx", "onnxruntime", "onnxscript")  # the last is for torch
    )
    program: Any = torch.onnx.export(
        _program(network, x), dynamo=True, verbose=False, input_names=["x"], output_names=["logits"]
    )
    graph = program.model_proto
    entry = graph.metadata_props.add()
    entry.key, entry.value = CONTENT, description
    onnx.checker.check_model(graph)
    path.write_bytes(graph.SerializeToString())
    session = onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
    return lambda batch: torch.from_numpy(session.run(None, {"x": batch.numpy()})[0])


def _program(network: nn.Module, x: Tensor) -> torch.export.ExportedProgram:
    count = torch.export.Dim("n")
    return torch.export.export(network, (x,), dynamic_shapes={"x": {0: count}})


FORMATS: Final[Mapping[str, Callable[[nn.Module, Tensor, str, Path], _Predict]]] = {
    "safetensors": _safetensors,
    "torchscript": _torchscript,
    "onnx": _onnx,
    "pt2": _pt2,
}
"""Writers of a network, by the name of the form; each reads back what it wrote."""
