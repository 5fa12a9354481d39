"""Figure 2 on a feature bank: the heads that model selection takes from a sweep, under attack."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, geometric_mean
from typing import Any, Final

import torch

from hessalign.bench.runs.trained_head import TrainedHead, domain_run_head
from hessalign.heads import worst_case_gap
from hessalign.paper.attack_figures import plot_attacked_domains, plot_attacked_heads
from hessalign.paper.experiment import Method, Options, Report
from hessalign.paper.feature_sweep import FeatureSweep, select_jobs, train_all
from hessalign.paper.verdict import measured
from hessalign.report.tables import markdown_table

DELTAS: Final = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
SAMPLES: Final = 500
READING: Final = (
    "The same attack on {dataset}: for each trial ({trials} in all) and test domain the draw of "
    "hyper-parameters that is best on the training domains' held-out parts, among {draws}; "
    "{samples:,} samples of each domain, all domains under attack, the unseen one too. Mean over "
    "test domains, then over trials, ± standard deviation over trials. First the largest gap "
    "found, Theorem 1's second-order prediction in brackets; then the gap that the published "
    "procedure finds (Adam with learning rate 5e-5, ten epochs), which cannot move further than "
    "about {reach:.2g}, so that beyond it its radius makes no difference; then the accuracies of "
    "the unseen domain and of the training domains at the attacked head. Losses and accuracies of "
    "every domain are in the JSON file and the figures. *‖z‖* is the mean norm of the features: a "
    "head that moves by δ moves logits by at most δ·‖z‖ (and the bias), so the same δ is a weaker "
    "attack where features are small."
)


def attack(trained: TrainedHead) -> dict[str, Any]:
    """Attack one head, exactly and as published.

    Args:
        trained: The head with samples of all domains.

    Returns:
        By name, one value per radius, the trained head itself first; losses and accuracies with
        one value per domain.
    """
    results = {
        mode: worst_case_gap(
            trained.z,
            trained.y,
            trained.domain,
            trained.head,
            DELTAS,
            mode=mode,
            loss=trained.loss,
            generator=torch.Generator().manual_seed(0),
        )
        for mode in ("exact", "published")
    }
    exact, published = results["exact"], results["published"]
    losses = [exact.losses, *(each.losses for each in exact.attacks)]
    shares = [exact.accuracy, *(each.accuracy for each in exact.attacks)]
    accuracies = [[100 * float(x) for x in share] for share in shares if share is not None]
    return {
        "gap": [exact.gap, *(each.gap for each in exact.attacks)],
        "certified": [True, *(each.certified for each in exact.attacks)],
        "predicted": [exact.gap, *(each.predicted for each in exact.attacks)],
        "published_gap": [published.gap, *(each.gap for each in published.attacks)],
        "reach": published.reach,
        "gradient_norm": exact.gradient_norm,
        "feature_norm": float(trained.z.norm(dim=1).mean()),
        "losses": [each.tolist() for each in losses],
        "accuracies": accuracies,
        "target_accuracy": [_mean(row, trained.targets) for row in accuracies],
        "source_accuracy": [_mean(row, trained.sources) for row in accuracies],
    }


def _mean(values: Sequence[float], places: Sequence[int]) -> float:
    return fmean(values[place] for place in places)


def present_features(methods: Sequence[Method], sweep: FeatureSweep, options: Options) -> Report:
    """Attack the selected heads of all methods.

    Args:
        methods: The methods.
        sweep: The sweep.
        options: Says how to show how far it is.

    Returns:
        Tables and figures.
    """
    chosen = select_jobs(sweep, [method.algorithm for method in methods])
    runs = train_all(sweep, [each.job for group in chosen.values() for each in group])
    attacked: dict[Method, list[dict[str, Any]]] = {}
    names: tuple[str, ...] = ()
    selected = [
        (method, each)
        for method in methods
        for each in chosen[method.algorithm]
        if each.job in runs
    ]
    for method, each in options.counted(selected, f"attacking on {sweep.dataset}", "heads"):
        trained = domain_run_head(runs[each.job], SAMPLES)
        names = trained.names
        head = {
            "trial": each.job.trial_seed,
            "test_domain": trained.names[each.job.test_domains[0]],
            "hparams_seed": each.job.hparams_seed,
            "draws": each.draws,
        }
        attacked.setdefault(method, []).append(head | attack(trained))
    entries: list[dict[str, Any]] = [
        {"method": method.title, "algorithm": method.algorithm, "heads": heads} | over_trials(heads)
        for method, heads in attacked.items()
    ]
    missing = [m.title for m in methods if m.title not in [e["method"] for e in entries]]
    return make_report(entries, missing, names, sweep.dataset)


def over_trials(heads: Sequence[Mapping[str, Any]]) -> dict[str, list[list[float]]]:
    """Curves of the trials, each the mean over its test domains.

    Args:
        heads: Attacked heads.

    Returns:
        By name, one curve per trial.
    """
    trials = sorted({head["trial"] for head in heads})
    curves: dict[str, list[list[float]]] = {}
    for key in ("gap", "predicted", "published_gap", "target_accuracy", "source_accuracy"):
        curves[key] = [
            [
                fmean(column)
                for column in zip(*(h[key] for h in heads if h["trial"] == trial), strict=True)
            ]
            for trial in trials
        ]
    return curves


def make_report(
    entries: Sequence[dict[str, Any]], missing: Sequence[str], names: Sequence[str], dataset: str
) -> Report:
    """Tables and figures of attacked heads.

    Args:
        entries: The methods.
        missing: Titles of those without runs.
        names: Of the domains.
        dataset: Name of the feature bank.

    Returns:
        The report.
    """
    heads = [head for entry in entries for head in entry["heads"]]
    radii = (0.0, *DELTAS)
    data = {"dataset": dataset, "domains": list(names), "deltas": list(radii), "methods": entries}
    lacking = [f"No runs yet: {', '.join(missing)}."] if missing else []
    if not entries:
        return Report("\n\n".join(lacking), data)
    draws = sorted({head["draws"] for head in heads})
    text = READING.format(
        dataset=dataset,
        trials=max(len(entry["gap"]) for entry in entries),
        draws=" to ".join(map(str, sorted({draws[0], draws[-1]}))),
        samples=SAMPLES,
        reach=max(head["reach"] for head in heads),
    )
    header = ["method", "heads", "‖z‖", *(f"δ = {delta:g}" for delta in radii)]
    tables: list[tuple[str, Callable[[Mapping[str, Any]], list[str]]]] = [
        ("Largest gap, exact attack", lambda entry: gap_cells(entry["gap"], entry["predicted"])),
        ("Largest gap, published attack", lambda entry: curve_cells(entry["published_gap"], ".3f")),
        ("Accuracy on the unseen domain", lambda entry: curve_cells(entry["target_accuracy"])),
        ("Accuracy on the training domains", lambda entry: curve_cells(entry["source_accuracy"])),
    ]
    texts = [text]
    for title, cells in tables:
        rows = [
            [entry["method"], str(len(entry["heads"])), norm_cell(entry["heads"]), *cells(entry)]
            for entry in entries
        ]
        texts += [f"### {title}", markdown_table(header, rows)]
    return Report(
        "\n\n".join([*texts, *lacking]),
        data,
        {
            "figure2-features": lambda path: plot_attacked_heads(radii, entries, path),
            "figure2-features-accuracies": lambda path: plot_attacked_domains(
                radii, entries, names, "accuracies", path
            ),
            "figure2-features-losses": lambda path: plot_attacked_domains(
                radii, entries, names, "losses", path
            ),
        },
    )


def norm_cell(heads: Sequence[Mapping[str, Any]]) -> str:
    """The norm of features of some heads.

    Args:
        heads: Attacked heads.

    Returns:
        The geometric mean.
    """
    return f"{geometric_mean(head['feature_norm'] for head in heads):.2g}"


def gap_cells(gaps: Sequence[Sequence[float]], predicted: Sequence[Sequence[float]]) -> list[str]:
    """Gaps with Theorem 1's prediction in brackets.

    Args:
        gaps: One curve per trial.
        predicted: Likewise.

    Returns:
        One text per radius.
    """
    cells = []
    for column, bound in zip(zip(*gaps, strict=True), zip(*predicted, strict=True), strict=True):
        found = measured(column).show(".3f", ".3f")
        cells.append(f"{found} [{measured(bound).mean:.3f}]")
    return cells


def curve_cells(curves: Sequence[Sequence[float]], form: str = ".1f") -> list[str]:
    """Mean and spread over trials.

    Args:
        curves: One per trial.
        form: How numbers are written.

    Returns:
        One text per radius.
    """
    return [measured(column).show(form, form) for column in zip(*curves, strict=True)]
