"""Feature banks: what a backbone makes of every image of a data set, kept in one file of arrays.

    PACS@resnet50.safetensors         a bank, `DATA@BACKBONE`
    PACS@resnet50.safetensors.parts/  while it is made: the features of 64 images per file

A bank is a data set like any other (`data.read_arrays` reads it) with x, y, domain and the names of
classes and domains, and tells what it was made with. It is made once, by several processes; work
that was killed continues with the parts that are missing.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

import numpy as np
import torch
from torch import Tensor, nn

from hessalign._errors import InputError
from hessalign._files import atomic_file, write_atomically
from hessalign._processes import completed
from hessalign.bench.data import DomainDataset, ImageReader, normalise, open_images
from hessalign.bench.models import make_backbone, state_digest
from hessalign.bench.models.backbones import describe_random_weights, feature_width
from hessalign.bench.models.published import make_importable
from hessalign.bench.runs.machine import describe_software, device_of, find_device
from hessalign.bench.runs.sampling import image_chunks

_SUFFIXES: Final = (".safetensors", ".npz")
_MADE_WITH: Final = "made_with"
"""Where a bank tells what it was made with."""


@final
class FeatureBankError(InputError):
    """A bank that cannot be made, or was made with something else."""


def bank_path(data: str, backbone: str) -> Path:
    """What a bank is called unless another name is chosen.

    Returns:
        A file name.

    Example:
        >>> print(bank_path("PACS", "examples.efficientnet_lite0:make_backbone"))
        PACS@make_backbone.safetensors
        >>> print(bank_path("PACS", "timm:resnet18.a1_in1k"))
        PACS@resnet18-a1_in1k.safetensors
    """
    name = backbone.rsplit(":", 1)[-1].replace("/", "-").replace(".", "-")
    return Path(f"{data}@{name}.safetensors")


def _write_bank(
    bank: Path, data: DomainDataset, features: np.ndarray, made_with: Mapping[str, Any]
) -> None:
    """Write a bank, all at once: one row of features for each sample, domain after domain."""
    arrays: dict[str, Any] = {
        "x": features,
        "y": torch.cat([domain.labels for domain in data.domains]).numpy(),
        "domain": np.repeat(np.arange(len(data.domains)), [len(d) for d in data.domains]),
    }
    names = {"classes": list(data.classes), "domains": list(data.domain_names)}
    text = json.dumps(made_with)
    with atomic_file(bank) as partial:
        if bank.suffix == ".npz":
            texts: dict[str, Any] = {
                name: np.array(value) for name, value in {**names, _MADE_WITH: text}.items()
            }
            with partial.open("wb") as file:
                np.savez(file, **arrays, **texts)
            return
        from safetensors.numpy import save_file

        metadata = {name: json.dumps(values) for name, values in names.items()}
        partial.touch()
        mode = partial.stat().st_mode
        save_file(arrays, partial, metadata={**metadata, _MADE_WITH: text})
        partial.chmod(mode)  # it makes files that nobody else may read


def read_description(bank: Path) -> dict[str, Any]:
    """What a bank was made with, by name; nothing if the file is not a bank of ours."""
    try:
        text = _npz_text(bank) if bank.suffix == ".npz" else _safetensors_text(bank)
        found = json.loads(text) if text else {}
    except Exception:  # a damaged file makes its reader stumble in any way
        return {}
    return found if isinstance(found, dict) else {}


def _npz_text(bank: Path) -> str | None:
    with np.load(bank, allow_pickle=False) as file:
        return str(file[_MADE_WITH]) if _MADE_WITH in file.files else None


def _safetensors_text(bank: Path) -> str | None:
    from safetensors import safe_open

    with safe_open(bank, "numpy") as file:
        text: str | None = (file.metadata() or {}).get(_MADE_WITH)
    return text


def _check_bank(bank: Path, made_with: Mapping[str, Any]) -> None:
    """Refuse a bank that was made with something else."""
    found = read_description(bank)
    for name, value in made_with.items():
        if name != "software" and found.get(name) != value:
            raise FeatureBankError(
                f"Expected {bank} to be made with {name} = {value!r}, but it was made with "
                f"{found.get(name, 'something unknown')!r}. Choose another --output, or remove it."
            )


_PER_PART: Final = 64
_AT_ONCE: Final = 8
"""Images in one forward pass: few fit into a processor's cache, which is faster."""

_Report = Callable[[int, int], None]
_Warn = Callable[[str], None]


@final
@dataclass(frozen=True)
class BankSpec:
    """What a bank is made with.

    Attributes:
        backbone: Name of the backbone, see `make_backbone`.
        weights: Its weights: "imagenet", a file, or None for those it brings.
        size: Height and width of images that are files; arrays are taken as they are.
        allow_truncated: Fill what is missing of truncated images with grey.
    """

    backbone: str
    weights: str | None = None
    size: int = 224
    allow_truncated: bool = False


@final
@dataclass(frozen=True)
class _Part:
    """Some consecutive samples of a domain, and the file of their features."""

    path: Path
    domain: int
    first: int
    count: int


@final
@dataclass(frozen=True, eq=False)
class _Extraction:
    """Makes parts; a worker gets a copy."""

    source: ImageReader | DomainDataset
    backbone: nn.Module

    def __call__(self, part: _Part) -> int:
        """Make a part; the number of its samples."""
        with torch.inference_mode():
            device = device_of(self.backbone)
            made = (self.backbone(_laid_out(x.to(device))) for x in self._inputs(part))
            pieces = [features.cpu().numpy() for features in made]
        features = np.concatenate(pieces).astype(np.float32)
        if not np.isfinite(features).all():
            name = _data(self.source).domains[part.domain].name
            raise FeatureBankError(
                f"The backbone gave features that are not finite in the domain {name!r}, samples "
                f"{part.first} to {part.first + part.count - 1}. Check its weights."
            )
        with atomic_file(part.path) as partial, partial.open("wb") as file:
            np.save(file, features)
        return part.count

    def _inputs(self, part: _Part) -> Iterator[Tensor]:
        rows = range(part.first, part.first + part.count)
        if isinstance(self.source, ImageReader):
            for x, _ in image_chunks(self.source, part.domain, rows, size=_AT_ONCE):
                yield x
            return
        inputs = self.source.domains[part.domain].inputs
        for first in rows[::_AT_ONCE]:
            yield _floats(torch.as_tensor(inputs[first : min(first + _AT_ONCE, rows.stop)]))


