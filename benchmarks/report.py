"""Results as JSON and as Markdown."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

from hessalign._files import write_atomically

Record = dict[str, Any]


def write_report(record: Record, folder: Path) -> tuple[Path, Path]:
    """Write `bench.json` and `bench.md`.

    Args:
        record: Machine facts and tables.
        folder: Where to.

    Returns:
        The two files.
    """
    paths = folder / "bench.json", folder / "bench.md"
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(record, indent=2, ensure_ascii=False) + "\n"
    write_atomically(paths[0], text.encode())
    write_atomically(paths[1], markdown(record).encode())
    return paths


def markdown(record: Record) -> str:
    """The whole report.

    Args:
        record: Machine facts and tables.

    Returns:
        Markdown text.
    """
    tables = record["tables"]
    parts = ["# Benchmarks", facts(record)]
    if "head" in tables:
        parts.append(head_section(tables["head"]))
    if "growth" in tables:
        parts.append(growth_section(tables["growth"]))
    if "cmnist" in tables:
        parts.append(cmnist_section(tables["cmnist"]))
    if "engine" in tables:
        parts.append(engine_section(tables["engine"]))
    return "\n\n".join(parts) + "\n"


def facts(record: Record) -> str:
    """What the numbers were measured on, and how.

    Args:
        record: Machine facts and settings.

    Returns:
        A paragraph.
    """
    machine = record["machine"]
    text = (
        f"{machine['cpu']} ({machine['simd']}), {machine['threads']} thread, torch "
        f"{machine['torch']}, BackPACK {machine['backpack-for-pytorch']}, curvlinops "
        f"{machine['curvlinops-for-pytorch']}, {machine['date'][:10]}. Times are medians of "
        "processor time per call, with quartiles in brackets; what is compared was measured in "
        "turn within one run, and ratios are ratios of its medians."
    )
    return text + (" **Quick run: not for quoting.**" if record["quick"] else "")


def table(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table, the first column left-aligned and the others right-aligned.

    Args:
        header: Column titles.
        rows: Cells.

    Returns:
        The table.
    """
    rule = [":--", *["--:"] * (len(header) - 1)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [header, rule, *rows])


def number(value: float) -> str:
    """Three significant digits, thousands separated.

    Args:
        value: The number.

    Returns:
        Its text.

    Example:
        >>> number(12345.6), number(12.345), number(0.12345), number(1.0)
        ('12,300', '12.3', '0.123', '1.00')
    """
    if value == 0:
        return "0"
    digits = 2 - (len(str(int(abs(value)))) - 1) if abs(value) >= 1 else 3
    return f"{round(value, digits):,.{max(digits, 0)}f}"


def milliseconds(timing: Record) -> str:
    """A median with its quartiles; a star marks an extrapolated one.

    Args:
        timing: A recorded timing.

    Returns:
        The cell.
    """
    low, high = timing["quartiles_ms"]
    star = "\\*" if timing.get("extrapolated_from_probes") else ""
    return f"{number(timing['median_ms'])}{star} [{number(low)}, {number(high)}]"


def checklist(targets: list[Record]) -> str:
    """Targets and whether they are met.

    Args:
        targets: Recorded targets.

    Returns:
        A Markdown task list.
    """
    lines = []
    for target in targets:
        mark, verdict = ("x", "met") if target["met"] else (" ", "**missed**")
        unit = target["unit"] if target["unit"] == "×" else f" {target['unit']}"
        lines.append(
            f"- [{mark}] {target['what']}: {number(target['measured'])}{unit}, "
            f"to be {target['relation']} {target['bound']:,g}{unit}: {verdict}"
        )
    return "\n".join(lines)


def head_section(record: Record) -> str:
    """The head table.

    Args:
        record: The table.

    Returns:
        Markdown text.
    """
    parts = [
        "## The penalty of a classifier head",
        "Forward and backward for 3 domains × 32 samples. The closed forms are differentiated in "
        "features and logits; the released procedure and plain cross-entropy run through the head "
        "and are differentiated in features, weights and bias.",
        summary(record),
        extrapolation_note(record),
    ]
    for head in record["heads"]:
        parts.extend([f"### {head['features']}×{head['classes']}", head_table(head)])
    parts.extend([f"Peak extra memory: {record['memory_method']}.", limits(record)])
    parts.extend(["### Targets", checklist(record["targets"])])
    return "\n\n".join(parts)


