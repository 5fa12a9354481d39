"""`python -m benchmarks.marginal [--quick]`: what the penalty adds to a training loss.

The marginal cost is the time of cross-entropy with penalty, forward and backward through the head
(gradients in features, weights and bias), less that of cross-entropy alone. Ours is compared with
the same closed forms written plainly, both also compiled, and with CMA's own procedure. Beside the
times stand counts of the operations, which do not depend on how busy the machine is.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, autograd
from torch.nn import functional

import hessalign
from benchmarks.baselines import cma_penalty, cross_entropy, pair_weights, plain_full, plain_product
from benchmarks.cases import Batch, Case
from benchmarks.counting import Counts, count
from benchmarks.head import HEADS
from benchmarks.output import add_output, write_result
from benchmarks.report import Record, checklist, number, table
from benchmarks.targets import Target
from benchmarks.timing import Effort, Run, measure, settle_allocator
from hessalign.alignment.penalties import HessianKind
from hessalign.curvature.domains import DomainLike
from hessalign.report.progress import Progress

Penalty = Callable[[Tensor, Tensor, Tensor], Tensor]
"""A function of features, logits and class indices."""

Loss = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""A function of features, weights, bias and class indices."""

QUICK: Final = Case(features=64, classes=7, domains=3, samples=8)
COUNTED: Final = Case(2048, 7)
KINDS: Final[tuple[HessianKind | None, ...]] = ("full", "product", "diagonal", "expected", None)
PLAIN_KINDS: Final[tuple[HessianKind, ...]] = ("full", "product")
CMA_SAMPLES: Final = 4
"""Samples per domain that CMA's procedure is measured with."""

FLOOR: Final = "cross-entropy alone"
CMA: Final = "CMA's own, full without gradient term"
UNCHECKED: Final = "layout, on another device"
COMPILED: Final = "layout, compiled"

BOUNDS: Final = {"ids": 1.2, "layout": 1.2, COMPILED: 1.0}
"""Times the marginal cost of the plain form that ours may take; compiled, less than that."""
MOST_KERNELS: Final = 70
MOST_FLOAT64: Final = 50.0
"""Per cent of the kernels."""


def _title(kind: HessianKind | None) -> str:
    """A kind as the tables name it."""
    return "gradient" if kind is None else f"{kind} + gradient"


def plain(batch: Batch, kind: HessianKind) -> Penalty:
    """The plain form of a kind, its constants made beforehand.

    Args:
        batch: Gives the sizes of the domains and the precision.
        kind: One of `PLAIN_KINDS`.

    Returns:
        The penalty.
    """
    dispersing, within = pair_weights(batch.sizes, batch.z.dtype)
    if kind == "full":
        return partial(plain_full, dispersing=dispersing)
    return partial(plain_product, dispersing=dispersing, within=within)


def ours(kind: HessianKind | None, domain: DomainLike, *, checks: bool | None = None) -> Penalty:
    """The library's penalty.

    Args:
        kind: The variant.
        domain: Ids or a layout.
        checks: Whether to look at values.

    Returns:
        The penalty.
    """
    align = hessalign.HessianAlignment(1.0, 1.0, kind, checks=checks)
    return lambda z, logits, y: align(z, logits, y, domain).penalty


def _with_cross_entropy(penalty: Penalty) -> Loss:
    """A training loss through the head."""

    def loss(z: Tensor, weight: Tensor, bias: Tensor, y: Tensor) -> Tensor:
        logits = functional.linear(z, weight, bias)
        return functional.cross_entropy(logits, y) + penalty(z, logits, y)

    return loss


def _step(batch: Batch, loss: Loss) -> Run:
    """Forward and backward of a loss."""
    leaves = (batch.z, *batch.parameters)
    return lambda: autograd.grad(loss(*leaves, batch.y), leaves)


