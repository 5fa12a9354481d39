"""Weights of backbones: where their files are, whether they are intact, whether they fit."""

from __future__ import annotations

import hashlib
import io
import mmap
import os
import pickle
import pickletools
import re
import socket
import struct
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, Any, Final, cast, final
from urllib.error import URLError

import torch
from torch import Tensor, nn

from hessalign._errors import InputError, UnknownNameError
from hessalign._files import file_digest

_FOLDER_VARIABLE: Final = "HESSALIGN_WEIGHTS"  # the variable that names a folder of weights
IMAGENET: Final = "imagenet"  # the name of the weights that most people mean
SUFFIXES: Final = (".pth", ".pt", ".bin", ".safetensors")  # how files of weights are called
_SECONDS: Final = 30.0  # how long a server that gives weights may stay silent

DAMAGE: Final = (
    OSError, RuntimeError, ValueError, LookupError, TypeError, AttributeError, AssertionError,
    OverflowError, EOFError, pickle.UnpicklingError, struct.error, zipfile.BadZipFile,
)  # fmt: skip
"""What torch.load raises for files that are not what they should be."""

_OLD_PICKLES: Final = 5  # one after the other in files of torch.save before 1.6
_LONGEST_NAME: Final = 1000  # of a type in a file of torch.save; those it writes have dozens

_SHOWN: Final = 3  # how many entries of each kind an error names


@final
class WeightsError(InputError):
    """Weights that cannot be had, read or used."""


def _weights_folders() -> list[Path]:
    """Where files of weights are looked for."""
    chosen, common = os.environ.get(_FOLDER_VARIABLE), Path(torch.hub.get_dir(), "checkpoints")
    return [Path(chosen).expanduser(), common] if chosen else [common]


def named_file(weights: str, names: Iterable[str]) -> Path:
    """The file that a user named instead of weights with one of these names."""
    path = Path(weights).expanduser()
    if path.is_file() or path.suffix in SUFFIXES:
        return path
    valid = [*dict.fromkeys([IMAGENET, *names]), "FILE"] if names else ["FILE"]
    raise UnknownNameError("weights", weights, valid)


def find_file(names: Sequence[str]) -> Path | None:
    """The first file of these names that is here already, if any."""
    places = [folder / name for folder in _weights_folders() for name in names]
    return next((place for place in places if place.is_file()), None)


def fetch_file(url: str) -> Path:
    """The file behind an address, downloaded unless it is here already, and checked."""
    # torch's model files carry the first eight digits of their SHA-256 sum in their names.
    name = url.rsplit("/", 1)[-1]
    found = find_file([name])
    checksum = re.search(r"-([0-9a-f]{8,})\.", name)
    expected = checksum[1] if checksum else None
    if found is not None:
        digest = file_digest(found)
        if expected is not None and not digest.startswith(expected):
            raise WeightsError(
                f"Expected a SHA-256 sum that begins with {expected} for the weights {found}, "
                f"got {digest[:8]}: the file is damaged. Replace it by {url}."
            )
        return found
    target = _weights_folders()[0] / name
    patience = socket.getdefaulttimeout()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        socket.setdefaulttimeout(_SECONDS)
        torch.hub.download_url_to_file(url, str(target), expected, progress=False)
    except (OSError, URLError, RuntimeError) as error:
        raise WeightsError(missing_message(name, url, error)) from error
    finally:
        socket.setdefaulttimeout(patience)
    return target


def missing_message(name: str, url: str, error: Exception) -> str:
    """What to do about a file of weights that cannot be downloaded, and why it cannot."""
    reason = str(error).rstrip(".") or type(error).__name__
    return (
        f"Cannot fetch the weights {name}: {reason}. Download {url} on a machine that can, and put "
        f"it here as {_weights_folders()[0] / name}; or put it into any folder and set "
        f"{_FOLDER_VARIABLE} to that folder."
    )