def summary(record: Record) -> str:
    """The head table in brief.

    Args:
        record: The table.

    Returns:
        One row per head.
    """
    columns = {
        "diagonal + gradient": "diagonal + gradient",
        "full + gradient": "full + gradient",
    }
    rows = []
    for head in record["heads"]:
        cells = head["rows"]
        released, floor = cells["released procedure"], cells["plain cross-entropy (the floor)"]
        row = [f"{head['features']}×{head['classes']}", f"{number(released['median_ms'])} ms"]
        for name in columns:
            faster = number(cells[name]["times_faster_than_released"])
            row.append(f"{number(cells[name]['median_ms'])} ms ({faster}×)")
        rows.append([*row, f"{number(floor['median_ms'])} ms"])
    header = ["head (d×C)", f"released procedure, {record['probes']} probes"]
    return table([*header, *columns.values(), "plain cross-entropy"], rows)


def extrapolation_note(record: Record) -> str:
    """Which numbers are extrapolated, and how well that works where it can be checked.

    Args:
        record: The table.

    Returns:
        A paragraph.
    """
    heads = record["heads"]
    if not any(row["extrapolated_from_probes"] for head in heads for row in head["rows"].values()):
        return "No time is extrapolated: every procedure ran with all its probes."
    checks = [
        f"{head['released_extrapolated_over_measured']:.2f} at {head['features']}×{head['classes']}"
        for head in heads
        if head["released_extrapolated_over_measured"] is not None
    ]
    note = (
        f"Times marked \\* are for {record['probes']} probes, continued on the line through two "
        "smaller numbers of probes (in the JSON file), because all of them would take too long or "
        "need more than half of the machine's memory."
    )
    if checks:
        note += (
            " Where the released procedure ran with all its probes, the same extrapolation gives "
            f"this multiple of the measured time: {', '.join(checks)}."
        )
    return note


def head_table(head: Record) -> str:
    """All rows of one head.

    Args:
        head: Its record.

    Returns:
        The table.
    """
    rows = [
        [
            f"{name}: {row['about']}",
            milliseconds(row),
            f"{number(row['times_faster_than_released'])}×",
            f"{number(row['times_floor'])}×",
            f"{number(row['peak_extra_memory_bytes'] / 1e6)}",
        ]
        for name, row in head["rows"].items()
    ]
    header = ["", "time, ms", "faster than released", "of the floor", "peak extra memory, MB"]
    return table(header, rows)


def limits(record: Record) -> str:
    """How far the full Hessian is from what the hardware allows.

    Args:
        record: The head table.

    Returns:
        A paragraph and a table.
    """
    rows = []
    for head in record["heads"]:
        limit, full = head["hardware_limit_of_full"], head["rows"]["full"]["median_ms"]
        rows.append(
            [
                f"{head['features']}×{head['classes']}",
                number(limit["float64_operations"] / 1e6),
                number(limit["operations_ms"]),
                number(limit["bytes"] / 1e6),
                number(limit["bytes_ms"]),
                number(full),
                f"{number(limit['times_limit'])}×",
            ]
        )
    header = ["head", "Mflop", "ms", "MB", "ms", "full, ms", "of the limit"]
    text = (
        "The limit of the hardware for the full Hessian in its dual form, with N samples in all: "
        "4N²d + 12N²C float64 operations (the Gram matrix of the features and three over the "
        "classes, forward and backward) at the measured rate of a 1024³ matrix product, "
        f"{number(record['float64_gemm_flops'] / 1e9)} Gflop/s, plus reading features and logits "
        "and writing their gradients once at the measured "
        f"{number(record['copy_bytes_per_second'] / 1e9)} GB/s of a large copy. Penalties that "
        "take less than about a millisecond are bound by the number of tensor operations instead."
    )
    return f"### How far from the hardware's limit\n\n{text}\n\n{table(header, rows)}"


