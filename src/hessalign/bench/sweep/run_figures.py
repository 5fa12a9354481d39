"""Runs of a sweep in figures: against hyper-parameters, by step, and against Hessian distance."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Final, get_args

from hessalign._errors import UserError
from hessalign._numbers import finite
from hessalign.bench.algorithms import find_algorithm
from hessalign.bench.algorithms.options import Power
from hessalign.bench.algorithms.search import Preset, common_space, search_space
from hessalign.bench.data import Family
from hessalign.bench.runs import irm
from hessalign.bench.sweep.overview import REFERENCE
from hessalign.bench.sweep.selection import Candidate, Run, Table
from hessalign.report.plot import Plot, make_axis
from hessalign.report.tables import grouped

_COLOURS: Final = 8  # of marks, which repeat after that
_DESCRIBED: Final = 6000  # up to so many points say what they are when they are pointed at
MOST_LINES: Final = 40  # of runs that were not chosen, in one drawing
MOST_STEPS: Final = 25  # of one curve
MOST_RUNS: Final = 500  # in the table of runs of a data set
_MANY: Final = 30.0  # times: values that differ so much are shown by powers, whoever drew them


def domain_keys(domains: Sequence[str]) -> list[tuple[str, str]]:
    """Which colour stands for which domain."""
    return [(f"mark c{i % _COLOURS}", name) for i, name in enumerate(domains)]


def point_figures(
    points: Sequence[Candidate], domains: Sequence[str], total: int
) -> list[tuple[str, list[Plot]]]:
    """By algorithm: OOD accuracy against each hyper-parameter that differs between runs."""
    up = make_axis("OOD accuracy, %", (100 * point.test for point in points))
    found = []
    for algorithm, group in _by_algorithm(points).items():
        figures = []
        for name in _varying(group):
            drawn = [(point, finite(point.run.hparams.get(name))) for point in group]
            values = [(point, value) for point, value in drawn if value is not None]
            log = _by_powers(algorithm, name, [value for _, value in values])
            across = make_axis(name, (value for _, value in values), log=log)
            title = f"{algorithm}: OOD accuracy against {name}"
            plot = Plot(name, across, up, title)
            for point, value in values:
                kind = f"c{point.domain % _COLOURS}"
                described = _describe(point, domains) if total <= _DESCRIBED else ""
                text = described and f"{described}, {name} {value:.3g}"
                plot.dot(value, 100 * point.test, f"mark {kind}" if text else kind, text)
            figures.append(plot)
        if figures:
            found.append((algorithm, figures))
    return found


def _by_algorithm(points: Iterable[Candidate]) -> dict[str, list[Candidate]]:
    found = grouped(points, lambda point: point.run.key.algorithm)
    return dict(sorted(found.items(), key=_reference_first))


def _reference_first(group: tuple[str, object]) -> tuple[bool, str]:
    return group[0] != REFERENCE, group[0]


def _varying(points: Sequence[Candidate]) -> list[str]:
    """Hyper-parameters that are numbers and differ between runs."""
    values: dict[str, set[float]] = {}
    for point in points:
        for name, value in point.run.hparams.items():
            if (found := finite(value)) is not None:
                values.setdefault(name, set()).add(found)
    return [name for name, found in values.items() if len(found) > 1]


def _by_powers(algorithm: str, name: str, values: Iterable[float]) -> bool:
    """Whether a hyper-parameter is drawn by powers, or looks so if it is not known."""
    drawn, known = _search(algorithm)
    positive = [value for value in values if value > 0]
    return name in drawn or (
        name not in known and bool(positive) and max(positive) > _MANY * min(positive)
    )


@cache
def _search(algorithm: str) -> tuple[set[str], set[str]]:
    """Which hyper-parameters of an algorithm are drawn by powers, and of which it is known."""
    spaces = [
        {name: hyper.search for name, hyper in common_space(family).items()}
        for family in get_args(Family)
    ]
    try:
        info = find_algorithm(algorithm)
        for family in get_args(Family):
            for preset in get_args(Preset):
                spaces.append(dict(search_space(info, family, preset).values()))
    except UserError:  # one of DomainBed's that we have not, or a plug-in that is not here
        pass
    pairs = [pair for space in (*spaces, irm.SEARCH) for pair in space.items()]
    return {name for name, each in pairs if isinstance(each, Power)}, {name for name, _ in pairs}


def _describe(point: Candidate, domains: Sequence[str]) -> str:
    key = point.run.key
    return (
        f"{key.algorithm}, {domains[point.domain]}, trial {key.trial_seed}, draw "
        f"{key.hparams_seed}: {100 * point.test:.1f} %"
    )


def curve_figures(
    runs: Sequence[Run], unfinished: Sequence[Run], table: Table
) -> list[tuple[str, list[Plot]]]:
    """By algorithm: OOD and validation accuracy by step, of runs with one test domain."""
    going = {run.path for run in unfinished}
    chosen = {c.run.path for _, _, cell in table.cells() for c in cell.chosen}
    drawn = [run for run in runs if len(run.key.test_domains) == 1 and len(run.records) > 1]
    curves = {run.path: _curves(run) for run in drawn}
    groups = grouped(drawn, lambda run: run.key.algorithm)
    found = []
    for algorithm, group in sorted(groups.items(), key=_reference_first):
        others = [run for run in group if run.path not in chosen]
        every = -(-len(others) // MOST_LINES)
        shown = others[:: every or 1] + [run for run in group if run.path in chosen]
        figures = []
        for i, title in enumerate(("OOD accuracy", "validation accuracy")):
            heights = [up for lines in curves.values() for _, up in lines[i]]
            across = make_axis("step", (step for lines in curves.values() for step, _ in lines[i]))
            up = make_axis(f"{title}, %", heights)
            plot = Plot(f"{title} by step", across, up, f"{algorithm}: {title} by step")
            for run in shown:
                kind = "chosen " * (run.path in chosen) + "going " * (run.path in going)
                domain = run.key.test_domains[0]
                plot.line(curves[run.path][i], f"line {kind}c{domain % _COLOURS}")
            figures.append(plot)
        found.append((algorithm, figures))
    return found


def _curves(run: Run) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
    """OOD and mean validation accuracy at some of the steps of a run, the last included."""
    (tested,) = run.key.test_domains
    every = -(-len(run.records) // MOST_STEPS)
    records = run.records[::-every][::-1]
    validation = [
        (record.outer[:tested] + record.outer[tested + 1 :], record.step) for record in records
    ]
    return (
        [(record.step, 100 * record.test(tested)) for record in records],
        [(step, 100 * sum(values) / len(values)) for values, step in validation if values],
    )


def distance_figure(points: Sequence[Candidate], domains: Sequence[str]) -> Plot | None:
    """OOD accuracy against the distance between Hessians, of runs that measured it."""
    having = [(point, point.distance) for point in points if point.distance is not None]
    if not having:
        return None
    title = "distance between Hessians of training domains"
    across = make_axis(title, (distance for _, distance in having), log=True)
    up = make_axis("OOD accuracy, %", (100 * point.test for point, _ in having))
    plot = Plot("Each dot is a run, coloured by its test domain", across, up)
    for point, distance in having:
        text = f"{_describe(point, domains)}, distance {distance:.3g}"
        plot.dot(distance, 100 * point.test, f"mark c{point.domain % _COLOURS}", text)
    return plot


def correlation(points: Sequence[Candidate]) -> str:
    """The rank correlation of distance and accuracy within each test domain, where it exists."""
    from scipy.stats import spearmanr

    having = [point for point in points if point.distance is not None]
    found = []
    for group in grouped(having, lambda point: point.domain).values():
        distances, tests = [p.distance for p in group], [p.test for p in group]
        if len(group) > 2 and len(set(distances)) > 1 and len(set(tests)) > 1:
            found.append((float(spearmanr(distances, tests).statistic), len(group)))
    if not found:
        return ""
    mean = sum(value * count for value, count in found) / sum(count for _, count in found)
    count = sum(count for _, count in found)
    return f"Within a test domain the rank correlation is {mean:+.2f} on average ({count:,} runs)."


def run_rows(points: Sequence[Candidate], domains: Sequence[str]) -> list[list[str]]:
    """The runs with the best validation accuracy, and the hyper-parameters that differ."""
    varying = {name for group in _by_algorithm(points).values() for name in _varying(group)}
    best = sorted(points, key=lambda point: -point.validation)[:MOST_RUNS]
    return [
        [
            Path(point.run.path).parent.name,
            point.run.key.algorithm,
            domains[point.domain],
            str(point.run.key.trial_seed),
            str(point.run.key.hparams_seed),
            f"{100 * point.validation:.1f}",
            f"{100 * point.test:.1f}",
            str(point.step),
            _hparams({k: v for k, v in point.run.hparams.items() if k in varying}),
        ]
        for point in best
    ]


def _hparams(values: Mapping[str, object]) -> str:
    return ", ".join(
        f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {json.dumps(value)}"
        for name, value in sorted(values.items())
    )
