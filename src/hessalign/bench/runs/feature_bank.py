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
from typing import Any, Final, NamedTuple, final

import numpy as np
import torch
from torch import Tensor, nn

from hessalign._errors import InputError, Warn
from hessalign._files import atomic_file, parse_json, write_atomically
from hessalign._processes import completed
from hessalign.bench.data import DomainDataset, DomainSamples, ImageReader, normalise, open_images
from hessalign.bench.models import make_backbone, state_digest
from hessalign.bench.models.backbones import describe_random_weights, feature_width, make_importable
from hessalign.bench.runs.image_batches import ImageChunks
from hessalign.bench.runs.machine import describe_software, device_of, find_device

_MADE_WITH: Final = "made_with"  # where a bank tells what it was made with
_PER_PART: Final = 64
_AT_ONCE: Final = 8  # images in one forward pass: few fit into a processor's cache, which is faster


@final
class FeatureBankError(InputError):
    """A bank that cannot be made, or was made with something else."""


def bank_path(data: str, backbone: str) -> Path:
    """What the bank of some data by a backbone is called unless another name is chosen."""
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
    if any(domain.held_out is not None for domain in data.domains):
        arrays["held_out"] = np.concatenate([_held_out(domain) for domain in data.domains])
    names = {"classes": list(data.classes), "domains": list(data.domain_names)}
    if data.official_tests:
        names["official_tests"] = list(data.official_tests)
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


def _held_out(domain: DomainSamples) -> np.ndarray:
    """Which samples of a domain an official split holds out, as 0 and 1."""
    marks = np.zeros(len(domain), np.uint8)
    if domain.held_out is not None:
        marks[domain.held_out.numpy()] = 1
    return marks


def read_description(bank: Path) -> dict[str, Any]:
    """What a bank was made with, by name; nothing if the file is not a bank of ours."""
    from safetensors import safe_open

    try:
        if bank.suffix == ".npz":
            with np.load(bank, allow_pickle=False) as arrays:
                text = str(arrays[_MADE_WITH])
        else:
            with safe_open(bank, "numpy") as tensors:
                text = tensors.metadata()[_MADE_WITH]
        found = json.loads(text)
    except Exception:  # a damaged file makes its reader stumble in any way
        return {}
    return found if isinstance(found, dict) else {}


def _check_bank(bank: Path, made_with: Mapping[str, Any]) -> None:
    """Refuse a bank that was made with something else."""
    found = read_description(bank)
    for name, value in made_with.items():
        if name != "software" and found.get(name) != value:
            raise FeatureBankError(
                f"Expected {bank} to be made with {name} = {value!r}, but it was made with "
                f"{found.get(name, 'something unknown')!r}. Choose another --output, or remove it."
            )


@final
@dataclass(frozen=True)
class BankSpec:
    """What a bank is made with."""

    backbone: str
    weights: str | None = None  # "imagenet", a file, or None for those the backbone brings
    size: int = 224  # of images that are files; arrays are taken as they are
    allow_truncated: bool = False  # fill what is missing of truncated images with grey


class _Part(NamedTuple):
    """Some consecutive samples of a domain, and the file of their features."""

    path: Path
    domain: int
    rows: range


@final
@dataclass(frozen=True, eq=False)
class _Extraction:
    """Makes parts; a worker gets a copy."""

    data: DomainDataset
    reader: ImageReader | None  # None if the inputs are arrays
    backbone: nn.Module

    def __call__(self, part: _Part) -> int:
        """Make a part; the number of its samples."""
        pieces = []
        device = device_of(self.backbone)
        with torch.inference_mode():
            for x in self._inputs(part):
                laid_out = x.to(device).contiguous(memory_format=torch.channels_last)
                pieces.append(self.backbone(laid_out).cpu().numpy())
        features = np.concatenate(pieces).astype(np.float32)
        if not np.isfinite(features).all():
            raise FeatureBankError(
                "The backbone gave features that are not finite in the domain "
                f"{self.data.domains[part.domain].name!r}, samples {part.rows[0]} to "
                f"{part.rows[-1]}. Check its weights."
            )
        with atomic_file(part.path) as partial, partial.open("wb") as file:
            np.save(file, features)
        return len(part.rows)

    def _inputs(self, part: _Part) -> Iterator[Tensor]:
        """Images normalised if they are coloured grey values, other arrays as they are."""
        if self.reader is not None:
            yield from ImageChunks(self.reader, part.domain, part.rows, _AT_ONCE)
            return
        inputs = self.data.domains[part.domain].inputs
        for first in part.rows[::_AT_ONCE]:
            images = torch.as_tensor(inputs[first : min(first + _AT_ONCE, part.rows.stop)])
            coloured = images.dtype == torch.uint8 and images.shape[1] == 3
            yield normalise(images) if coloured else images.float()


