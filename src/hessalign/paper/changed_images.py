r"""Trained networks on changed images: the invariance profile and Figure 5.

The profile is accuracy and loss against the correlation of colour and label, ρ. An image's colour
agrees with its label with probability (1 + ρ)/2, so accuracy and mean loss are exactly

$$a(\rho) = \tfrac{1+\rho}2\, a(1) + \tfrac{1-\rho}2\, a(-1),$$

a straight line between the images all coloured as their labels and all coloured oppositely. Its
slope says how much the predictor uses colour, and in which direction: positive like ERM, negative
if it has learned to use colour backwards. The invariant predictor is flat at 75 %.

Figure 5 is accuracy on the unseen domain under the fast gradient sign method. Goodfellow et al.
(2015) move every pixel of both channels by ε in the direction that raises the loss,

$$x' = \text{clip}(x + \varepsilon\, \text{sign}\, \partial_x L,\, 0, 1).$$

The paper does not say whether it clips; images have values from 0 to 1, so we do.

One step can fail because the slope at the image says little of what lies further away, not because
nothing is there to be found. The iterated attack of Madry et al. (2018), with the slope taken anew
at each of its smaller steps and every pixel kept within ε of its start, tells these apart.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

import torch
from torch import Tensor
from torch.nn import functional

from hessalign.bench.algorithms import Batch
from hessalign.bench.runs import Run
from hessalign.bench.runs.irm import TARGET, measure
from hessalign.paper.experiment import Experiment, Finished, Report, comparison, paper_six, plain
from hessalign.paper.figures import COLOURS, add_legend, draw_band, make_axes, means, save
from hessalign.paper.published import measured, measured_columns
from hessalign.report.tables import markdown_table

_INVARIANT: Final = 75.0  # accuracy of the digit's shape alone: a quarter of the labels is wrong
_FLAT: Final = 2.0  # the largest mean slope, and spread of slopes, that counts as nearly invariant
_COLOURED: Final = comparison(None)


def profile(run: Run) -> dict[str, float]:
    """Accuracy and loss of a trained network with colour and label equal, and opposite."""
    domain = run.plan.data.domains[TARGET]
    grey, label = cast(Tensor, domain.inputs).sum(1), domain.labels
    values = {}
    for name, colour in (("agree", label), ("oppose", 1 - label)):
        coloured = grey.unsqueeze(1) * functional.one_hot(colour, 2)[:, :, None, None]
        with torch.no_grad():
            head, (right,) = measure(run.network, Batch(coloured, label, torch.zeros_like(label)))
        values[name] = 100 * float(right.mean())
        values[f"{name}_loss"] = math.nan if head is None else float(head.risk.mean())
    return values


def _line(agree: float, oppose: float) -> tuple[float, float, float]:
    """Of the line through both ends: value at 0, slope, distance to the invariant predictor."""
    middle, rise = (agree + oppose) / 2, (agree - oppose) / 2
    return middle, rise, math.sqrt((middle - _INVARIANT) ** 2 + rise**2 / 3)


def slope(run: Run) -> float:
    """How much a trained network uses colour, in percent per unit of ρ."""
    ends = profile(run)
    return _line(ends["agree"], ends["oppose"])[1]


def _measure_profile(run: Run) -> dict[str, float]:
    """The accuracies of a run, and its profile."""
    parts = {part: 100 * run.final[f"{part}_accuracy"] for part in ("train", "test")}
    return {**parts, **profile(run)}


def _present_profile(finished: Finished) -> Report:
    """Table and figure of the profiles of all methods."""
    found = finished.measure(_COLOURED, _measure_profile, "redrawing colours")
    entries = [
        method.entry(runs=len(values["agree"]), **values) for method, values in found.items()
    ]
    rows = []
    for entry in entries:
        middle, slopes, distance = zip(*map(_line, entry["agree"], entry["oppose"]), strict=True)
        rows.append(
            [
                entry["method"],
                str(entry["runs"]),
                *(str(measured(each)) for each in (entry["train"], entry["test"], middle)),
                measured(slopes).show("+.1f", ".1f"),
                str(measured(distance)),
                _reading(slopes),
            ]
        )
    header = ["method", "runs", "train", "OOD test", "at 0", "slope", "distance", "reading"]
    return Report(
        [markdown_table(header, rows)],
        {"profiles": entries},
        {"profile": lambda path: _plot_profiles(entries, path)},
        {"invariant": _INVARIANT},
    )


def _reading(slopes: Sequence[float]) -> str:
    """What predictors do with colour; restarts that do different things are not averaged."""
    middle = measured(slopes)
    if abs(middle.mean) <= _FLAT and middle.std <= _FLAT:
        return "nearly invariant"
    if min(slopes) > 0:
        return "trusts colour"
    return "uses colour backwards" if max(slopes) < 0 else "differs between restarts"


def _plot_profiles(entries: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Accuracy and loss against the correlation of colour and label, one line per method."""
    figure, ((left, right),) = make_axes(9.4, 4.2, columns=2)
    seen: set[str] = set()
    for entry in entries:
        style = {"color": COLOURS.get(entry["algorithm"]), "label": entry["method"]}
        style["linestyle"] = "--" if entry["algorithm"] in seen else "-"
        seen.add(entry["algorithm"])
        for axes, suffix in ((left, ""), (right, "_loss")):
            ends = [sum(entry[key + suffix]) / entry["runs"] for key in ("oppose", "agree")]
            axes.plot((-1, 1), ends, **style)
    left.axhline(75, color="black", linewidth=0.8, linestyle=":")
    left.set(ylabel="accuracy (%)", ylim=(0, 100))
    right.set(ylabel="loss", ylim=(0, None))  # linear, as the loss is in the correlation
    for axes in (left, right):
        axes.set(xlabel="correlation of colour and label", xticks=(-1, -0.5, 0, 0.5, 1))
        for rho, line in ((0.6, "-"), (0.8, "-"), (-0.8, "--")):
            axes.axvline(rho, color="black", linewidth=0.6, alpha=0.4, linestyle=line)
    place = {"ha": "center", "fontsize": 8, "bbox": {"color": "white", "pad": 1}}
    left.annotate("training\ndomains", (0.7, 3), **place)
    left.annotate("unseen\ndomain", (-0.8, 22), **place)
    add_legend(figure, [left], 4, fontsize=8)
    save(figure, path)


