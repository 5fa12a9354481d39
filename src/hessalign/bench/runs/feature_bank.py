"""Feature banks: what a backbone makes of every image of a data set, kept in one file of arrays.

A bank is a data set like any other (`data.read_arrays` reads it) with x, y, domain and the names of
classes and domains, and tells what it was made with. It is called `DATA@BACKBONE.safetensors`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, final

import numpy as np
import torch

from hessalign._errors import InputError
from hessalign._files import atomic_file
from hessalign.bench.data import DomainDataset

SUFFIXES: Final = (".safetensors", ".npz")
_MADE_WITH: Final = "made_with"
"""Where a bank tells what it was made with."""


@final
class FeatureBankError(InputError):
    """A bank that cannot be made, or was made with something else."""


def bank_path(data: str, backbone: str) -> Path:
    """What a bank is called unless another name is chosen.

    Args:
        data: Name of the data set.
        backbone: Name of the backbone.

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


def write_bank(
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


def check_bank(bank: Path, made_with: Mapping[str, Any]) -> None:
    """Refuse a bank that was made with something else."""
    found = read_description(bank)
    for name, value in made_with.items():
        if name != "software" and found.get(name) != value:
            raise FeatureBankError(
                f"Expected {bank} to be made with {name} = {value!r}, but it was made with "
                f"{found.get(name, 'something unknown')!r}. Choose another --output, or remove it."
            )
