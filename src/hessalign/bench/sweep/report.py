"""Tables of a sweep as a whole: what it will take, and how far it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from hessalign.bench.runs.progress import duration
from hessalign.bench.sweep import Job, JobStatus
from hessalign.bench.sweep.execution import ERROR
from hessalign.bench.sweep.selection import SELECTIONS
from hessalign.bench.sweep.status import STATES, mean_seconds
from hessalign.report.tables import markdown_table

Cell = tuple[str, str]
"""A data set and an algorithm."""


def plan_table(jobs: Sequence[Job], seconds: Mapping[Cell, float]) -> str:
    """Runs and cost by data set and algorithm.

    Args:
        jobs: All jobs.
        seconds: Seconds of one run, where they were measured.

    Returns:
        A Markdown table.
    """
    counts = Counter((job.dataset, job.algorithm) for job in jobs)
    rows = []
    for cell, count in counts.items():
        row = [*cell, f"{count:,}"]
        if seconds:
            row += [f"{seconds[cell]:.2f} s", duration(count * seconds[cell])]
        rows.append(row)
    total = ["all", "", f"{len(jobs):,}"]
    if seconds:
        total += ["", duration(sum(count * seconds[cell] for cell, count in counts.items()))]
    header = ["data set", "algorithm", "runs", *(["one run", "all runs"] if seconds else [])]
    return markdown_table(header, [*rows, total], text_columns=2)


def selection_table(jobs: Sequence[Job], chosen: Sequence[str]) -> str:
    """What each method of model selection needs.

    Args:
        jobs: All jobs, with pairs of test domains whether or not they are asked for.
        chosen: The methods that are asked for.

    Returns:
        A Markdown table.
    """
    singles = sum(len(job.test_domains) == 1 for job in jobs)
    pairs = len(jobs) - singles
    rows = [
        [
            name,
            "yes" if name in chosen else "no",
            f"{singles + (pairs if method.pairs else 0):,}",
            f"{pairs if method.pairs else 0:,}",
        ]
        for name, method in SELECTIONS.items()
    ]
    header = ["selection", "asked for", "runs it reads", "of these for it alone"]
    return markdown_table(header, rows, text_columns=2)


def status_table(statuses: Sequence[JobStatus]) -> str:
    """How far a sweep is, by data set and algorithm.

    Args:
        statuses: The jobs.

    Returns:
        A Markdown table.
    """
    cells: dict[Cell, list[JobStatus]] = {}
    for status in statuses:
        cells.setdefault((status.job.dataset, status.job.algorithm), []).append(status)
    rows = []
    for cell, group in (*cells.items(), (("all", ""), list(statuses))):
        counts = Counter(status.state for status in group)
        means = mean_seconds(group)
        usual = f"{sum(means.values()) / len(means):.2f} s" if len(means) == 1 else "–"
        rows.append([*cell, *(f"{counts[state]:,}" for state in STATES), usual])
    return markdown_table(["data set", "algorithm", *STATES, "mean time"], rows, text_columns=2)


def failures(statuses: Sequence[JobStatus], folder: str, shown: int) -> list[str]:
    """The runs that failed, with what went wrong and where it is kept.

    Args:
        statuses: The jobs.
        folder: The folder of the sweep.
        shown: How many to show.

    Returns:
        Lines.
    """
    failed = [status for status in statuses if status.state == "failed"]
    lines = []
    for status in failed[:shown]:
        kept = Path(folder, status.job.folder, ERROR)
        where = f" ({kept})" if kept.exists() else ""
        how = "failed by a bug" if status.bug else "failed"
        lines.append(f"{how}: {status.job.describe()}: {status.error}{where}")
    if len(failed) > shown:
        lines.append(f"failed: {len(failed) - shown} more; `sweep status --all` shows them.")
    return lines
