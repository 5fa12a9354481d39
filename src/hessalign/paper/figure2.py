"""Figure 2: trained heads under attack, and what Theorem 1 predicts.

The heads are those of Colored MNIST, and those that model selection takes from a sweep on a feature
bank, if there is one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import Any, Final

import torch

from hessalign.bench.runs import Run
from hessalign.bench.runs.run import TrainedHead, trained_head
from hessalign.heads import WorstCaseGap, worst_case_gap
from hessalign.heads.attack import Mode
from hessalign.paper.experiment import (
    Experiment,
    Finished,
    Options,
    Report,
    no_runs,
    paper_six,
    plain,
    reading,
)
from hessalign.paper.figures import COLOURS, Rows, add_legend, make_axes, means, save
from hessalign.paper.published import measured, measured_columns
from hessalign.paper.sweeps import draw_range, select_jobs, swept_bank, train_all
from hessalign.report.tables import markdown_table

DELTAS: Final = (0.1, 0.2, 0.5, 1.0, 2.0)
_SAMPLES: Final = 1000
METHODS: Final = (*paper_six(), *plain("coral", "full"))
_BANK_DELTAS: Final = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_BANK_SAMPLES: Final = 500


def attack_head(
    trained: TrainedHead, deltas: Sequence[float], mode: Mode = "exact", seed: int = 0
) -> WorstCaseGap:
    """The attack on a trained head, on the samples that come with it."""
    inputs = (trained.z, trained.y, trained.domain, trained.head)
    generator = torch.Generator().manual_seed(seed)
    return worst_case_gap(*inputs, deltas, mode=mode, loss=trained.loss, generator=generator)


def _curves(result: WorstCaseGap) -> tuple[dict[str, Any], list[list[float]], list[list[float]]]:
    """What an attack found by radius, 0 first; then losses and accuracies of the domains."""
    steps = result.attacks
    curves = {
        "gap": [result.gap, *(each.gap for each in steps)],
        "certified": [True, *(each.certified for each in steps)],
        "predicted": [result.gap, *(each.predicted for each in steps)],
    }
    losses = [result.losses, *(each.losses for each in steps)]
    shares = [result.accuracy, *(each.accuracy for each in steps)]
    accuracies = [[100 * float(x) for x in share] for share in shares if share is not None]
    return curves, [each.tolist() for each in losses], accuracies


def _attack(run: Run) -> dict[str, Any]:
    """Attack the head of one run on Colored MNIST."""
    curves, losses, accuracies = _curves(attack_head(trained_head(run, _SAMPLES), DELTAS))
    curves["target_loss"] = [row[-1] for row in losses]
    curves["target_accuracy"] = [row[-1] for row in accuracies]
    return curves


def _present(finished: Finished) -> Report:
    """Attack all runs."""
    attacked = finished.measure(METHODS, _attack, "attacking on Colored MNIST", "heads")
    entries = [method.entry(**found) for method, found in attacked.items()]
    radii = (0.0, *DELTAS)
    tables = []
    figures: dict[str, Callable[[Path], None]] = {}
    if entries:
        header = ["method", "runs", *(f"δ = {delta:g}" for delta in radii)]
        for key in ("gap", "target_accuracy"):
            rows = [[x["method"], str(len(x["gap"])), *_cells(x, key)] for x in entries]
            tables.append(markdown_table(header, rows))
        figures["figure2"] = partial(_plot_methods, radii, entries)
    missing = no_runs([method.title for method in METHODS if method not in attacked])
    texts = [*tables, *missing]
    data: dict[str, Any] = {"deltas": list(radii), "heads": entries}
    bank = swept_bank(finished.options)
    if bank is not None:
        features = _present_features(bank, finished.options)
        texts += [f"## {bank}", *features.texts]
        data["features"] = features.data
        figures |= features.figures
    return Report(texts, data, figures, {"samples": _SAMPLES})


def _attack_twice(trained: TrainedHead) -> dict[str, Any]:
    """Attack one head of a bank, exactly and as published."""
    exact = attack_head(trained, _BANK_DELTAS)
    published = attack_head(trained, _BANK_DELTAS, "published")
    curves, losses, accuracies = _curves(exact)
    return {
        **curves,
        "published_gap": [published.gap, *(each.gap for each in published.attacks)],
        "reach": published.reach,
        "gradient_norm": exact.gradient_norm,
        "feature_norm": float(trained.z.norm(dim=1).mean()),
        "losses": losses,
        "accuracies": accuracies,
        "target_accuracy": [fmean(row[e] for e in trained.targets) for row in accuracies],
        "source_accuracy": [fmean(row[e] for e in trained.sources) for row in accuracies],
    }


def _present_features(bank: str, options: Options) -> Report:
    """Attack the selected heads of all methods on a feature bank."""
    methods = plain(*(method.algorithm for method in METHODS))
    chosen = select_jobs(options, [method.algorithm for method in methods])
    runs = train_all(options, [job for group in chosen.values() for job in group])
    found = [(job, each) for group in chosen.values() for job, each in group.items() if job in runs]
    attacked: dict[str, list[dict[str, Any]]] = {}
    names: tuple[str, ...] = ()
    for job, each in options.counted(found, f"attacking on {bank}", "heads"):
        trained = trained_head(runs[job].load(), _BANK_SAMPLES)
        names = trained.names
        head = {"trial": each.trial, "test_domain": names[each.test_domain]}
        head |= {"hparams_seed": each.hparams_seed, "draws": each.draws}
        attacked.setdefault(trained.algorithm, []).append(head | _attack_twice(trained))
    entries = [
        method.entry(heads=heads, **_over_trials(heads))
        for method in methods
        if (heads := attacked.get(method.algorithm))
    ]
    radii = (0.0, *_BANK_DELTAS)
    data: dict[str, Any] = {"dataset": bank, "domains": list(names)}
    data |= {"deltas": list(radii), "methods": entries}
    lacking = no_runs([each.title for each in methods if each.algorithm not in attacked])
    if not entries:
        return Report(lacking, data)
    texts = [*_describe_features(entries, bank), *lacking]
    figures = {"figure2-features": partial(_plot_methods, radii, entries)}
    for values in ("accuracies", "losses"):
        draw = partial(_plot_domains, radii, entries, names, values)
        figures[f"figure2-features-{values}"] = draw
    return Report(texts, data, figures)


_TABLES: Final = {
    "gap": "Largest gap, exact attack",
    "published_gap": "Largest gap, published attack",
    "target_accuracy": "Accuracy on the unseen domain",
    "source_accuracy": "Accuracy on the training domains",
}
"""What is shown of the heads of a feature bank."""


def _over_trials(heads: Rows) -> dict[str, list[list[float]]]:
    """Curves of the trials, each the mean over its test domains."""
    trials = sorted({head["trial"] for head in heads})
    groups = [[head for head in heads if head["trial"] == trial] for trial in trials]
    return {
        key: [[fmean(x) for x in zip(*(h[key] for h in group), strict=True)] for group in groups]
        for key in ("gap", "predicted", "published_gap", "target_accuracy", "source_accuracy")
    }


def _describe_features(entries: Rows, dataset: str) -> list[str]:
    """Tables of the attacked heads of a feature bank."""
    heads = [head for entry in entries for head in entry["heads"]]
    text = reading(
        "figure2-features",
        dataset=dataset,
        trials=max(len(entry["gap"]) for entry in entries),
        draws=draw_range(head["draws"] for head in heads),
        samples=_BANK_SAMPLES,
        reach=max(head["reach"] for head in heads),
    )
    header = ["method", "heads", "‖z‖", *(f"δ = {delta:g}" for delta in (0.0, *_BANK_DELTAS))]
    texts = [text]
    for key, title in _TABLES.items():
        rows = []
        for entry in entries:
            norm = geometric_mean(head["feature_norm"] for head in entry["heads"])
            count = str(len(entry["heads"]))
            rows.append([entry["method"], count, f"{norm:.2g}", *_cells(entry, key)])
        texts += [f"### {title}", markdown_table(header, rows)]
    return texts


def _cells(entry: Mapping[str, Any], key: str) -> list[str]:
    """Mean and spread by radius; those of exact gaps with Theorem 1's prediction in brackets."""
    found = measured_columns(entry[key], ".1f" if key.endswith("accuracy") else ".3f")
    if key != "gap":
        return found
    predicted = (measured(column).mean for column in zip(*entry["predicted"], strict=True))
    return [f"{cell} [{bound:.3f}]" for cell, bound in zip(found, predicted, strict=True)]