def extract_features(
    data: DomainDataset,
    spec: BankSpec,
    output: Path,
    *,
    cache: Path | None = None,
    jobs: int = 1,
    report: Callable[[int, int], None] = lambda done, total: None,
    warn: Warn = lambda message: None,
) -> Path:
    """Make a feature bank; continue one that was begun, and keep one that is finished."""
    if output.suffix not in {".safetensors", ".npz"}:
        raise FeatureBankError(f"Expected a bank named *.safetensors or *.npz, got {output}.")
    backbone, reader = _load_backbone(data, spec), _open_reader(data, spec, cache, warn)
    if note := describe_random_weights(spec.backbone, spec.weights):
        warn(note)
    made_with = {
        "data": data.name,
        "data_sha256": data.fingerprint(),
        "backbone": spec.backbone,
        "weights": spec.weights,
        "weights_sha256": state_digest(backbone),
        "size": spec.size,
        "normalisation": "ImageNet's mean and deviation, no augmentation",
        "software": describe_software(),
    }
    if output.exists():
        _check_bank(output, made_with)
        warn(f"{output} is there already, made with the same; nothing to do.")
        return output
    folder = output.with_name(f"{output.name}.parts")
    _begin(folder, made_with, warn)
    parts = [
        _Part(folder / f"{number:02d}-{first:07d}.npy", number, rows[first : first + _PER_PART])
        for number, rows in enumerate(range(len(domain)) for domain in data.domains)
        for first in rows[::_PER_PART]
    ]
    missing = [part for part in parts if not part.path.exists()]
    total = len(data)
    done = total - sum(len(part.rows) for part in missing)
    report(done, total)
    device = find_device()
    workers = jobs if device.type == "cpu" else 1  # a graphics processor is not shared
    extraction = _Extraction(data, reader, backbone.to(device))
    for count in completed(extraction, missing, workers, prepare=make_importable):
        done += count
        report(done, total)
    _write_bank(output, data, np.concatenate([np.load(part.path) for part in parts]), made_with)
    shutil.rmtree(folder)
    return output


def _open_reader(
    data: DomainDataset, spec: BankSpec, cache: Path | None, warn: Warn
) -> ImageReader | None:
    if isinstance(data.domains[0].inputs, Tensor):
        return None
    if cache is None:
        return ImageReader(data, spec.size, None, spec.allow_truncated)
    return open_images(data, cache, spec.size, allow_truncated=spec.allow_truncated, warn=warn)


def _load_backbone(data: DomainDataset, spec: BankSpec) -> nn.Module:
    """The backbone; if it has random weights, the same ones each time."""
    inputs = data.domains[0].inputs
    shape: tuple[int, ...] = (3, spec.size, spec.size)
    if isinstance(inputs, Tensor):
        shape = tuple(inputs.shape[1:])
        if inputs.ndim != 4:
            raise FeatureBankError(
                f"Expected images [n, channels, height, width] in {data.name}, got arrays of shape "
                f"{list(inputs.shape)}. Vectors are features already: train on them as they are."
            )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        backbone = make_backbone(spec.backbone, shape[0], spec.weights)
    feature_width(backbone, shape, spec.backbone)
    backbone.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return backbone


def _begin(folder: Path, made_with: Mapping[str, Any], warn: Warn) -> None:
    """Prepare the folder of parts; those made with something else are removed."""
    note = folder / "made_with.json"
    wanted = {name: value for name, value in made_with.items() if name != "software"}
    if folder.exists():
        try:
            if parse_json(note.read_text("utf-8")) == wanted:
                return
        except (OSError, ValueError):
            pass
        warn(f"The parts in {folder} were made with something else. They are made again.")
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    write_atomically(note, json.dumps(wanted).encode())
