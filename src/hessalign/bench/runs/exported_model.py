"""A trained network in forms that other programs read, each checked before it is left there.

Whatever the form, the network takes prepared inputs `x` [n, …] for any n and gives `logits` [n, k],
and the file carries the model's description (`CONTENT`), which names the classes and says how
images are prepared.
"""

from __future__ import annotations

import copy
import io
import json
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from hessalign._errors import MENDABLE, MissingPackageError
from hessalign._files import atomic_file
from hessalign._names import check_name
from hessalign.bench.runs.model_description import TrainedModelError
from hessalign.bench.runs.trained import TrainedModel

CONTENT: Final = "model.json"
"""What the description is called in the files."""

_EXAMPLE: Final = 3
"""Samples of the batch that is followed through the network."""

_CHECKED: Final = (1, 2, 5)
"""Sizes of the batches on which the result is compared with the network."""

_Predict = Callable[[Tensor], Tensor]
"""What was exported, read back: inputs to logits."""


def export_model(model: TrainedModel, path: Path, form: str) -> None:
    """Write a trained network in one of `FORMATS`, read it back and compare, and leave it there."""
    check_name("format", form, FORMATS)
    network, shape = copy.deepcopy(model.network).cpu().eval(), model.description.input_shape
    dtype = next(network.parameters()).dtype
    generator = torch.Generator().manual_seed(0)
    sizes = [_EXAMPLE, *_CHECKED]
    if model.description.adapted and model.description.batch_size:
        sizes.append(2 * model.description.batch_size)  # some cut a batch into as many (ARM)
    batches = [torch.randn(size, *shape, generator=generator).to(dtype) for size in sizes]
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as partial:
        reason = _fault(form, network, batches, _describe(model), partial)
        if reason is not None:
            raise TrainedModelError(
                f"The network of {model.description.algorithm} cannot be exported as {form} for "
                f"batches of any size: {reason}. As safetensors every network can; hessalign.load "
                "uses it from Python."
            )


def _fault(
    form: str, network: nn.Module, batches: list[Tensor], description: str, path: Path
) -> str | None:
    """Write the file; why it is not the network, if so."""
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # torch warns about itself, and about what is compared here
        try:
            read = FORMATS[form](network, batches[0], description, path)
            different = [len(x) for x in batches if not _close(read(x), network(x))]
        except MENDABLE:
            raise
        except Exception as error:  # whatever torch and onnx stumble over
            return " ".join(str(error).split())[:200]
    return f"it gives other logits for {different[0]} samples" if different else None


def _close(found: Tensor, expected: Tensor) -> bool:
    scale = float(expected.abs().max())
    return found.shape == expected.shape and bool(
        torch.allclose(found, expected, rtol=1e-4, atol=1e-5 * scale + 1e-7)
    )


def _describe(model: TrainedModel) -> str:
    about = model.description
    dtype = str(next(model.network.parameters()).dtype).removeprefix("torch.")
    return json.dumps(
        {
            **about.to_json(),
            "input": {"name": "x", "shape": ["n", *about.input_shape], "dtype": dtype},
            "output": {
                "name": "logits",
                "probabilities": "sigmoid" if about.loss == "binary" else "softmax",
            },
        },
        ensure_ascii=False,
        allow_nan=False,
    )


def _safetensors(network: nn.Module, _: Tensor, description: str, path: Path) -> _Predict:
    """The weights, for this network wherever it is built."""
    from safetensors.torch import load, save

    state = {name: value.detach().clone() for name, value in network.state_dict().items()}
    content = save(state, metadata={CONTENT: description})
    path.write_bytes(content)
    back: Mapping[str, Tensor] = load(path.read_bytes())
    return lambda x: torch.func.functional_call(network, dict(back), (x,))


def _torchscript(network: nn.Module, x: Tensor, description: str, path: Path) -> _Predict:
    """What the network computed for a batch; runs in libtorch without Python."""
    buffer = io.BytesIO()
    traced = torch.jit.trace(network, x, check_trace=False)
    torch.jit.save(traced, buffer, _extra_files={CONTENT: description})
    path.write_bytes(buffer.getvalue())
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
    try:
        import onnx
        import onnxruntime
        import onnxscript  # noqa: F401 - torch needs it
    except ImportError as error:
        raise MissingPackageError(
            f"Exporting to ONNX needs {error.name}: pip install 'hessalign[export]'."
        ) from error
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