def _plot_methods(radii: Sequence[float], entries: Rows, path: Path) -> None:
    """Gap and accuracy of the unseen domain against the radius, one line per method."""
    figure, ((left, right),) = make_axes(9.4, 4.2, columns=2)
    for entry in entries:
        style = {"color": COLOURS.get(entry["algorithm"]), "markersize": 4}
        left.plot(radii, means(entry["gap"]), "o-", label=entry["method"], **style)
        left.plot(radii, means(entry["predicted"]), ":", **style)
        right.plot(radii, means(entry["target_accuracy"]), "o-", label=entry["method"], **style)
    left.set(ylabel="largest loss gap (dotted: Theorem 1)", yscale="log")
    right.set(ylabel="accuracy on the unseen domain (%)", ylim=(0, 100))
    for axes in (left, right):
        axes.set_xlabel(r"radius $\delta$")
    add_legend(figure, [right], 4)
    save(figure, path)


def _plot_domains(
    radii: Sequence[float], entries: Rows, names: Sequence[str], values: str, path: Path
) -> None:
    """Accuracy or loss of every domain against the radius: one column per domain left out."""
    unseen = {head["test_domain"] for entry in entries for head in entry["heads"]}
    left_out = [name for name in names if name in unseen]
    size = (1.6 + 2.2 * len(left_out), 1 + 1.7 * len(names))
    figure, grid = make_axes(*size, len(names), len(left_out), sharex=True, sharey=True)
    for column, test in zip(grid.T, left_out, strict=True):
        for place, (axes, name) in enumerate(zip(column, names, strict=True)):
            for entry in entries:
                heads = [head for head in entry["heads"] if head["test_domain"] == test]
                if heads:
                    curve = means([[point[place] for point in head[values]] for head in heads])
                    style = {"color": COLOURS.get(entry["algorithm"]), "linewidth": 1.2}
                    axes.plot(radii, curve, label=entry["method"], **style)
            if name == test:
                axes.set_facecolor("#f3efe4")
        column[0].set_title(f"{test} unseen", fontsize=9)
        column[-1].set_xlabel(r"radius $\delta$")
    for axes, name in zip(grid[:, 0], names, strict=True):
        axes.set_ylabel(name + (" (%)" if values == "accuracies" else ""))
    grid[0][0].set_xscale("symlog", linthresh=min(radii[1:]))
    if values == "losses":
        grid[0][0].set_yscale("log")
    add_legend(figure, [grid[0][0]], 4, fontsize=8)
    word = "Accuracy" if values == "accuracies" else "Loss"
    figure.suptitle(f"{word} of every domain under attack", fontsize=11)
    save(figure, path)


