"""What averages of weights do: `python -m benchmarks.averaging`.

On PACS features it reads sweeps (docs/findings.md has their commands) with last iterates and
averages of the same runs; on Colored MNIST, by the setup of `benchmarks.methods`, runs that are
missing are done.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import fmean, stdev

from benchmarks.methods import RESTARTS, jobs
from benchmarks.output import write_result
from benchmarks.study import train_missing
from hessalign.bench.algorithms import find_algorithm
from hessalign.bench.sweep.selection import collect
from hessalign.bench.sweep.selection.tables import paired_difference
from hessalign.paper.experiment import cached_runs
from hessalign.report.tables import markdown_table

IMAGES = 10_000
RULES = ("uniform", "ema", "swad")
SELECTIONS = ("training-domain", "oracle")

Trials = dict[int, float]
"""Accuracy in percent by trial, the mean over test domains."""


def accuracies(folder: Path, *, averaged: bool) -> dict[str, Trials]:
    """Of the one algorithm of a sweep, by selection; only those that its runs allow."""
    found = {}
    for table in collect(folder, SELECTIONS, averaged=averaged).tables:
        if table.dataset is None:
            continue
        by_trial: dict[int, list[float]] = {}
        for cell in table.rows[0].cells:
            for candidate in cell.chosen:
                trial = candidate.run.key.trial_seed
                by_trial.setdefault(trial, []).append(100 * candidate.test)
        found[table.selection.name] = {trial: fmean(each) for trial, each in by_trial.items()}
    return found


def on_features(folder: Path) -> tuple[dict[str, dict[str, Trials]], list[list[str]]]:
    """The rows of sweeps below a folder that are there."""
    found: dict[str, dict[str, Trials]] = {}
    rows = []
    for rule in RULES:
        if not (folder / rule).is_dir():
            continue
        last = f"last iterate ({rule})"
        found[last] = accuracies(folder / rule, averaged=False)
        found[rule] = accuracies(folder / rule, averaged=True)
        compared = [last, rule]
        for members in ("restricted", "uniform"):
            average = folder / f"{rule}-{members}"
            if average.is_dir():  # one run each, which leaves nothing to select
                title = f"DiWA {members}, of {rule} averages"
                each = accuracies(average, averaged=False)
                found[title] = {"training-domain": each["training-domain"]}
                compared.append(title)
        for title in compared:
            cells = []
            for selection in SELECTIONS:
                values = found[title].get(selection)
                if values is None:
                    cells += ["–", "–"]
                    continue
                cells.append(f"{fmean(values.values()):.1f} ± {stdev(values.values()):.1f}")
                difference = paired_difference(values, found[last][selection])
                cells.append("–" if title == last else str(difference))
            rows.append([title, *cells])
    return found, rows


def on_digits(
    cache: Path, at_once: int
) -> tuple[dict[str, list[dict[str, float]]], list[list[str]]]:
    """Colored MNIST: accuracies of the last iterates and of the averages, run by run."""
    found: dict[str, list[dict[str, float]]] = {}
    rows = []
    for algorithm in ("erm", "hgp"):
        for rule in RULES:
            wanted = jobs(algorithm, IMAGES, average=rule)
            train_missing(wanted, cache, at_once)
            names = [
                f"{kind}{part}_accuracy" for kind in ("", "avg_") for part in ("train", "test")
            ]
            values = [
                {name: 100 * run.final[name] for name in names}
                for run in cached_runs(cache, wanted)
            ]
            title = find_algorithm(algorithm).title
            found[f"{title}, {rule}"] = values
            columns = [[each[name] for each in values] for name in names]
            rows.append([title, rule, *(f"{fmean(x):.1f} ± {stdev(x):.1f}" for x in columns)])
    return found, rows


def main() -> None:
    """Read the sweeps, do the runs, write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m benchmarks.averaging")
    parser.add_argument("--sweeps", type=Path, default=Path("outputs/averaging"), metavar="DIR")
    parser.add_argument("--cache", type=Path, default=Path("outputs/methods"), metavar="DIR")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--output", type=Path, default=Path("results/averaging"), metavar="DIR")
    options = parser.parse_args()
    features, first = on_features(options.sweeps)
    digits, second = on_digits(options.cache, options.jobs)
    header = ["ERM, PACS features", *(x for name in SELECTIONS for x in (name, "paired"))]
    parts = ["train", "OOD test", "averaged: train", "averaged: OOD test"]
    text = (
        "# Averaging weights\n\nMade by `python -m benchmarks.averaging` of the sweeps that "
        "docs/findings.md names. Percent, mean ± standard deviation over trials or "
        f"{RESTARTS} restarts; paired: difference to the last iterates of the same runs, mean ± "
        "standard error over trials.\n\n"
        + markdown_table(header, first)
        + "\n\n"
        + markdown_table([f"Colored MNIST, {IMAGES:,} images", "average", *parts], second)
    )
    write_result(options.output, "averaging", {"pacs": features, "colored_mnist": digits}, text)


if __name__ == "__main__":
    main()
