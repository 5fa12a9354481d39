"""Public functions under arguments of wrong kinds, shapes and values.

An argument of a valid call, or two, are replaced. What certainly makes no sense (other lengths,
NaN, text, complex numbers) has to be refused; whatever else is accepted has to give finite numbers.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

import hessalign as ha
from benchmarks.fuzz.findings import ACCEPTED, REFUSED, Attempt, FindingError
from benchmarks.fuzz.mutations import ODD
from hessalign._errors import UserError

_KINDS: Final = ("full", "diagonal", "sampled", "expected", "product")


def _with(tensor: Tensor, source: random.Random, value: float) -> Tensor:
    changed = tensor.clone()
    changed.view(-1)[source.randrange(changed.numel())] = value
    return changed


def _wrong_tensor(source: random.Random, tensor: Tensor) -> tuple[object, bool]:
    """Something instead of a tensor, and whether it has to be refused."""
    floating = tensor.is_floating_point()
    nan = (lambda t: _with(t, source, source.choice((torch.nan, torch.inf)))) if floating else None
    changes: list[tuple[Callable[[Tensor], object] | None, bool]] = [
        (lambda t: t[:-1], True),
        (lambda t: torch.cat([t, t[:1]]), True),
        (lambda t: t[:0], True),
        (lambda t: t.unsqueeze(0), True),
        (lambda t: t[..., None, None], True),
        (lambda t: t.reshape(-1)[0], True),
        (lambda t: source.choice((None, "text", {}, object(), b"x")), False),
        (lambda t: "text", True),
        (lambda t: t.to(torch.complex64), True),
        (nan, True),
        (lambda t: t.numpy(), False),
        (lambda t: t.tolist(), False),
        (lambda t: t.to(torch.bool), False),
        (lambda t: t.to(torch.float16), False),
        (lambda t: t.to(torch.int8), False),
        (lambda t: t.double(), False),
        (lambda t: -t, False),
        (lambda t: t * 10**6, False),
        (lambda t: t * 1e30 if floating else t + 2**40, False),
        (lambda t: torch.zeros_like(t), False),
        (lambda t: t.T if t.ndim == 2 else t.flip(0), False),
        (lambda t: t.to_sparse(), False),
        (lambda t: t.to_sparse_csr() if t.ndim == 2 else t.to_sparse(), False),
        (lambda t: nn.Parameter(t) if floating else t, False),
    ]
    change, refused = source.choice([each for each in changes if each[0] is not None])
    assert change is not None
    return change(tensor), refused


def _wrong(source: random.Random, value: object) -> tuple[object, bool]:
    if isinstance(value, Tensor):
        return _wrong_tensor(source, value)
    odd = source.choice(ODD)  # who asks for 10²⁰ restarts waits for them
    patient = isinstance(odd, int) and odd > 10 and isinstance(value, int)
    return (2 if patient else odd), False


def _finite(found: Any, depth: int = 0) -> bool:
    """Whether all numbers in a result are finite."""
    if isinstance(found, Tensor):
        return not found.is_floating_point() or bool(found.isfinite().all())
    if isinstance(found, np.ndarray):
        return found.dtype.kind != "f" or bool(np.isfinite(found).all())
    if isinstance(found, float):
        return bool(np.isfinite(found))
    if isinstance(found, dict):
        return all(_finite(each, depth + 1) for each in found.values())
    if dataclasses.is_dataclass(found) and depth < 3:
        return all(
            _finite(getattr(found, each.name), depth + 1) for each in dataclasses.fields(found)
        )
    return True


def _data(source: random.Random, n: int = 9) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(source.randrange(100))
    d, k = 3, 3
    z = torch.randn(n, d, generator=generator)
    return {
        "z": z,
        "logits": torch.randn(n, k, generator=generator),
        "y": torch.arange(n) % k,
        "domain": torch.arange(n) // (n // 3),
    }


def _target(
    make: Callable[[random.Random], tuple[Callable[..., Any], dict[str, Any]]],
    allowed: tuple[type[Exception], ...] = (UserError,),
    free: tuple[str, ...] = (),
) -> Any:
    """What has a function called with an argument replaced, or two; what is `free` may be odd."""

    def prepare(folder: Path) -> Attempt:
        def attempt(source: random.Random) -> str:
            function, arguments = make(source)
            must = False
            for name in source.sample(
                sorted(arguments), min(len(arguments), source.choice((1, 1, 2)))
            ):
                arguments[name], refused = _wrong(source, arguments[name])
                must = must or (refused and name not in free)
            try:
                found = function(**arguments)
            except allowed:
                return REFUSED
            if must:
                shown = {k: v for k, v in arguments.items() if not isinstance(v, int | float)}
                raise FindingError(f"accepted {str(shown)[:300]}")
            if not _finite(found):
                raise FindingError(f"not finite: {str(found)[:200]}")
            return ACCEPTED

        return attempt

    return prepare


def _align(source: random.Random) -> tuple[Callable[..., Any], dict[str, Any]]:
    options = {"alpha": 0.5, "beta": 0.1, "hessian": source.choice((*_KINDS, None)), "probes": 3,
               "unbiased": False, "shared_probes": False, "fidelity": "paper",
               "evaluation": "auto"}  # fmt: skip

    def call(z: Any, logits: Any, y: Any, domain: Any, **options: Any) -> Any:
        return ha.HessianAlignment(**options)(z, logits, y, domain)

    data = _data(source)
    if source.random() < 0.7:
        return (lambda **given: call(**given, **options)), data
    return (lambda **given: call(**data, **given)), options


def _distance(source: random.Random) -> tuple[Callable[..., Any], dict[str, Any]]:
    data = _data(source)
    del data["y"]
    norm = source.choice(("fro", "spectral"))
    return (lambda **given: ha.hessian_distance(**{"norm": norm, **given})), {**data, "norm": norm}


def _attributes(source: random.Random) -> tuple[Callable[..., Any], dict[str, Any]]:
    return ha.attribute_distances, {**_data(source), "evaluation": "auto"}


def _linear(source: random.Random) -> tuple[Callable[..., Any], dict[str, Any]]:
    def call(**given: Any) -> Any:
        head = ha.linear_head(**given)
        return {"risk": head.risk, "gradient": head.gradient, "diagonal": head.diagonal}

    weight = {"weight": torch.ones(9)} if source.random() < 0.3 else {}
    return call, {**_data(source), **weight, "bias": True}


def _autograd(source: random.Random) -> tuple[Callable[..., Any], dict[str, Any]]:
    data = _data(source)
    del data["logits"]

    def call(**given: Any) -> Any:
        head = ha.autograd_head(**given)
        return {"risk": head.risk, "gradient": head.gradient}

    return call, {"head": nn.Linear(3, 3), **data}


def _layout(source: random.Random) -> tuple[Callable[..., Any], dict[str, Any]]:
    domain = _data(source)["domain"]
    if source.random() < 0.5:  # any length is right
        return (lambda value: ha.domain_layout(value)), {"value": source.choice((3, [1, 2], "x"))}
    return (lambda z, **given: ha.linear_head(z, z, None, **given)), {
        "z": _data(source)["z"],
        "domain": domain,
    }


def _heads(function: Callable[..., Any], more: Mapping[str, Any]) -> Any:
    def make(source: random.Random) -> tuple[Callable[..., Any], dict[str, Any]]:
        data = _data(source)
        del data["logits"]
        return function, {**data, **more}

    return make


def _gap(source: random.Random) -> tuple[Callable[..., Any], dict[str, Any]]:
    data = _data(source)
    del data["logits"]
    generator = torch.Generator().manual_seed(0)
    head = torch.randn(3, 4, generator=generator)
    return ha.worst_case_gap, {**data, "head": head, "delta": 0.1, "restarts": 1}


def _communication(source: random.Random) -> tuple[Callable[..., Any], dict[str, Any]]:
    return ha.communication, {
        "hessian": source.choice(_KINDS), "processes": 2, "samples": 9, "features": 3, "outputs": 3,
        "domains": 3, "targets": 8,
    }  # fmt: skip


def _classifier(source: random.Random) -> tuple[Callable[..., Any], dict[str, Any]]:
    data = _data(source)
    options = {"alpha": 1.0, "beta": 10.0, "l2": 0.001, "max_iter": 3, "tol": 1e-3,
               "random_state": 0, "probes": 3}  # fmt: skip

    def array(given: Any) -> Any:
        dense = isinstance(given, Tensor) and given.layout is torch.strided and not given.is_meta
        return given.detach().numpy() if dense else given

    def call(z: Any, y: Any, domain: Any, **options: Any) -> Any:
        z, y, domain = map(array, (z, y, domain))
        fitted = ha.AlignedClassifier(source.choice(("full", "diagonal")), **options)
        return fitted.fit(z, y, domain=domain).predict_proba(data["z"].numpy())

    given = {name: data[name] for name in ("z", "y", "domain")}
    if source.random() < 0.5:
        return call, given
    return (lambda **options: call(**given, **options)), options


def _diagnosis(source: random.Random) -> tuple[Callable[..., Any], dict[str, Any]]:
    data = _data(source, 90)
    del data["logits"]

    return (lambda **given: ha.diagnose(**given) and None), {**data, "l2": 0.1, "seed": 0}


_TRANSFER: Final = {"source": 0, "target": 1, "tolerance": 0.01, "l2": 0.1}

FUNCTIONS: Final[Mapping[str, tuple[float, Callable[[Path], Attempt]]]] = {
    "HessianAlignment": (8, _target(_align)),
    "hessian_distance": (6, _target(_distance)),
    "attribute_distances": (5, _target(_attributes)),
    "linear_head": (6, _target(_linear)),
    "autograd_head": (3, _target(_autograd)),
    "domain_layout": (4, _target(_layout, free=("z", "domain"))),
    "communication": (4, _target(_communication)),
    "transfer_bound": (1, _target(_heads(ha.transfer_bound, _TRANSFER))),
    "transfer_measure": (0.3, _target(_heads(ha.transfer_measure, {**_TRANSFER, "restarts": 1}))),
    "worst_case_gap": (0.5, _target(_gap, free=("head",))),
    "AlignedClassifier": (1, _target(_classifier, (ValueError, TypeError), ("domain",))),
    "diagnose": (0.02, _target(_diagnosis, free=("z",))),
}
"""Functions by name, and how large a part of all inputs each gets."""
