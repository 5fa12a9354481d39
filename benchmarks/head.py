"""Table 1: the penalty of a classifier head, forward and backward.

Three domains of 32 samples. The closed forms are differentiated in features and logits, which is
what an extra term in a training loss costs; the released procedure and plain cross-entropy are
differentiated in features, weights and bias, because they run through the head.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, final

import torch
from torch import Tensor, autograd

import hessalign
from benchmarks.baselines import (
    cross_entropy,
    make_backpack_diagonals,
    make_curvlinops_diagonals,
    released_penalty,
)
from benchmarks.cases import Batch, Case
from benchmarks.machine import copy_rate, gemm_rate, memory_size
from benchmarks.memory import METHOD, peak_memory
from benchmarks.targets import Target
from benchmarks.timing import (
    Effort,
    Run,
    Timing,
    extrapolate,
    extrapolate_timing,
    measure,
    warm_up,
)
from hessalign.alignment import hessian_dispersion
from hessalign.report.progress import Progress

HEADS = (Case(512, 7), Case(2048, 7), Case(2048, 65), Case(2048, 345))
PROBES = 300

RELEASED = "released procedure"
FLOOR = "plain cross-entropy (the floor)"
DIAGONAL = "diagonal + gradient"
FULL = "full + gradient"
FULL_ALONE = "full"

Key = tuple[str, int]
"""A procedure and its number of probes."""


@final
@dataclass(frozen=True)
class Entry:
    """A row of the table.

    Attributes:
        make: Builds the procedure for a number of probes (which most ignore).
        about: What it does, for the reader of the table.
        probed: The two probe counts to extrapolate from where all probes take too long; None if
            the procedure has no probes.
    """

    make: Callable[[int], Run]
    about: str
    probed: tuple[int, int] | None = None


@final
@dataclass(frozen=True)
class Row:
    """What was measured of an entry.

    Attributes:
        timing: Its time.
        memory: Its peak extra memory in bytes.
    """

    timing: Timing
    memory: float


@final
@dataclass
class HeadResult:
    """All rows of one head.

    Attributes:
        case: The head.
        about: What each row does, by name.
        rows: What was measured, by name.
        limit: The bound from the hardware; see `hardware_limit`.
        check: Extrapolated over measured time of the released procedure, where both are known.
    """

    case: Case
    about: dict[str, str]
    rows: dict[str, Row] = field(default_factory=dict)
    limit: dict[str, float] = field(default_factory=dict)
    check: float | None = None

    def time(self, name: str) -> float:
        """Median milliseconds of a row."""
        return self.rows[name].timing.median

    def speedup(self, name: str) -> float:
        """How many times faster than the released procedure a row is."""
        return self.time(RELEASED) / self.time(name)

    def to_floor(self, name: str) -> float:
        """A row's time in units of the head's plain cross-entropy."""
        return self.time(name) / self.time(FLOOR)

    def record(self) -> dict[str, Any]:
        """The result as it is written to JSON."""
        rows = {
            name: {
                "about": self.about[name],
                **row.timing.record(),
                "times_faster_than_released": self.speedup(name),
                "times_floor": self.to_floor(name),
                "peak_extra_memory_bytes": row.memory,
            }
            for name, row in self.rows.items()
        }
        return {
            "features": self.case.features,
            "classes": self.case.classes,
            "domains": self.case.domains,
            "samples_per_domain": self.case.samples,
            "rows": rows,
            "hardware_limit_of_full": self.limit,
            "released_extrapolated_over_measured": self.check,
        }


def released_step(batch: Batch, probes: int) -> Run:
    """Forward and backward of the released procedure.

    Args:
        batch: Features and head.
        probes: Probes per domain.

    Returns:
        The procedure.
    """
    leaves = (batch.z, *batch.parameters)
    return lambda: autograd.grad(released_penalty(batch, probes), leaves)


def penalty_step(batch: Batch, align: hessalign.HessianAlignment) -> Run:
    """Forward and backward of a penalty in closed form, with its gradient term.

    Args:
        batch: Features and logits.
        align: The penalty.

    Returns:
        The procedure.
    """

    def step() -> tuple[Tensor, ...]:
        terms = align(batch.z, batch.logits, batch.y, batch.domain)
        return autograd.grad(terms.penalty, (batch.z, batch.logits))

    return step


def full_alone_step(batch: Batch) -> Run:
    """Forward and backward of the full Hessian's dispersion alone.

    Args:
        batch: Features and logits.

    Returns:
        The procedure.
    """

    def step() -> tuple[Tensor, ...]:
        head = hessalign.linear_head(batch.z, batch.logits, batch.y, batch.domain)
        return autograd.grad(hessian_dispersion(head, "full"), (batch.z, batch.logits))

    return step


def with_loss_step(batch: Batch, align: hessalign.HessianAlignment) -> Run:
    """Forward and backward of the head's cross-entropy and a penalty, in one go.

    Args:
        batch: Features and head.
        align: The penalty.

    Returns:
        The procedure.
    """

    def step() -> tuple[Tensor, ...]:
        logits = torch.nn.functional.linear(batch.z, *batch.parameters)
        loss = torch.nn.functional.cross_entropy(logits, batch.y)
        penalty = align(batch.z, logits, batch.y, batch.domain).penalty
        return autograd.grad(loss + penalty, (batch.z, *batch.parameters))

    return step


def entries(batch: Batch) -> dict[str, Entry]:
    """The rows of the table, in its order.

    Args:
        batch: Features and head.

    Returns:
        How to run each, by name.
    """

    def ours(probes: int = PROBES, **options: Any) -> Run:
        align = hessalign.HessianAlignment(alpha=1.0, beta=1.0, probes=probes, **options)
        return penalty_step(batch, align)

    full = hessalign.HessianAlignment(alpha=1.0, beta=1.0, hessian="full")
    leaves = (batch.z, *batch.parameters)
    return {
        RELEASED: Entry(
            partial(released_step, batch), "autograd loop, 300 probes per domain", (5, 15)
        ),
        "curvlinops, Hutchinson": Entry(
            partial(make_curvlinops_diagonals, batch),
            "300 probes, estimates only: not differentiable",
            (5, 15),
        ),
        "BackPACK DiagHessian": Entry(
            lambda _: make_backpack_diagonals(batch),
            "exact diagonal, forward and extension only: not differentiable",
        ),
        "sampled + gradient": Entry(
            lambda probes: ours(probes, hessian="sampled", fidelity="domainbed"),
            "the released procedure's estimate, 300 probes, closed form",
            (6, 18),
        ),
        "expected + gradient": Entry(
            lambda _: ours(hessian="expected", fidelity="domainbed"),
            "its expectation over the probes",
        ),
        DIAGONAL: Entry(lambda _: ours(hessian="diagonal"), "exact"),
        "product + gradient (HGP)": Entry(lambda _: ours(hessian="product"), "exact"),
        FULL: Entry(lambda _: penalty_step(batch, full), "exact"),
        FULL_ALONE: Entry(lambda _: full_alone_step(batch), "exact, no gradient term"),
        "gradient only": Entry(lambda _: ours(hessian=None), "exact"),
        "cross-entropy with full + gradient": Entry(
            lambda _: with_loss_step(batch, full), "a training loss through the head, with penalty"
        ),
        FLOOR: Entry(lambda _: lambda: autograd.grad(cross_entropy(batch), leaves), "no penalty"),
    }


def affordable(entry: Entry, patience: float) -> bool:
    """Whether a procedure can be run with all its probes.

    Args:
        entry: The procedure.
        patience: Seconds a call may take.

    Returns:
        False if the line through two small numbers of probes leads beyond the patience or half of
        the machine's memory.
    """
    if entry.probed is None:
        return True
    few, many = (entry.make(count) for count in entry.probed)
    time = extrapolate(warm_up(few)[0], warm_up(many)[0], entry.probed, PROBES)
    memory = extrapolate(peak_memory(few), peak_memory(many), entry.probed, PROBES)
    return time <= patience and memory <= memory_size() / 2


def plan(table: dict[str, Entry], patience: float, progress: Progress) -> dict[Key, Run]:
    """Decide with how many probes each procedure is run.

    The released procedure is also run with few probes where it can be run with all, to see what
    extrapolation would have said.

    Args:
        table: The entries.
        patience: Seconds a call may take.
        progress: Where to report.

    Returns:
        The procedures by name and number of probes.
    """
    runs: dict[Key, Run] = {}
    for name, entry in table.items():
        progress.note(f"trying {name}")
        direct = affordable(entry, patience)
        if direct:
            runs[name, PROBES] = entry.make(PROBES)
        if entry.probed is not None and (name == RELEASED or not direct):
            runs.update({(name, count): entry.make(count) for count in entry.probed})
    return runs


def measure_head(case: Case, effort: Effort, patience: float, progress: Progress) -> HeadResult:
    """Measure every row for one head.

    Args:
        case: The head.
        effort: How long to measure each row.
        patience: Seconds a single call may take; beyond it a procedure runs with fewer probes.
        progress: Where to report.

    Returns:
        The rows.
    """
    table = entries(case.batch())
    runs = plan(table, patience, progress)
    labels = {f"{name} ({probes} probes)": (name, probes) for name, probes in runs}
    timed = measure({label: runs[key] for label, key in labels.items()}, effort, progress)
    timings = {key: timed[label] for label, key in labels.items()}
    result = HeadResult(case, {name: entry.about for name, entry in table.items()})
    for name, entry in table.items():
        progress.note(f"memory of {name}")
        extrapolated = None
        if entry.probed is not None and (name, entry.probed[0]) in runs:
            extrapolated = continued(entry.probed, name, runs, timings)
        if (name, PROBES) in runs:
            memory = (
                peak_memory(runs[name, PROBES]) if extrapolated is None else extrapolated.memory
            )
            result.rows[name] = Row(timings[name, PROBES], memory)
        elif extrapolated is not None:
            result.rows[name] = extrapolated
        if name == RELEASED and (name, PROBES) in runs and extrapolated is not None:
            result.check = extrapolated.timing.median / result.time(name)
    return result


def continued(
    counts: tuple[int, int], name: str, runs: dict[Key, Run], timings: dict[Key, Timing]
) -> Row:
    """What a procedure would need with all its probes, from runs with fewer.

    Args:
        counts: The two numbers of probes it was run with.
        name: The procedure.
        runs: The procedures by name and number of probes.
        timings: Their timings.

    Returns:
        Time and peak memory on the lines through the two.
    """
    few, many = (name, counts[0]), (name, counts[1])
    return Row(
        extrapolate_timing(timings[few], timings[many], counts, PROBES),
        extrapolate(peak_memory(runs[few]), peak_memory(runs[many]), counts, PROBES),
    )


def hardware_limit(case: Case, flop_rate: float, byte_rate: float) -> dict[str, float]:
    r"""The least time the dual form of the full Hessian can take.

    With N = E·n samples the float64 products are the Gram matrix of the features and its backward
    (4 N²d operations), and three Gram matrices over the classes with theirs (12 N²C). In memory,
    features and logits are read and their gradients written once, in float32.

    Args:
        case: The head.
        flop_rate: Float64 operations per second of a large matrix product.
        byte_rate: Bytes per second of a large copy.

    Returns:
        Operations, bytes, and the milliseconds each takes at full rate.
    """
    samples = case.domains * case.samples
    operations = samples**2 * (4 * case.features + 12 * case.classes)
    moved = 2 * 4 * samples * (case.features + case.classes)
    return {
        "float64_operations": operations,
        "operations_ms": 1e3 * operations / flop_rate,
        "bytes": moved,
        "bytes_ms": 1e3 * moved / byte_rate,
    }


def targets(results: list[HeadResult]) -> list[Target]:
    """What the head table should show.

    Args:
        results: What it shows.

    Returns:
        The targets with their measurements.
    """
    diagonal = {"512×7": 100, "2048×7": 300, "2048×65": 300, "2048×345": 300}
    full = {"2048×7": 300, "2048×65": 1000, "2048×345": 3000}
    found: list[Target] = []
    for result in results:
        head = result.case.name
        for name, bounds in ((DIAGONAL, diagonal), (FULL, full), (FULL_ALONE, full)):
            if head in bounds:
                what = f"{name} at {head}, faster than the released procedure"
                found.append(Target(what, result.speedup(name), "at least", bounds[head]))
    for result in results:
        if result.case.name == "2048×345":
            for name in (FULL, FULL_ALONE):
                what = f"{name} at 2048×345, in units of plain cross-entropy"
                found.append(Target(what, result.to_floor(name), "at most", 2))
    for result in results:
        memory = result.rows[FULL].memory / 1e6
        what = f"{FULL} at {result.case.name}, peak extra memory"
        found.append(Target(what, memory, "below", 64, " MB"))
    return found


def run(
    quick: bool, effort: Effort, patience: float, progress: Progress
) -> tuple[dict[str, Any], list[Target]]:
    """Measure the table.

    Args:
        quick: The two smallest heads only.
        effort: How long to measure each row.
        patience: Seconds a single call may take; beyond it a procedure runs with fewer probes.
        progress: Where to report.

    Returns:
        The table as it is written to JSON, and the targets.
    """
    progress.title = "head"
    progress.say("rates of the machine")
    flop_rate, byte_rate = gemm_rate(torch.float64), copy_rate()
    results = []
    for case in HEADS[:2] if quick else HEADS:
        progress.title = f"head {case.name}"
        result = measure_head(case, effort, patience, progress)
        result.limit = hardware_limit(case, flop_rate, byte_rate)
        result.limit["times_limit"] = result.time(FULL_ALONE) / (
            result.limit["operations_ms"] + result.limit["bytes_ms"]
        )
        results.append(result)
    found = targets(results)
    record = {
        "probes": PROBES,
        "memory_method": METHOD,
        "float64_gemm_flops": flop_rate,
        "copy_bytes_per_second": byte_rate,
        "heads": [result.record() for result in results],
        "targets": [target.record() for target in found],
    }
    return record, found
