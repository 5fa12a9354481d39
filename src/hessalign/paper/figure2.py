"""Figure 2: trained heads under attack, and what Theorem 1 predicts."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import nn

from hessalign._errors import InputTypeError
from hessalign.bench.runs import Run
from hessalign.bench.runs.colored_mnist import LOSS, head_inputs
from hessalign.heads import worst_case_gap
from hessalign.paper.attack_figures import plot_attacked_heads
from hessalign.paper.attacked_features import gap_cells, present_features
from hessalign.paper.experiment import Experiment, Finished, Method, Options, Report
from hessalign.paper.methods import FULL, on_features, published_six
from hessalign.paper.verdict import measured
from hessalign.report.tables import markdown_table

DELTAS: Final = (0.1, 0.2, 0.5, 1.0, 2.0)
SAMPLES: Final = 1000
CORAL: Final = Method("CORAL", "coral")
METHODS: Final = (*published_six(), CORAL, FULL)
READING: Final = (
    "The head of each trained run is moved within ‖θ − θ*‖ ≤ δ so that the losses of two domains "
    "(two sources, one target) differ as much as possible: exact attack, {samples:,} images of "
    "each domain, features fixed. Above, the largest gap found, with Theorem 1's second-order "
    "prediction for that pair in brackets; below, the accuracy of the unseen domain at the "
    "attacked head. Mean over restarts, ± standard deviation. The paper attacks ResNet-50 heads "
    "and shows accuracies without numbers; it finds that Hessian alignment loses least."
)


def attack(run: Run) -> dict[str, list[float]]:
    """Attack one run's head.

    Args:
        run: A finished run.

    Returns:
        By name, one value per radius, the trained head itself first.

    Raises:
        InputTypeError: If the head is not linear.
    """
    head = run.network.head
    if not isinstance(head, nn.Linear):
        raise InputTypeError(f"Expected a linear head, got {type(head).__name__}.")
    z, y, domain = head_inputs(run, SAMPLES, seed=0)
    generator = torch.Generator().manual_seed(0)
    result = worst_case_gap(z, y, domain, head, DELTAS, loss=LOSS, generator=generator)
    accuracies = [result.accuracy, *(each.accuracy for each in result.attacks)]
    return {
        "gap": [result.gap, *(each.gap for each in result.attacks)],
        "certified": [True, *(each.certified for each in result.attacks)],
        "predicted": [result.gap, *(each.predicted for each in result.attacks)],
        "target_loss": [float(result.losses[-1]), *(float(a.losses[-1]) for a in result.attacks)],
        "target_accuracy": [100 * float(share[-1]) for share in accuracies if share is not None],
    }


def present(finished: Finished, options: Options) -> Report:
    """Attack all runs.

    Args:
        finished: Gives the runs of Colored MNIST.
        options: How they were made, and the sweep on features if there is one.

    Returns:
        Tables and figure.
    """
    attacked: dict[Method, list[dict[str, list[float]]]] = {}
    runs = [(method, run) for method in METHODS for run in finished(method, None)]
    for method, run in options.counted(runs, "attacking on Colored MNIST", "heads"):
        attacked.setdefault(method, []).append(attack(run))
    entries: list[dict[str, Any]] = []
    for method, attacks in attacked.items():
        values = {key: [each[key] for each in attacks] for key in attacks[0]}
        entries.append({"method": method.title, "algorithm": method.algorithm, **values})
    header = ["method", "runs", "δ = 0", *(f"δ = {delta:g}" for delta in DELTAS)]
    gaps = [
        [entry["method"], str(len(entry["gap"])), *gap_cells(entry["gap"], entry["predicted"])]
        for entry in entries
    ]
    accuracies = [
        [
            entry["method"],
            str(len(entry["gap"])),
            *(str(measured(column)) for column in zip(*entry["target_accuracy"], strict=True)),
        ]
        for entry in entries
    ]
    missing = [m.title for m in METHODS if m.title not in [entry["method"] for entry in entries]]
    text = "\n\n".join(
        [
            READING.format(samples=SAMPLES),
            *(
                [markdown_table(header, gaps), markdown_table(header, accuracies)]
                if entries
                else []
            ),
            *([f"No runs yet: {', '.join(missing)}."] if missing else []),
        ]
    )
    radii = (0.0, *DELTAS)
    report = Report(
        f"## Colored MNIST\n\n{text}",
        {"deltas": list(radii), "heads": entries},
        {"figure2": lambda path: plot_attacked_heads(radii, entries, path)} if entries else {},
    )
    if options.sweep is None:
        return report
    features = present_features([on_features(method) for method in METHODS], options.sweep, options)
    return Report(
        f"{report.text}\n\n## {options.sweep.dataset}\n\n{features.text}",
        {**report.data, "features": features.data},
        {**report.figures, **features.figures},
    )


FIGURE_2 = Experiment(
    "figure2",
    "Figure 2: heads under attack",
    tuple((method, None) for method in METHODS),
    present,
)