def plot_worst_case(result: WorstCaseGap, names: Sequence[str], path: Path, title: str) -> None:
    """Gap, losses and accuracies of an attacked head against the radius."""
    figure, (all_axes,) = make_axes(11, 3.6, columns=3)
    radii = [0.0, *(attack.delta for attack in result.attacks)]
    curves, found, shares = _curves(result)
    gaps, losses, accuracies = all_axes
    gaps.plot(radii, curves["gap"], "o-", label="found")
    gaps.plot(radii[1:], curves["predicted"][1:], "k--", label="Theorem 1, second order")
    gaps.set(ylabel="largest loss gap", title="gap")
    gaps.legend(frameon=False, fontsize=8)
    for index, name in enumerate(names):
        losses.plot(radii, [each[index] for each in found], "o-", label=name)
        known = [share[index] for share in shares]
        accuracies.plot(radii[: len(known)], known, "o-", label=name)
    losses.set(ylabel="loss", title="losses")
    accuracies.set(ylabel="accuracy (%)", ylim=(0, 100), title="accuracies")
    accuracies.legend(frameon=False, fontsize=8)
    for axes in all_axes:
        axes.set_xlabel(r"radius $\delta$")
    figure.suptitle(f"Attacked head ({result.mode}): {title}", fontsize=11)
    save(figure, path)


FIGURE_2: Final = Experiment("figure2", "Figure 2: heads under attack", _present, {None: METHODS})
