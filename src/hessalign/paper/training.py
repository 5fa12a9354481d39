"""What training does and takes: Hessian distance on its way (Figures 3 and 4), time (Table 5)."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from statistics import StatisticsError, correlation, median, quantiles
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional

from hessalign.bench.algorithms import ALGORITHMS, Batch, Step
from hessalign.bench.data.colored_mnist import Imbalance
from hessalign.bench.models import Network
from hessalign.bench.runs import Run, plan_job
from hessalign.bench.runs.irm import image_batch, irm_job
from hessalign.bench.runs.loop import start_optimizers, update
from hessalign.bench.runs.machine import keep_freed_memory
from hessalign.paper.experiment import (
    IMBALANCED,
    Experiment,
    Finished,
    FinishedRun,
    Method,
    Report,
    hutchinson,
    plain,
)
from hessalign.paper.figures import COLOURS, add_legend, draw_band, make_axes, save
from hessalign.paper.published import TABLE_5 as PUBLISHED
from hessalign.paper.published import measured
from hessalign.report.tables import markdown_table

# ruff: noqa: ANN401 - matplotlib is an optional dependency, so what it makes has no types here

_VERSIONS: Final[dict[str, Imbalance | None]] = {"balanced": None, **IMBALANCED}
_METHODS: Final = {version: (*plain("hgp"), hutchinson(version)) for version in _VERSIONS.values()}
_DISTANCE: Final = r"$\|H_1-H_2\|_F$"
_METRICS: Final = {
    "hessian_distance": (_DISTANCE, 1),
    "test_accuracy": ("OOD accuracy (%)", 100),
    "test_loss": ("OOD loss", 1),
}
"""What is drawn: its label and unit."""
_JUDGED: Final = ("test_accuracy", "test_loss")
_Groups = Mapping[tuple[str, Method], Sequence[FinishedRun]]
"""Runs by title of the version of the data, and method."""
_Described = tuple[dict[str, Any], list[str]]  # values of a group, and cells of a table


def _series(run: FinishedRun, metric: str, start: int = 0) -> list[float]:
    """One metric along a run, from some step on."""
    return [record.metrics[metric] for record in run.records if record.step >= start]


def _correlations(runs: Sequence[FinishedRun], metric: str) -> list[float]:
    """Correlations of log ‖H₁ − H₂‖ with a metric, one for each run in which both vary."""
    found = []
    for run in runs:
        jump = run.options.jump
        distances = [math.log(max(x, 1e-300)) for x in _series(run, "hessian_distance", jump)]
        with suppress(StatisticsError):
            found.append(correlation(distances, _series(run, metric, jump)))
    return found


def _describe_correlations(runs: Sequence[FinishedRun]) -> _Described:
    found = {metric: _correlations(runs, metric) for metric in _JUDGED}
    cells = [measured(x).show("+.2f", ".2f") if x else "–" for x in found.values()]
    return {"runs": len(runs), **found}, cells


def _describe_distances(runs: Sequence[FinishedRun]) -> _Described:
    last = [run.final["hessian_distance"] for run in runs]
    curves = [_series(run, "hessian_distance") for run in runs]
    middle = [math.fsum(each) / len(each) for each in zip(*curves, strict=True)]
    steps = [record.step for record in runs[0].records]
    cells = [measured(last).show(".1e", ".0e")]
    return {"final": last, "steps": steps, "mean_curve": middle}, cells


def _make_figure(
    number: int,
    words: str,
    describe: tuple[str, Sequence[str], Callable[[Sequence[FinishedRun]], _Described]],
    plots: Mapping[str, Callable[[_Groups, Path], None]],
) -> Experiment:
    """A figure of what happens along training, with what it says of each group of runs."""
    key, columns, find = describe  # its name in the JSON file, columns of the table, what finds it

    def present(finished: Finished) -> Report:
        groups = {
            (title, method): runs
            for title, version in _VERSIONS.items()
            for method in _METHODS[version]
            if (runs := finished(method, version))
        }
        entries: list[dict[str, Any]] = []
        rows = []
        for (title, method), runs in groups.items():
            values, cells = find(runs)
            entries.append({"data": title, "method": method.title, **values})
            rows.append([title, method.title, str(len(runs)), *cells])
        table = markdown_table(["data", "method", "runs", *columns], rows, text_columns=2)
        figures = {name: partial(plot, groups) for name, plot in plots.items()}
        facts = {"restarts": finished.options.restarts}
        return Report([table], {key: entries}, figures, facts)

    return Experiment(f"figure{number}", f"Figure {number}: {words}", present, _METHODS)


def plot_dynamics(runs: Sequence[Run], path: Path, title: str) -> None:
    """OOD accuracy and Hessian distance during training, one line per run."""
    figure, ((left, right),) = make_axes(9, 3.6, columns=2)
    for run in runs:
        name = run.plan.info.name
        style = {"color": COLOURS.get(name), "label": ALGORITHMS[name].title, "linewidth": 1.8}
        for axes, metric, unit in ((left, "test_accuracy", 100), (right, "hessian_distance", 1)):
            records = [record for record in run.records if metric in record.metrics]
            values = [unit * record.metrics[metric] for record in records]
            axes.plot([record.step for record in records], values, **style)
    left.axhline(75, color="black", linewidth=0.8, linestyle=":")
    small = {"fontsize": 8, "va": "bottom"}
    place = {"xy": (0.98, 76), "xycoords": ("axes fraction", "data"), "ha": "right"}
    left.annotate("best without colour: 75 %", **place, **small)
    left.set(xlabel="step", ylabel="accuracy on the unseen domain (%)", ylim=(0, 100))
    right.set(xlabel="step", ylabel="Hessian distance " + _DISTANCE, yscale="log")
    jump = runs[0].plan.options.jump
    for axes in (left, right):
        axes.axvline(jump, color="black", linewidth=0.8, alpha=0.5)
    place = {"xy": (jump, 0.02), "xycoords": ("data", "axes fraction")}
    right.annotate(" penalty weight\n jumps", **place, **small)
    add_legend(figure, [left])
    figure.suptitle(title, fontsize=11)
    save(figure, path)


def _plot_course(groups: _Groups, path: Path) -> None:
    """Hessian distance, OOD accuracy and OOD loss along training, by version."""
    figure, grid, columns = _grid(groups, _METRICS)
    for (title, method), runs in groups.items():
        column = columns[title]
        for axes, metric in zip(column, _METRICS, strict=True):
            _draw_course(axes, runs, metric, _style(method))
        column[0].set_yscale("log")
        column[1].set_ylim(0, 100)
        column[2].set_xlabel("step")
        for axes in column:
            _mark_jump(axes, runs)
    add_legend(figure, grid[0])
    save(figure, path)


def _plot_pairs(groups: _Groups, path: Path) -> None:
    """Hessian distance against OOD accuracy and OOD loss, an evaluation a point."""
    figure, grid, columns = _grid(groups, _JUDGED)
    for (title, method), runs in groups.items():
        records = [r for run in runs for r in run.records if r.step >= run.options.jump]
        distances = [record.metrics["hessian_distance"] for record in records]
        for axes, metric in zip(columns[title], _JUDGED, strict=True):
            values = [_METRICS[metric][1] * record.metrics[metric] for record in records]
            axes.scatter(distances, values, s=9, alpha=0.6, linewidths=0, **_style(method))
        columns[title][1].set_xlabel(_DISTANCE)
    for axes in grid.flat:
        _log_distances(axes)
    add_legend(figure, grid[0])
    save(figure, path)


def _plot_distances(groups: _Groups, path: Path) -> None:
    """Hessian distance along training: the mean over restarts and their range."""
    figure, ((axes,),) = make_axes(6.4, 4.8)
    titles = dict.fromkeys(title for title, _ in groups)
    lines = dict(zip(titles, ("-", "--", ":"), strict=False))
    for (title, method), runs in groups.items():
        style = _style(method)
        style |= {"linestyle": lines[title], "label": f"{style['label']}, {title}"}
        _draw_course(axes, runs, "hessian_distance", style)
    if groups:
        _mark_jump(axes, next(iter(groups.values())))
    axes.set(xlabel="step", ylabel="Hessian distance " + _DISTANCE, yscale="log")
    add_legend(figure, [axes], 2, fontsize=8)
    save(figure, path)


def _grid(groups: _Groups, metrics: Collection[str]) -> tuple[Any, Any, dict[str, Any]]:
    """A figure with a row for each metric, and the axes of each version of the data."""
    titles = list(dict.fromkeys(title for title, _ in groups))
    width = max(1, len(titles))
    figure, grid = make_axes(3.6 * width, 2.5 * len(metrics) + 0.4, len(metrics), width)
    for axes, title in zip(grid[0], titles, strict=False):
        axes.set_title(title, fontsize=9)
    for axes, metric in zip(grid[:, 0], metrics, strict=True):
        axes.set_ylabel(_METRICS[metric][0])
    return figure, grid, dict(zip(titles, grid.T, strict=False))


def _style(method: Method) -> dict[str, Any]:
    return {"color": COLOURS.get(method.algorithm), "label": ALGORITHMS[method.algorithm].title}


def _draw_course(
    axes: Any, runs: Sequence[FinishedRun], metric: str, style: Mapping[str, Any]
) -> None:
    """What restarts measured along training."""
    steps = [record.step for record in runs[0].records]
    unit = _METRICS[metric][1]
    draw_band(axes, steps, [[unit * x for x in _series(run, metric)] for run in runs], style)


def _mark_jump(axes: Any, runs: Sequence[FinishedRun]) -> None:
    axes.axvline(runs[0].options.jump, color="black", linewidth=0.5, alpha=0.5)


def _log_distances(axes: Any) -> None:
    """A logarithmic axis, with round numbers as ticks where it covers less than a decade."""
    from matplotlib import ticker

    axes.set_xscale("log")
    low, high = axes.get_xlim()
    if high < 10 * low:
        axes.xaxis.set_major_locator(ticker.MaxNLocator(4))
        axes.xaxis.set_major_formatter(ticker.FormatStrFormatter("%g"))
        axes.xaxis.set_minor_locator(ticker.NullLocator())


_PROBES: Final = 150
_ROUNDS: Final = 5
_SAMPLED: Final = ("hutchinson", "expected")
_TIMED: Final = (
    *("erm", "coral", "vrex", "irm", "groupdro", "fishr", "hgp"),
    *(*_SAMPLED, "diagonal", "full"),
)
_SPECIAL: Final = {"dense": "ERM, dense inputs", "released": "Hutchinson, released procedure"}


def _present_table5(finished: Finished) -> Report:
    """Measure all rows; times cannot be taken from a cache."""
    torch.set_num_threads(1)
    keep_freed_memory()
    plan = plan_job(irm_job("erm", finished.options.seed, finished.options.entries))
    batch, width = image_batch(plan, plan.inner, plan.sources), plan.options.width
    dense = _mixed(batch)
    steps = {name: _make_step(name, width, batch)[0] for name in _TIMED}
    steps["dense"], network = _make_step("erm", width, dense)
    steps["released"] = lambda: _take_released_step(network, dense)
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(_ROUNDS + 1):  # the first round warms up
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            times[name].append(time.perf_counter() - start)
    floor = median(times["erm"][1:])
    entries: list[dict[str, Any]] = []
    rows = []
    for name, (_, *values) in times.items():
        low, middle, high = (value / floor for value in quantiles(values, n=4, method="inclusive"))
        paper = PUBLISHED[name][0] / PUBLISHED["erm"][0] if name in PUBLISHED else None
        ours = {"method": name, "seconds": values, "ratio": middle, "quartiles": [low, high]}
        entries.append({**ours, "published": paper})
        rows.append(
            [
                _SPECIAL.get(name) or ALGORITHMS[name].title,
                f"{middle:.2f} [{low:.2f}, {high:.2f}]",
                f"{100 * median(values):.0f}",
                f"{paper:.2f}" if paper else "–",
            ]
        )
    lit = batch.x.ne(0).any(1).any(0)
    facts = {"rounds": _ROUNDS, "probes": _PROBES, "lit": int(lit.sum()), "pixels": 2 * lit.numel()}
    header = ["method", "relative to ERM", "100 steps, s", "published, relative to ERM"]
    return Report([markdown_table(header, rows)], {"rows": entries}, {}, facts)


def _mixed(batch: Batch) -> Batch:
    """The same samples in another order: where colours are mixed, the network saves nothing."""
    places = torch.arange(len(batch.y)).split(batch.sizes)
    order = torch.cat([each[torch.randperm(len(each))] for each in places])
    return Batch(batch.x[order], batch.y[order], batch.domain)


def _make_step(name: str, width: int, batch: Batch) -> tuple[Callable[[], None], Network]:
    """A function that updates an untrained network once, on all samples, and that network."""
    few = {"train_images": 200, "test_images": 90}  # which are not trained on
    options = {"probes": _PROBES} if name in _SAMPLED else {}
    plan = plan_job(irm_job(name, 0, {**few, "width": width, **options}))
    algorithm, loop = plan.protocol.start(plan)[0], plan.protocol.loop(plan)
    optimizers = start_optimizers(algorithm, loop)

    def step() -> None:
        now = Step(algorithm.network, batch, loop.schedule.jump, loop.loss)
        update(algorithm, now, optimizers, loop)

    return step, algorithm.network


def _take_released_step(network: Network, batch: Batch) -> None:
    """The released procedure for Hutchinson, by automatic differentiation as published."""
    parameters = list(network.head.parameters())

    def derivative(value: Tensor) -> Tensor:
        grads = torch.autograd.grad(value, parameters, create_graph=True)
        return torch.cat([each.flatten() for each in grads])

    def diagonal(gradient: Tensor) -> Tensor:
        total = torch.zeros_like(gradient)
        for _ in range(_PROBES):
            signs = 2.0 * torch.randint_like(gradient, 2) - 1
            total = total + signs * derivative(gradient @ signs)
        return total / _PROBES

    network.zero_grad()
    risks = [
        functional.binary_cross_entropy_with_logits(network(x).squeeze(1), y.float())
        for x, y in zip(batch.x.split(batch.sizes), batch.y.split(batch.sizes), strict=True)
    ]
    losses = [*risks, torch.stack(risks).mean()]
    gradients = [derivative(loss) for loss in losses]
    diagonals = [diagonal(gradient) for gradient in gradients]
    stacked = map(torch.stack, (gradients, diagonals))
    penalty = sum((each[:-1] - each[-1]).square().sum() for each in stacked)
    (losses[-1] + penalty).backward()


FIGURE_3: Final = _make_figure(
    3,
    "Hessian distance and OOD performance during training",
    ("correlations", ("with OOD accuracy", "with OOD loss"), _describe_correlations),
    {"figure3": _plot_course, "figure3-pairs": _plot_pairs},
)
FIGURE_4: Final = _make_figure(
    4,
    "Hessian distance during training",
    ("distances", ("final ‖H₁ − H₂‖",), _describe_distances),
    {"figure4": _plot_distances},
)
TABLE_5_MEASURED: Final = Experiment(
    "table5", "Table 5: training time relative to ERM", _present_table5
)