_EPSILONS: Final = (0.0, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.25, 0.3)
_ITERATED: Final = (0.1, 0.3)
_STEPS: Final = 10
_ATTACKED: Final = (*paper_six(), *plain("full"))


def _attacked_accuracy(run: Run, epsilons: Sequence[float], steps: int = 1) -> list[float]:
    """Accuracy on the unseen domain for each amplitude."""
    domain = run.plan.data.domains[TARGET]
    start, label = cast(Tensor, domain.inputs), domain.labels.float()

    def gradient(pixels: Tensor) -> Tensor:
        pixels = pixels.detach().requires_grad_()
        loss = functional.binary_cross_entropy_with_logits(run.network(pixels).squeeze(1), label)
        return torch.autograd.grad(loss, pixels)[0]

    first = gradient(start)
    accuracies = []
    for epsilon in epsilons:
        moved = start
        for step in range(steps):
            direction = (gradient(moved) if step else first).sign()
            moved = moved + epsilon * min(1.0, 2.5 / steps) * direction
            moved = moved.clamp(start - epsilon, start + epsilon).clamp(0, 1)
        with torch.no_grad():
            right = (run.network(moved).squeeze(1) > 0) == (label > 0.5)
        accuracies.append(100 * float(right.double().mean()))
    return accuracies


def _attack(run: Run) -> dict[str, list[float]]:
    """Both attacks on a trained network."""
    return {
        "accuracy": _attacked_accuracy(run, _EPSILONS),
        "iterated": _attacked_accuracy(run, _ITERATED, _STEPS),
    }


def _present_attack(finished: Finished) -> Report:
    """Table and figure of the curves of all methods."""
    curves = finished.measure(_ATTACKED, _attack, "attacking")
    entries = [method.entry(**found) for method, found in curves.items()]
    columns = [f"ε = {epsilon:g}" for epsilon in _EPSILONS]
    columns += [f"{epsilon:g} in {_STEPS} steps" for epsilon in _ITERATED]
    rows = [
        [
            method.title,
            str(len(found["accuracy"])),
            *measured_columns(found["accuracy"]),
            *measured_columns(found["iterated"]),
        ]
        for method, found in curves.items()
    ]
    return Report(
        [markdown_table(["method", "runs", *columns], rows)],
        {
            "epsilons": list(_EPSILONS),
            "iterated": {"epsilons": list(_ITERATED), "steps": _STEPS},
            "curves": entries,
        },
        {"figure5": lambda path: _plot_attack(entries, path)},
        {"steps": _STEPS},
    )


def _plot_attack(entries: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Accuracy against the amplitude of a perturbation: the mean and the range over restarts."""
    figure, ((axes,),) = make_axes(6.4, 4.2)
    for entry in entries:
        style = {"color": COLOURS.get(entry["algorithm"])}
        draw_band(axes, _EPSILONS, entry["accuracy"], {**style, "label": entry["method"]})
        axes.plot(_ITERATED, means(entry["iterated"]), "x", clip_on=False, **style)
    axes.plot([], [], "x", color="0.3", label="iterated attack")
    axes.set(
        xlabel=r"perturbation amplitude $\varepsilon$", ylabel="OOD accuracy (%)", ylim=(0, None)
    )
    axes.legend(frameon=False, fontsize=8)
    save(figure, path)


PROFILE: Final = Experiment(
    "profile",
    "Invariance profile: what each method does with colour",
    _present_profile,
    {None: _COLOURED},
)
FIGURE_5: Final = Experiment(
    "figure5",
    "Figure 5: OOD accuracy under adversarial perturbation",
    _present_attack,
    {None: _ATTACKED},
)