def procedures(batch: Batch) -> dict[str, Run]:
    """What is measured for every head, in the order of the table.

    Args:
        batch: Features and head.

    Returns:
        Forward and backward of each, cross-entropy included, by name.
    """
    leaves, layout = (batch.z, *batch.parameters), hessalign.domain_layout(batch.sizes)
    runs: dict[str, Run] = {FLOOR: lambda: autograd.grad(cross_entropy(batch), leaves)}
    for kind in KINDS:
        losses = {
            "ids": _with_cross_entropy(ours(kind, batch.domain)),
            "layout": _with_cross_entropy(ours(kind, layout)),
        }
        if kind in PLAIN_KINDS:
            losses = {"plain": _with_cross_entropy(plain(batch, kind)), **losses}
            for way in ("layout", "plain"):
                losses[f"{way}, compiled"] = torch.compile(losses[way], fullgraph=True)
        runs.update({f"{_title(kind)}, {way}": _step(batch, losses[way]) for way in losses})
    return runs


def measure_head(case: Case, effort: Effort, *, cma: bool, progress: Progress) -> Record:
    """Measure every procedure for one head, in turns.

    Args:
        case: The head.
        effort: How long to measure each.
        cma: Whether to measure CMA's procedure, too.
        progress: Where to report.

    Returns:
        The rows by name, as they are written to JSON.
    """
    torch.compiler.reset()
    runs = procedures(case.batch())
    if cma:
        batch = replace(case, samples=CMA_SAMPLES).batch()
        runs[CMA] = lambda: autograd.grad(cma_penalty(batch), (batch.z, batch.weight))
    for name, run in runs.items():
        progress.note(f"first call of {name}")
        run()  # compiles what is to be compiled
    timings = measure(runs, effort, progress)
    floor, rows = timings[FLOOR].low, Record()
    for name, timing in timings.items():
        factor = (case.samples / CMA_SAMPLES) ** 2 if name == CMA else 1.0
        marginal = factor * timing.low - (0 if name == CMA else floor)
        base = timings.get(f"{name.split(', ')[0]}, plain")
        rows[name] = {
            **timing.record(),
            "low_ms": timing.low,
            "extrapolated_by": factor,
            "marginal_ms": marginal,
            "marginal_of_plain": None if base is None else marginal / (base.low - floor),
        }
    return rows


def counts(case: Case) -> dict[str, Counts]:
    """Count the operations of the penalties, and of cross-entropy through the head.

    Args:
        case: The head.

    Returns:
        The counts by name. Penalties are differentiated in features and logits.
    """
    batch = case.batch()
    layout, leaves = hessalign.domain_layout(batch.sizes), (batch.z, batch.logits)
    whole = (batch.z, *batch.parameters)
    found = {FLOOR: count(lambda: cross_entropy(batch), whole, case.features)}
    # The meta device stands for one that is not to be waited for.
    elsewhere = [x.detach().to("meta").requires_grad_() for x in leaves]
    for kind in PLAIN_KINDS:
        penalties = {"plain": plain(batch, kind), "ids": ours(kind, batch.domain)}
        for way, penalty in penalties.items():
            value = partial(penalty, *leaves, batch.y)
            found[f"{_title(kind)}, {way}"] = count(value, leaves, case.features)
        value = partial(ours(kind, layout.to(torch.device("meta"))), *elsewhere, batch.y.to("meta"))
        found[f"{_title(kind)}, {UNCHECKED}"] = count(value, elsewhere, case.features)
    return found


def targets(heads: Record, counted: str, operations: dict[str, Counts]) -> list[Target]:
    """What the tables should show.

    Args:
        heads: The rows of each head.
        counted: The head whose operations are counted.
        operations: Their counts.

    Returns:
        The targets with their measurements.
    """
    found = []
    for head, rows in heads.items():
        for kind in map(_title, PLAIN_KINDS):
            for way, bound in BOUNDS.items():
                what = f"{kind}, {way}, at {head}, marginal cost relative to the plain form"
                ratio = rows[f"{kind}, {way}"]["marginal_of_plain"]
                relation = "below" if way == COMPILED else "at most"
                found.append(Target(what, ratio, relation, bound))
    for way in ("ids", UNCHECKED):
        seen = operations[f"{_title('full')}, {way}"]
        what, share = f"{_title('full')}, {way}, at {counted}", 100 * seen.float64 / seen.kernels
        found.append(Target(what, seen.kernels, "at most", MOST_KERNELS, "kernels"))
        what = f"{what}, kernels that produce float64"
        found.append(Target(what, share, "at most", MOST_FLOAT64, "%"))
    for kind in map(_title, PLAIN_KINDS):
        what, reads = f"{kind}, {UNCHECKED}", operations[f"{kind}, {UNCHECKED}"].reads
        found.append(Target(f"{what}, at {counted}", reads, "at most", 0, "reads"))
    return found