def growth_section(record: Record) -> str:
    """The growth table.

    Args:
        record: The table.

    Returns:
        Markdown text.
    """
    base = record["base"]
    parts = [
        "## Growth",
        f"Forward and backward of the Hessian dispersion, one size varied at a time around "
        f"n={base['samples']} samples per domain, d={base['features']}, C={base['classes']}, "
        f"E={base['domains']}. Exponents: fitted over the range; between the two largest sizes; of "
        "the number of multiplications. The full Hessian's primal form stops where its entries "
        "would fill half a gigabyte.",
    ]
    rows = []
    for axis in record["axes"]:
        for name, form in axis["forms"].items():
            sizes, times = form["sizes"], [time["median_ms"] for time in form["times"]]
            rows.append(
                [
                    f"{name}, {axis['symbol']} = {sizes[0]} … {sizes[-1]}",
                    f"{number(times[0])} … {number(times[-1])}",
                    f"{number(max(form['peak_extra_memory_bytes']) / 1e6)}",
                    f"{form['exponent']:.2f}",
                    f"{form['exponent_of_last_step']:.2f}",
                    f"{form['exponent_of_multiplications']}",
                ]
            )
    header = ["", "time, ms", "largest peak memory, MB", "fitted", "last step", "multiplications"]
    parts.append(table(header, rows))
    for axis in record["axes"]:
        parts.extend([f"### Milliseconds against {axis['symbol']}", growth_times(axis)])
    parts.extend(["### Targets", checklist(record["targets"])])
    return "\n\n".join(parts)


def growth_times(axis: Record) -> str:
    """Times along one axis; the form the library chooses is in bold.

    Args:
        axis: Its record.

    Returns:
        The table.
    """
    rows = []
    for name, form in axis["forms"].items():
        kind, evaluation = name.split()
        times = dict(zip(form["sizes"], form["times"], strict=True))
        row = [name]
        for size, chosen in zip(axis["sizes"], axis["chosen_automatically"][kind], strict=True):
            cell = number(times[size]["median_ms"]) if size in times else "–"
            row.append(f"**{cell}**" if chosen == evaluation and size in times else cell)
        rows.append(row)
    header = [f"{axis['symbol']} =", *[str(size) for size in axis["sizes"]]]
    return f'{table(header, rows)}\n\nIn bold what `evaluation="auto"` chooses.'


def cmnist_section(record: Record) -> str:
    """The Colored MNIST table.

    Args:
        record: The table.

    Returns:
        Markdown text.
    """
    rows = [
        [name, milliseconds(row), f"{number(row['times_erm'])}×", str(row["repeats"])]
        for name, row in record["rows"].items()
    ]
    parts = [
        "## A whole Colored MNIST step",
        f"Forward, backward and Adam update of the {'-'.join(map(str, record['network']))} network "
        f"on {record['domains']} domains × {record['samples_per_domain']:,} samples. All penalties "
        "include the gradient term.",
        table(["", "time, ms", "of ERM", "repeats"], rows),
        "### Targets",
        checklist(record["targets"]),
    ]
    return "\n\n".join(parts)


def engine_section(record: Record) -> str:
    """The table of the training engine.

    Args:
        record: The table.

    Returns:
        Markdown text.
    """
    rows = [[name, milliseconds(row), str(row["repeats"])] for name, row in record["rows"].items()]
    two = record["two_runs_seconds"]
    overheads = [
        [
            name,
            *(f"{value:.3f}" for value in statistics.quantiles(ratios, n=4, method="inclusive")),
            str(len(ratios)),
        ]
        for name, ratios in record["overhead"].items()
    ]
    parts = [
        "## The training engine",
        "The engine's loop against the same training written out bare, both made anew in every "
        "round: processor time relative to the bare loop.",
        table(["", "first quartile", "median", "third quartile", "rounds"], overheads),
        f"A Colored MNIST step of "
        f"{record['samples']:,} images needs {number(record['gigaflop_per_step'])} GFLOP of matrix "
        f"products ({record['lit_pixels']} of 392 inputs are ever lit in an image's own channel) "
        f"and runs at {number(record['step_gigaflop_per_second'])} GFLOP/s; the machine's float32 "
        f"product reaches {number(record['product_gigaflop_per_second'])}. A checkpoint takes "
        f"{number(1e3 * record['checkpoint_seconds'])} ms, twice a minute. Two runs take "
        f"{number(two['one_after_the_other'])} s one after the other and "
        f"{number(two['at_once'])} s at once.",
        table(["", "time, ms", "repeats"], rows),
        "### Targets",
        checklist(record["targets"]),
    ]
    return "\n\n".join(parts)
