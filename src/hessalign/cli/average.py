"""`hessalign average`: one network from the runs of a sweep, by averaging their weights."""

from __future__ import annotations

import argparse
import sys

from hessalign.bench.sweep.diwa import average_sweep
from hessalign.report.progress import warn
from hessalign.report.tables import markdown_table


def run(options: argparse.Namespace) -> None:
    """Average, and print what came of it beside the best single runs."""
    found = average_sweep(
        options.folder,
        options.output,
        rule=options.members,
        across_trials=options.across_trials,
        data_dir=options.data_dir,
        warn=warn,
    )
    rows = [
        [
            each.dataset,
            each.algorithm,
            ", ".join(each.test_domains),
            ", ".join(map(str, each.trials)),
            f"{len(each.members)} of {len(each.runs)}",
            _percent(each.held_out(each.best)),
            # What one trial holds out, others have trained on.
            "–" if len(each.trials) > 1 else _percent(each.held_out(each.accuracies)),
            _percent(each.test(each.best)),
            _percent(each.test(each.accuracies)),
        ]
        for each in found
    ]
    header = [
        "data set", "algorithm", "test domain", "trial", "averaged", "best run, held out",
        "average, held out", "best run, test", "average, test",
    ]  # fmt: skip
    saved = "".join(f"Saved in {each.path}\n" for each in found)
    sys.stdout.write(f"{markdown_table(header, rows, text_columns=3)}\n{saved}")


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"
