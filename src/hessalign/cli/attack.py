"""`hessalign attack`: how bad a trained head can get within a radius (Figure 2)."""

from __future__ import annotations

import argparse
import json
import math
import sys
import textwrap
from collections.abc import Sequence
from typing import Any, Final, get_args

from torch import Tensor

from hessalign._errors import check_name
from hessalign._files import make_folder, write_atomically
from hessalign._numbers import check_count
from hessalign.bench.runs.run import TrainedHead, load_run, trained_head
from hessalign.bench.runs.run_folder import find_run
from hessalign.heads import WorstCaseGap
from hessalign.heads.attack import Mode
from hessalign.paper.figure2 import DELTAS, attack_head, plot_worst_case
from hessalign.paper.figures import load_pyplot
from hessalign.report.tables import markdown_table

_KEPT: Final = (
    "delta", "gap", "certified", "limit", "pair", "distance", "predicted", "losses", "accuracy",
)  # fmt: skip
"""What is kept of an attack at a radius."""


def run(options: argparse.Namespace) -> None:
    """Attack, show a table, and save it with a figure."""
    check_count(options.samples, "--samples")
    load_pyplot()  # better missed now than after the attack
    check_name("mode", options.mode, get_args(Mode))
    run_folder = find_run(options.folder)
    run = load_run(run_folder, options.data_dir)
    trained = trained_head(run, options.samples, options.seed)
    folder = make_folder(options.output or run_folder / "attack")
    result = attack_head(trained, options.delta or DELTAS, options.mode, options.seed)
    names = domain_titles(trained)
    table = _describe(result, names)
    data = json.dumps(_record(trained, result, options.samples), indent=1, default=Tensor.tolist)
    write_atomically(folder / "attack.json", (data + "\n").encode())
    write_atomically(folder / "attack.md", (table + "\n").encode())
    figure = folder / "attack.png"
    plot_worst_case(result, names, figure, f"{trained.algorithm}, seed {trained.seed}")
    sys.stdout.write(f"{table}\n\nSaved in {folder}\n")


def domain_titles(trained: TrainedHead) -> list[str]:
    """What the domains are called, and which were not trained on where the name does not say so."""
    return [
        f"{name} (unseen)" if number in trained.targets and name != "target" else name
        for number, name in enumerate(trained.names)
    ]


def _describe(result: WorstCaseGap, names: Sequence[str]) -> str:
    """The attack as a table."""
    far = result.reach
    limit = "" if far is None else f" It cannot move further than about {far:.2g}."
    text = (
        f"Mode {result.mode}.{limit} Gap: the largest difference of two domains' losses with the "
        "head within δ of the trained one; predicted: Theorem 1 to second order for that pair. The "
        f"gradient of the mean risk at the trained head has norm {result.gradient_norm:.2g}. "
        "Certified: whether it is proved that no head within δ has a larger gap; elsewhere the gap "
        "is the largest found."
    )
    rows = [["0", f"{result.gap:.3f}", "", "", "", *_cells(result.losses, result.accuracy)]]
    rows += [
        [
            f"{attack.delta:g}",
            f"{attack.gap:.3f}",
            "yes" if attack.certified else "no",
            f"{names[attack.pair[0]]} − {names[attack.pair[1]]}",
            f"{attack.predicted:.3f}",
            *_cells(attack.losses, attack.accuracy),
        ]
        for attack in result.attacks
    ]
    header = ["δ", "gap", "certified", "pair", "predicted"]
    header += [f"{name}: loss, accuracy" for name in names]
    return f"{textwrap.fill(text, 100)}\n\n{markdown_table(header, rows, text_columns=0)}"


def _cells(losses: Tensor, accuracy: Tensor | None) -> list[str]:
    cells = [f"{float(loss):.3f}" for loss in losses]
    if accuracy is None:
        return cells
    shares = [f"{100 * float(share):.1f} %" for share in accuracy]
    return list(map(", ".join, zip(cells, shares, strict=True)))


def _record(trained: TrainedHead, result: WorstCaseGap, samples: int) -> dict[str, Any]:
    """The attack as plain values and tensors."""
    return {
        "algorithm": trained.algorithm,
        "seed": trained.seed,
        "mode": result.mode,
        "samples_per_domain": samples,
        "domains": trained.names,
        "unseen": trained.targets,
        "reach": result.reach,
        "gradient_norm": result.gradient_norm,
        "gap": result.gap,
        "attacks": [
            {name: getattr(attack, name) for name in _KEPT}
            | ({} if math.isfinite(attack.limit) else {"limit": None})
            for attack in result.attacks
        ],
    }