def extract_features(
    data: DomainDataset,
    spec: BankSpec,
    output: Path,
    *,
    cache: Path | None = None,
    jobs: int = 1,
    report: _Report = lambda done, total: None,
    warn: _Warn = lambda message: None,
) -> Path:
    """Make a feature bank; continue one that was begun, and keep one that is finished.

    Args:
        data: The data set: images, or arrays of images.
        spec: What to make it with.
        output: The bank: a `.safetensors` or `.npz` file.
        cache: Where the images' cache may be (see `open_images`); None reads the files.
        jobs: How many processes work at it; one, if there is a graphics processor.
        report: Called with the number of images done so far and in all.
        warn: Called with what the user should know but need not act on.

    Returns:
        The bank.

    Raises:
        FeatureBankError: If it is there, but made with something else, or cannot be called so.
    """
    if output.suffix not in _SUFFIXES:
        raise FeatureBankError(f"Expected a bank named *.safetensors or *.npz, got {output}.")
    source = _source(data, spec, cache, warn)
    backbone = _trained(spec, _shape(source))
    if note := describe_random_weights(spec.backbone, spec.weights):
        warn(note)
    made_with = _describe(data, spec, backbone)
    if output.exists():
        _check_bank(output, made_with)
        warn(f"{output} is there already, made with the same; nothing to do.")
        return output
    folder = output.with_name(f"{output.name}.parts")
    _begin(folder, made_with, warn)
    parts = _parts(data, folder)
    missing = [part for part in parts if not part.path.exists()]
    total = len(data)
    done = total - sum(part.count for part in missing)
    report(done, total)
    device = find_device()
    workers = jobs if device.type == "cpu" else 1  # a graphics processor is not shared
    extraction = _Extraction(source, backbone.to(device))
    for count in completed(extraction, missing, workers, prepare=make_importable):
        done += count
        report(done, total)
    _write_bank(output, data, np.concatenate([np.load(part.path) for part in parts]), made_with)
    shutil.rmtree(folder)
    return output


def _source(
    data: DomainDataset, spec: BankSpec, cache: Path | None, warn: _Warn
) -> ImageReader | DomainDataset:
    inputs = data.domains[0].inputs
    if not isinstance(inputs, Tensor):
        truncated = spec.allow_truncated
        if cache is None:
            return ImageReader(data, spec.size, None, truncated)
        return open_images(data, cache, spec.size, allow_truncated=truncated, warn=warn)
    if inputs.ndim != 4:
        raise FeatureBankError(
            f"Expected images [n, channels, height, width] in {data.name}, got arrays of shape "
            f"{list(inputs.shape)}. Vectors are features already: train on them as they are."
        )
    return data


def _data(source: ImageReader | DomainDataset) -> DomainDataset:
    return source.data if isinstance(source, ImageReader) else source


def _shape(source: ImageReader | DomainDataset) -> tuple[int, ...]:
    if isinstance(source, ImageReader):
        return (3, source.size, source.size)
    inputs = source.domains[0].inputs
    assert isinstance(inputs, Tensor)
    return tuple(inputs.shape[1:])


def _trained(spec: BankSpec, shape: tuple[int, ...]) -> nn.Module:
    """The backbone; if it has random weights, the same ones each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        backbone = make_backbone(spec.backbone, shape[0], spec.weights)
    feature_width(backbone, shape, spec.backbone)
    backbone.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return backbone


def _laid_out(x: Tensor) -> Tensor:
    """Channels last in memory, which convolutions on a CPU prefer."""
    return x.contiguous(memory_format=torch.channels_last)


def _floats(images: Tensor) -> Tensor:
    """Colour images normalised, other arrays as they are."""
    if images.dtype == torch.uint8 and images.shape[1] == 3:
        return normalise(images)
    return images.float()


def _describe(data: DomainDataset, spec: BankSpec, backbone: nn.Module) -> dict[str, Any]:
    return {
        "data": data.name,
        "data_sha256": data.fingerprint(),
        "backbone": spec.backbone,
        "weights": spec.weights,
        "weights_sha256": state_digest(backbone),
        "size": spec.size,
        "normalisation": "ImageNet's mean and deviation, no augmentation",
        "software": describe_software(),
    }


def _begin(folder: Path, made_with: Mapping[str, Any], warn: _Warn) -> None:
    """Prepare the folder of parts; those made with something else are removed."""
    note = folder / "made_with.json"
    wanted = {name: value for name, value in made_with.items() if name != "software"}
    if folder.exists():
        try:
            if json.loads(note.read_text("utf-8")) == wanted:
                return
        except (OSError, ValueError):
            pass
        warn(f"The parts in {folder} were made with something else. They are made again.")
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    write_atomically(note, json.dumps(wanted).encode())


def _parts(data: DomainDataset, folder: Path) -> list[_Part]:
    return [
        _Part(folder / f"{number:02d}-{first:07d}.npy", number, first, min(_PER_PART, left))
        for number, domain in enumerate(data.domains)
        for first, left in ((i, len(domain) - i) for i in range(0, len(domain), _PER_PART))
    ]
