r"""Figure 5: accuracy on the unseen domain under the fast gradient sign method.

Goodfellow et al. (2015) move every pixel of both channels by ε in the direction that raises the
loss,

$$x' = \text{clip}(x + \varepsilon\, \text{sign}\, \partial_x L,\, 0, 1).$$

The paper does not say whether it clips; images have values from 0 to 1, so we do.

One step can fail because the slope at the image says little of what lies further away, not because
nothing is there to be found. The iterated attack of Madry et al. (2018), with the slope taken anew
at each of its smaller steps and every pixel kept within ε of its start, tells these apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast

import torch
from torch import Tensor
from torch.nn import functional

from hessalign.bench.runs import Run
from hessalign.bench.runs.irm import TARGET
from hessalign.paper.curves import plot_attack
from hessalign.paper.experiment import (
    FULL,
    Experiment,
    Finished,
    Method,
    Options,
    Report,
    published_six,
)
from hessalign.paper.published import measured
from hessalign.report.tables import markdown_table

_EPSILONS: Final = (0.0, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.25, 0.3)
_ITERATED: Final = (0.1, 0.3)
_STEPS: Final = 10
_METHODS: Final = (*published_six(), FULL)
_READING: Final = (
    "OOD accuracy in percent when every pixel is moved by ε against the classifier (both colour "
    "channels, clipped to 0…1), mean ± standard deviation over restarts. The paper shows the six "
    "methods as curves without numbers and finds Hutchinson the most robust. The columns with "
    f"{_STEPS} steps are from the iterated attack, which takes the slope anew at each step: what "
    "it finds beyond the single step, that step missed."
)


def _attacked_accuracy(run: Run, epsilons: Sequence[float], steps: int = 1) -> list[float]:
    """Accuracy on the unseen domain for each amplitude."""
    domain = run.plan.data.domains[TARGET]
    start, label = cast(Tensor, domain.inputs), domain.labels.float()

    def slope(pixels: Tensor) -> Tensor:
        pixels = pixels.detach().requires_grad_()
        loss = functional.binary_cross_entropy_with_logits(run.network(pixels).squeeze(1), label)
        return torch.autograd.grad(loss, pixels)[0]

    first = slope(start)
    accuracies = []
    for epsilon in epsilons:
        moved = start
        for step in range(steps):
            direction = (slope(moved) if step else first).sign()
            moved = moved + epsilon * min(1.0, 2.5 / steps) * direction
            moved = moved.clamp(start - epsilon, start + epsilon).clamp(0, 1)
        with torch.no_grad():
            right = (run.network(moved).squeeze(1) > 0) == (label > 0.5)
        accuracies.append(100 * float(right.double().mean()))
    return accuracies


def _present(finished: Finished, options: Options) -> Report:
    """Table and figure of the curves of all methods."""
    curves: dict[Method, dict[str, list[list[float]]]] = {}
    runs = [(method, run) for method in _METHODS for run in finished(method, None)]
    for method, each in options.counted(runs, "attacking", "runs"):
        run = each.load()
        found = curves.setdefault(method, {"accuracy": [], "iterated": []})
        found["accuracy"].append(_attacked_accuracy(run, _EPSILONS))
        found["iterated"].append(_attacked_accuracy(run, _ITERATED, _STEPS))
    entries: list[dict[str, Any]] = [
        {"method": method.title, "algorithm": method.algorithm, **found}
        for method, found in curves.items()
    ]
    table = markdown_table(
        [
            "method",
            "runs",
            *(f"ε = {epsilon:g}" for epsilon in _EPSILONS),
            *(f"{epsilon:g} in {_STEPS} steps" for epsilon in _ITERATED),
        ],
        [
            [
                entry["method"],
                str(len(entry["accuracy"])),
                *(str(measured(values)) for values in zip(*entry["accuracy"], strict=True)),
                *(str(measured(values)) for values in zip(*entry["iterated"], strict=True)),
            ]
            for entry in entries
        ],
    )
    return Report(
        _READING + "\n\n" + table,
        {
            "epsilons": list(_EPSILONS),
            "iterated": {"epsilons": list(_ITERATED), "steps": _STEPS},
            "curves": entries,
        },
        {"figure5": lambda path: plot_attack(_EPSILONS, entries, _ITERATED, path)},
    )


FIGURE_5 = Experiment(
    "figure5",
    "Figure 5: OOD accuracy under adversarial perturbation",
    _present,
    tuple((method, None) for method in _METHODS),
)
