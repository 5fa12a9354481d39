"""`python -m benchmarks.evaluation [--quick]`: whether `auto` chooses the faster evaluation.

The penalty with its gradient term, forward and backward, on one thread, over a grid of shapes:
once with every moment in the primal form, once in the dual, once as `auto` chooses. An evaluation
that by the library's own estimate takes more than twenty times the other, or more memory than it
accepts, is not measured: the other one is the faster. The quickest shapes come first. Ctrl-C keeps
what was measured until then, and the same command goes on after it, or after a kill.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
from collections.abc import Callable, Collection, Iterator
from typing import Any, Final

import torch

from benchmarks.cases import Batch, Case
from benchmarks.output import add_output, write_result
from benchmarks.timing import Effort, measure, settle_allocator
from hessalign.alignment import HessianAlignment
from hessalign.alignment.moments import MOST_SECONDS, Evaluation
from hessalign.alignment.quantities import moment
from hessalign.curvature import linear_head
from hessalign.curvature.linear import MOST_BYTES
from hessalign.report.progress import Progress

BOUND: Final = 1.3
"""Times the faster of the two that `auto` may take."""

ATTEMPTS: Final = 3
"""Times a point above the bound is measured before it counts: what disturbs only adds."""

HOPELESS: Final = 20.0
"""Times the other evaluation, by estimate, from which one is not measured."""

GRID: Final = {
    "samples": (8, 32, 128, 512),
    "features": (16, 128, 512, 2048),
    "classes": (2, 7, 65, 345),
    "domains": (2, 6),
}
QUICK: Final = {"samples": (8, 32), "features": (16,), "classes": (2, 7), "domains": (2,)}
KINDS: Final = {
    "full": ("hessian",),
    "diagonal": ("hessian_diagonal",),
    "product": ("hessian_gradient",),
    "expected": ("hessian", "hessian_diagonal"),
    "gradient": (),
}
"""The quantities compared for each kind of Hessian; gradients are compared for all."""

EVALUATIONS: Final[tuple[Evaluation, ...]] = ("primal", "dual", "auto")


def worthwhile(case: Case, kind: str) -> list[Evaluation]:
    """The evaluations that are measured.

    Args:
        case: The shapes.
        kind: A name in `KINDS`.

    Returns:
        "auto", and one or both of the others; nothing if `auto` refuses.
    """
    batch = case.batch()
    time: dict[Evaluation, float] = {"primal": 0.0, "dual": 0.0}
    fits: dict[Evaluation, bool] = {"primal": True, "dual": True}
    for quantity in (*KINDS[kind], "gradient"):
        compared = moment(linear_head(batch.z, batch.logits, batch.y, batch.domain), quantity)
        for evaluation in ("primal", "dual"):
            cost = compared.cost(evaluation)
            time[evaluation] += cost.time
            fits[evaluation] &= cost.memory <= MOST_BYTES
    fastest = min(time[each] for each in time if fits[each])
    if fastest * 1e-9 > MOST_SECONDS:
        return []
    found: list[Evaluation] = [
        each for each in time if fits[each] and time[each] <= HOPELESS * fastest
    ]
    return [*found, "auto"]


def procedure(batch: Batch, kind: str, evaluation: Evaluation) -> Callable[[], None]:
    """One step's penalty, forward and backward.

    Args:
        batch: The batch.
        kind: A name in `KINDS`.
        evaluation: How.

    Returns:
        What to time.
    """
    hessian: Any = None if kind == "gradient" else kind
    align = HessianAlignment(1.0, 1.0, hessian, evaluation=evaluation)

    def run() -> None:
        terms = align(batch.z, batch.logits, batch.y, batch.domain)
        torch.autograd.grad(terms.penalty, (batch.z, batch.logits))

    return run


def measure_grid(
    grid: dict[str, tuple[int, ...]],
    effort: Effort,
    progress: Progress,
    known: Collection[tuple[object, ...]] = (),
) -> Iterator[dict[str, Any]]:
    """Time every point of a grid, small batches first.

    Args:
        grid: Sizes to combine.
        effort: How long to measure each procedure.
        progress: Where to report.
        known: Points, sizes and kind, that need not be measured.

    Yields:
        For each shape and kind, milliseconds by evaluation and how `auto` compares.
    """
    shapes = sorted(
        itertools.product(*grid.values()), key=lambda shape: (shape[0], math.prod(shape))
    )
    for number, shape in enumerate(shapes, start=1):
        sizes = dict(zip(grid, shape, strict=True))
        case = Case(**sizes)
        batch = case.batch()
        progress.title = f"{number} of {len(shapes)}"
        for kind in KINDS:
            chosen = [] if (*shape, kind) in known else worthwhile(case, kind)
            if not chosen:
                continue
            procedures = {each: procedure(batch, kind, each) for each in chosen}
            best = dict.fromkeys(chosen, math.inf)
            for _ in range(ATTEMPTS):
                timings = measure(procedures, effort, progress)
                best = {each: min(best[each], *timings[each].cpu) for each in chosen}
                ratio = best["auto"] / min(best[each] for each in chosen if each != "auto")
                if ratio <= BOUND:
                    break
            yield {**sizes, "kind": kind, "milliseconds": best, "ratio": ratio}


def page(rows: list[dict[str, Any]], shapes: int) -> str:
    """The measurements for people: the spread of the ratios, and the worst points.

    Args:
        rows: What was measured.
        shapes: How many shapes the grid has.

    Returns:
        Markdown.
    """
    done = {tuple(row[name] for name in GRID) for row in rows}
    lines = [
        "# The choice of an evaluation",
        "",
        "Penalty and gradient term, forward and backward, one thread: the time that `auto` takes "
        "divided by that of the faster of primal and dual (the least of several repeats each; "
        f"at most {BOUND} is wanted). {len(done)} of the {shapes} shapes of the grid are measured, "
        "those with few samples first. Made by `python -m benchmarks.evaluation`.",
        "",
        "| kind | points | both measured | median | worst | above the bound |",
        "|:--|--:|--:|--:|--:|--:|",
    ]
    for kind in KINDS:
        found = sorted(row["ratio"] for row in rows if row["kind"] == kind) or [math.nan]
        both = sum(len(row["milliseconds"]) == 3 for row in rows if row["kind"] == kind)
        above = sum(ratio > BOUND for ratio in found)
        median = found[len(found) // 2]
        lines.append(
            f"| {kind} | {len(found)} | {both} | {median:.2f} | {found[-1]:.2f} | {above} |"
        )
    lines += [
        "",
        "The points at which `auto` compares worst:",
        "",
        "| kind | n per domain | d | C | E | primal ms | dual ms | auto ms | ratio |",
        "|:--|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for row in sorted(rows, key=lambda row: -row["ratio"])[:12]:
        times = [
            f"{row['milliseconds'][each]:.2f}" if each in row["milliseconds"] else "–"
            for each in EVALUATIONS
        ]
        sizes = [str(row[name]) for name in ("samples", "features", "classes", "domains")]
        cells = [row["kind"], *sizes, *times, f"{row['ratio']:.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    """Measure the grid and write the result.

    Args:
        arguments: The command line.

    Returns:
        The exit status, 0 also if the bound is missed: that is a finding, not an error.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.evaluation", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small grid")
    add_output(parser)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    settle_allocator()
    grid, effort = (QUICK, Effort(0.0, 2, 2)) if options.quick else (GRID, Effort(0.1, 2, 5))
    options.output.mkdir(parents=True, exist_ok=True)
    partial, progress = options.output / "evaluation.jsonl", Progress()
    rows = [json.loads(row) for row in partial.read_text().splitlines()] if partial.exists() else []
    known = {tuple(row[name] for name in (*grid, "kind")) for row in rows}
    try:
        for row in measure_grid(grid, effort, progress, known):
            rows.append(row)
            with partial.open("a") as file:  # one by one: what came before a kill stays
                file.write(json.dumps(row) + "\n")
        partial.unlink(missing_ok=True)
    except KeyboardInterrupt:
        progress.say("interrupted; what was measured is kept")
    record = {"bound": BOUND, "quick": options.quick, "grid": grid, "rows": rows}
    shapes = math.prod(map(len, grid.values()))
    write_result(options.output, "evaluation", record, page(rows, shapes))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