def read_state(path: Path) -> dict[str, Tensor]:
    """The entries of a file of weights by name, as `torch.save` or safetensors writes them."""
    # They may be inside a dictionary, as "state_dict" or "model", and begin with "module.".
    if not path.is_file():
        raise WeightsError(f"Expected a file of weights, found no file {path}.")
    try:
        content: object = (
            _read_safetensors(path) if path.suffix == ".safetensors" else load_tensors(path)
        )
    except DAMAGE as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise WeightsError(
            f"Cannot read the weights {path}: {reason} Expected what torch.save makes of a "
            "state_dict, or a .safetensors file."
        ) from error
    for wrapping in ("state_dict", "model"):
        if isinstance(content, dict) and isinstance(content.get(wrapping), dict):
            content = content[wrapping]
    if not isinstance(content, dict) or not all(isinstance(v, Tensor) for v in content.values()):
        raise WeightsError(
            f"Expected tensors by name in the weights {path}, found {type(content).__name__}. Save "
            "module.state_dict() rather than the module."
        )
    if content and all(str(name).startswith("module.") for name in content):
        content = {name.removeprefix("module."): value for name, value in content.items()}
    return content


def load_tensors(path: Path) -> Any:  # noqa: ANN401
    """What torch.save wrote, read without running any code in it; a `DAMAGE` if it is damaged."""
    with path.open("rb") as file:
        zipped = file.read(2) == b"PK"
        file.seek(0)
        if zipped:  # torch does not look at the checksums of its archives
            with zipfile.ZipFile(file) as archive:
                if (wrong := archive.testzip()) is not None:
                    raise InputError(f"{wrong} in it is damaged.")
                for name in archive.namelist():
                    if name.endswith("data.pkl"):
                        _check_names(io.BytesIO(archive.read(name)), 1)
        else:
            # A map, unlike a file, does not make room for what a damaged length promises.
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
                _check_names(mapped, _OLD_PICKLES)
    return torch.load(path, map_location="cpu", weights_only=True)


def _check_names(file: io.BytesIO | mmap.mmap, pickles: int) -> None:
    """Refuse long names of types, for which torch takes a time quadratic in their length."""
    # It searches its own message about a name that it does not know.
    for _ in range(pickles):
        for opcode, argument, _position in pickletools.genops(cast("IO[bytes]", file)):
            if opcode.name == "GLOBAL" and len(str(argument)) > _LONGEST_NAME:
                raise InputError(f"It names a type by {len(str(argument)):,} characters.")


def load_file(module: nn.Module, path: Path, ignored: Sequence[str] = ()) -> None:
    """Give a module all weights of a file and nothing else, but for those of `ignored` parts."""
    own = module.state_dict()
    left = tuple(f"{each}." for each in ignored)
    found = read_state(path).items()
    state = {name: value for name, value in found if name in own or not name.startswith(left)}
    faults = {
        "missing": [n for n in own if n not in state and not n.endswith("num_batches_tracked")],
        "unexpected": [name for name in state if name not in own],
        "of another shape": [
            f"{name} ({_shape(state[name])} instead of {_shape(own[name])})"
            for name in own
            if name in state and state[name].shape != own[name].shape
        ],
    }
    told = [
        f"{len(names)} {kind}: {', '.join(names[:_SHOWN])}{', …' if len(names) > _SHOWN else ''}"
        for kind, names in faults.items()
        if names
    ]
    if told:
        raise WeightsError(
            f"The weights {path} are of another architecture. Of {len(own)} entries "
            f"{'; '.join(told)}. Choose the backbone that they were trained with."
        )
    module.load_state_dict(state, strict=False)


def state_digest(module: nn.Module) -> str:
    """The SHA-256 sum of names, types and values of all parameters and buffers."""
    digest = hashlib.sha256()
    for name, value in sorted(module.state_dict().items()):
        digest.update(f"{name} {value.dtype} {_shape(value)}\n".encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def _shape(value: Tensor) -> str:
    return "×".join(map(str, value.shape)) or "scalar"


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    import safetensors.torch

    try:
        return safetensors.torch.load_file(path)
    except safetensors.SafetensorError as error:
        raise InputError(f"{error}.") from error
