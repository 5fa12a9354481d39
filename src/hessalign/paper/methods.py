"""The rows that the Colored MNIST experiments share."""

from __future__ import annotations

from typing import Final

from hessalign.bench.algorithms import find_algorithm
from hessalign.bench.data.colored_mnist import Imbalance
from hessalign.paper.experiment import Method

ERM: Final = Method("ERM", "erm", published="erm")
IRM: Final = Method("IRM", "irm", published="irm")
VREX: Final = Method("V-REx", "vrex", published="vrex")
FISHR: Final = Method("Fishr", "fishr", published="fishr")
HGP: Final = Method("HGP", "hgp", published="hgp")
_DIAGONAL: Final = Method("Exact diagonal", "diagonal")
FULL: Final = Method("Full Hessian", "full")
GRADIENT: Final = Method("Gradient only (α = 0)", "gradient", published="gradient")

IMBALANCED: Final[dict[str, Imbalance]] = {
    "imbalanced 95/5, as the paper says": "paper",
    "imbalanced as the released code builds it": "released",
}
"""Both readings of the imbalanced data, by title."""

VERSIONS: Final[dict[str, Imbalance | None]] = {"balanced": None, **IMBALANCED}
"""All versions of the data, by title."""

_RELEASED_PROBES: Final[dict[Imbalance | None, int]] = {None: 150, "paper": 200, "released": 200}
"""Probes of the released scripts; the text says 100."""

_PAPER_PROBES: Final = 100


def hutchinson(imbalance: Imbalance | None) -> Method:
    """Hutchinson with the probes of the released script."""
    probes = _RELEASED_PROBES[imbalance]
    title = f"Hutchinson, {probes} probes (released code)"
    return Method(title, "hutchinson", {"probes": probes}, "hutchinson")


def _expected(imbalance: Imbalance | None) -> Method:
    """The expectation of the released Hutchinson penalty."""
    return Method("Hutchinson, expected", "expected", {"probes": _RELEASED_PROBES[imbalance]})


def on_features(method: Method) -> Method:
    """The same algorithm where hyper-parameters are drawn: a row without options of its own."""
    return Method(find_algorithm(method.algorithm).title, method.algorithm)


def comparison(imbalance: Imbalance | None) -> tuple[Method, ...]:
    """The methods of Tables 2 and 3, and our variants."""
    printed = Method(
        f"Hutchinson, {_PAPER_PROBES} probes (paper)",
        "hutchinson",
        {"probes": _PAPER_PROBES},
        "hutchinson",
    )
    return (
        ERM,
        IRM,
        VREX,
        FISHR,
        HGP,
        hutchinson(imbalance),
        printed,
        _expected(imbalance),
        _DIAGONAL,
        FULL,
    )


def published_six(imbalance: Imbalance | None = None) -> tuple[Method, ...]:
    """The six methods of the paper's Colored MNIST experiments."""
    return (ERM, IRM, VREX, FISHR, HGP, hutchinson(imbalance))