def _head_table(rows: Record) -> str:
    """The rows of one head."""
    cells = [
        [
            f"{name}\\*" if name == CMA else name,
            number(row["extrapolated_by"] * row["low_ms"]),
            "" if name == FLOOR else number(row["marginal_ms"]),
            "" if row["marginal_of_plain"] is None else f"{row['marginal_of_plain']:.2f}",
        ]
        for name, row in rows.items()
    ]
    return table(["", "in all, ms", "marginal, ms", "of the plain form"], cells)


def page(record: Record) -> str:
    """The measurements for people.

    Args:
        record: What was measured.

    Returns:
        Markdown.
    """
    domains = record["domains"]
    parts = [
        "# What the penalty adds to a training loss",
        "Cross-entropy and penalty, forward and backward through a linear head (gradients in "
        f"features, weights and bias), {domains} domains × {record['samples_per_domain']} samples, "
        "float32, one thread; *marginal* is what exceeds cross-entropy alone. Times are first "
        "deciles of processor time, measured in turns; compiling is not counted. *Plain* is the "
        "same closed form in a dozen lines of float32 without checks, its constants made "
        "beforehand. With *ids* the penalty is given the domain of each sample, with *layout* what "
        "`domain_layout` makes of them once; both check their input, compiled code does not. "
        "Made by `python -m benchmarks.marginal`."
        + (" **Quick run: not for quoting.**" if record["quick"] else ""),
    ]
    for head, rows in record["heads"].items():
        parts += [f"## {head}", _head_table(rows)]
        if CMA in rows:
            parts.append(
                "\\* The algorithm of Chen et al. (UAI 2025, arXiv 2506.07378), written out by us: "
                "d × d matrices multiplied for every pair of samples, weights without bias. Of the "
                f"penalty alone, and **extrapolated**: {number(rows[CMA]['low_ms'])} ms measured "
                f"with {domains} × {CMA_SAMPLES} samples, times {rows[CMA]['extrapolated_by']:g} "
                "for the number of pairs."
            )
    columns = ("kernels", "forward", "backward", "float64", "large", "reads")
    cells = [[name, *(str(row[key]) for key in columns)] for name, row in record["counts"].items()]
    parts += [
        f"## Operations at {record['counted']}",
        "As torch dispatches them: kernels are operations that are neither views nor reads of a "
        "value; large are products of matrices in float64 with a dimension of at least d. Of the "
        "penalty alone, differentiated in features and logits, and of cross-entropy through the "
        "head.",
        table(["", *columns], cells),
        "## Targets",
        checklist(record["targets"]),
    ]
    return "\n\n".join(parts)


def main(arguments: list[str]) -> int:
    """Measure every head, count, and write the result.

    Args:
        arguments: The command line.

    Returns:
        The exit status, 0 also if a target is missed: that is a finding, not an error.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.marginal", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small head; numbers are rough")
    add_output(parser)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    settle_allocator()
    cases, effort = ((QUICK,), Effort(0.0, 3, 3)) if options.quick else (HEADS, Effort(5, 3, 120))
    heads, progress = dict[str, Any](), Progress()
    for case in cases:
        progress.title = case.name
        heads[case.name] = measure_head(case, effort, cma=case is cases[0], progress=progress)
    progress.close()
    counted = QUICK if options.quick else COUNTED
    operations = counts(counted)
    record = {
        "quick": options.quick,
        "domains": counted.domains,
        "samples_per_domain": counted.samples,
        "cma_samples_per_domain": CMA_SAMPLES,
        "heads": heads,
        "counted": counted.name,
        "counts": {name: found.record() for name, found in operations.items()},
        "targets": [found.record() for found in targets(heads, counted.name, operations)],
    }
    write_result(options.output, "marginal", record, page(record))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
