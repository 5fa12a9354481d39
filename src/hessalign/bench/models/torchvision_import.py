"""Importing torchvision, and timm, which imports it, whatever build of torch is installed.

torchvision describes its operators to torch when it is imported. The operators come from a compiled
extension, which cannot be loaded where torch was built without CUDA but torchvision with it, as the
wheels of PyPI are. Then the import itself fails ("operator torchvision::nms does not exist"),
although no model or transform needs these operators: they are for the detection of objects.

The cure is to declare the two operators that the import looks for. They still cannot be called,
and say so if they are. Where the extension can be loaded nothing is declared.
"""

from __future__ import annotations

import importlib
import importlib.util
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import torch

from hessalign._errors import MissingPackageError

_SCHEMAS: Final = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)

_declared: list[torch.library.Library] = []
"""Declarations last as long as the object that made them."""


def import_torchvision() -> Any:  # noqa: ANN401
    """The module torchvision.

    Returns:
        It; untyped, because it is only imported where it is used. Without it, an ImportError says
        how to install it.
    """
    return _imported("torchvision")


def import_timm() -> Any:  # noqa: ANN401
    """The module timm.

    Returns:
        It; untyped, because it is only imported where it is used. Without it, an ImportError says
        how to install it.
    """
    return _imported("timm")


def _imported(name: str) -> ModuleType:
    if importlib.util.find_spec(name) is None:
        raise MissingPackageError(f"Backbones of {name} need it: pip install 'hessalign[vision]'.")
    make_importable()
    return importlib.import_module(name)


@cache
def make_importable() -> None:
    """Make torchvision importable where its extension cannot be loaded.

    A process that reads a pickled model imports what the model is made of, so it calls this before.
    """
    if importlib.util.find_spec("torchvision") is None or _has_operator("nms") or _load_extension():
        return
    library = torch.library.Library("torchvision", "FRAGMENT")
    for schema in _SCHEMAS:
        library.define(schema)
    _declared.append(library)


def _has_operator(name: str) -> bool:
    return hasattr(torch.ops.torchvision, name)


def _load_extension() -> bool:
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        return False
    for library in sorted(Path(spec.origin).parent.glob("_C.*")):
        try:
            torch.ops.load_library(library)
        except (ImportError, OSError):
            return False
        return True
    return False
