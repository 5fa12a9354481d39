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
from hessalign.paper.experiment import Experiment, Finished, Method, Options, Report
from hessalign.paper.methods import FULL, published_six
from hessalign.paper.verdict import measured
from hessalign.report.tables import markdown_table

EPSILONS: Final = (0.0, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.25, 0.3)
ITERATED: Final = (0.1, 0.3)
STEPS: Final = 10
METHODS: Final = (*published_six(), FULL)
READING: Final = (
    "OOD accuracy in percent when every pixel is moved by ε against the classifier (both colour "
    "channels, clipped to 0…1), mean ± standard deviation over restarts. The paper shows the six "
    "methods as curves without numbers and finds Hutchinson the most robust. The columns with "
    f"{STEPS} steps are from the iterated attack, which takes the slope anew at each step: what it "
    "finds beyond the single step, that step missed."
)


def attacked_accuracy(run: Run, epsilons: Sequence[float], steps: int = 1) -> list[float]:
    """Accuracy on the unseen domain for each amplitude.

    Args:
        run: A finished run.
        epsilons: Amplitudes, how far each pixel may move.
        steps: How often the slope is taken. With one, each pixel moves by ε at once; with more,
            each step is 2.5 ε over their number, which lets pixels turn back.

    Returns:
        Accuracies in percent.
    """
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


def present(finished: Finished, options: Options) -> Report:
    """Table and figure of the curves of all methods."""
    curves: dict[Method, dict[str, list[list[float]]]] = {}
    runs = [(method, run) for method in METHODS for run in finished(method, None)]
    for method, each in options.counted(runs, "attacking", "runs"):
        run = each.load()
        found = curves.setdefault(method, {"accuracy": [], "iterated": []})
        found["accuracy"].append(attacked_accuracy(run, EPSILONS))
        found["iterated"].append(attacked_accuracy(run, ITERATED, STEPS))
    entries: list[dict[str, Any]] = [
        {"method": method.title, "algorithm": method.algorithm, **found}
        for method, found in curves.items()
    ]
    table = markdown_table(
        [
            "method",
            "runs",
            *(f"ε = {epsilon:g}" for epsilon in EPSILONS),
            *(f"{epsilon:g} in {STEPS} steps" for epsilon in ITERATED),
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
        READING + "\n\n" + table,
        {
            "epsilons": list(EPSILONS),
            "iterated": {"epsilons": list(ITERATED), "steps": STEPS},
            "curves": entries,
        },
        {"figure5": lambda path: plot_attack(EPSILONS, entries, ITERATED, path)},
    )


FIGURE_5 = Experiment(
    "figure5",
    "Figure 5: OOD accuracy under adversarial perturbation",
    present,
    tuple((method, None) for method in METHODS),
)
