"""Tables of a sweep as text, for people and for programs.

For people there are DomainBed's plain text, Markdown and LaTeX; outside of DomainBed's own format
a cell that lacks something carries a mark, and the reason stands below. For programs there are CSV
and JSON, in full precision.
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, final

from hessalign.bench.sweep.selection import Cell, Collection, Table
from hessalign.report.tables import markdown_table, markdown_text, plain

_DATASET_WIDTH: Final = 20
_AVERAGES_WIDTH: Final = 25
_CHOSEN_HEADER: Final = (
    "algorithm", "domain", "trial", "test", "validation", "step", "hparams seed", "run",
    "hyper-parameters",
)  # fmt: skip
_CELL_FIELDS: Final = (
    "selection", "dataset", "algorithm", "domain", "mean", "standard_error", "trials", "missing",
)  # fmt: skip
_CHOSEN_FIELDS: Final = (
    "trial_seed", "accuracy", "validation_accuracy", "step", "hparams_seed", "run", "hparams",
)  # fmt: skip


@final
@dataclass(frozen=True)
class _Style:
    """How cells are written, what is missing, footnotes, names, and the best of a column."""

    plus_minus: str
    missing: str
    mark: Callable[[int], str]
    escape: Callable[[str], str] = str
    best: Callable[[str], str] = str


def _latex_escape(text: str) -> str:
    r"""Text with the characters that LaTeX would interpret escaped."""
    named = {
        "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
        "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}",
    }  # fmt: skip
    named |= {c: f"{{{c}}}" for c in "[*"}  # which belong to the end of the line before
    return "".join(named.get(c, f"\\{c}" if c in "&%$#_{}" else c) for c in plain(text))


_DOMAINBED: Final = _Style(" +/- ", "X", lambda number: "", plain)
_TEXT: Final = _Style(" +/- ", "missing", lambda number: f" [{number}]", plain)
_MARKDOWN: Final = _Style(" ± ", "missing", lambda number: f" [{number}]")
_LATEX: Final = _Style(
    r" $\pm$ ",
    "missing",
    lambda number: rf"\textsuperscript{{{number}}}",
    _latex_escape,
    lambda text: rf"\textbf{{{text}}}",
)


def _title(table: Table) -> str:
    """What a table shows, in DomainBed's words."""
    what = "Averages" if table.dataset is None else f"Dataset: {table.dataset}"
    return f"{what}, model selection method: {table.selection.title}"


def _grid(table: Table, style: _Style, footnotes: dict[str, int]) -> list[list[str]]:
    """The header and the rows of a table as text; reasons are numbered, each once."""

    def text(
        mean: float | None, best: float | None, reasons: Sequence[str], error: float | None = None
    ) -> str:
        found = style.missing if mean is None else f"{mean:.1f}"
        if mean is not None and round(mean, 1) == best:
            found = style.best(found)
        if error is not None:
            found += f"{style.plus_minus}{error:.1f}"
        if reasons:
            found += style.mark(footnotes.setdefault("; ".join(reasons), len(footnotes) + 1))
        return found

    rows = [["Algorithm", *map(style.escape, table.columns), "Avg"]]
    *highest, best = table.best
    for row in table.rows:
        pairs = zip(row.cells, highest, strict=True)
        cells = [text(cell.mean, top, cell.reasons, cell.error) for cell, top in pairs]
        empty = ", ".join(table.without_value(row))
        lacking = [f"no value in column {empty}"] if empty else []
        average = text(row.average, best, lacking)
        rows.append([style.escape(row.algorithm), *cells, average])
    return rows


def _chosen_rows(table: Table) -> list[list[str]]:
    """The runs behind a table, one row per cell and trial."""
    rows = []
    for algorithm, column, cell in table.cells():
        for trial in _trials(cell, chosen=True) if cell.chosen else ():
            seed, test, validation, *found, hparams = trial.values()
            accuracies = (f"{test:.6f}", f"{validation:.6f}")
            text = json.dumps(hparams, sort_keys=True)
            rows.append([algorithm, column, str(seed), *accuracies, *map(str, found), text])
    return rows


def _render_plain(style: _Style, collection: Collection, *, chosen: bool = False) -> str:
    """What DomainBed prints, byte for byte; outside of its style, with the reasons at the end."""
    footnotes: dict[str, int] = {}
    text = f"Total records: {collection.records}\n"
    for table in collection.tables:
        text += f"\n-------- {style.escape(_title(table))}\n"
        width = _AVERAGES_WIDTH if table.dataset is None else _DATASET_WIDTH
        # Cells are cut to the width of their column and lines end in a blank, as DomainBed's do.
        for row in _grid(table, style, footnotes):
            text += "  ".join(cell.ljust(width)[:width] for cell in row) + " \n"
    if footnotes and style is not _DOMAINBED:
        text += "\n-------- Missing\n"
        text += "".join(f"[{number}] {style.escape(why)}\n" for why, number in footnotes.items())
    for table in collection.tables if chosen else ():
        rows = [list(map(style.escape, row)) for row in _chosen_rows(table)]
        cells = [_CHOSEN_HEADER, *rows]
        if len(cells) > 1:
            text += f"\n-------- Chosen runs, {style.escape(_title(table))}\n"
            widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
            for line in cells:
                text += "  ".join(map(str.ljust, line, widths)).rstrip() + "\n"
    return text


def _render_markdown(collection: Collection, *, chosen: bool = False) -> str:
    """Markdown: a section per table, with what it lacks below it."""
    parts = [f"{collection.records} records."]
    for table in collection.tables:
        footnotes: dict[str, int] = {}
        header, *rows = _grid(table, _MARKDOWN, footnotes)
        parts += [f"## {markdown_text(_title(table))}", markdown_table(header, rows)]
        if footnotes:
            parts.append(
                "\n".join(f"- [{number}] {markdown_text(why)}" for why, number in footnotes.items())
            )
        choices = _chosen_rows(table)
        if chosen and choices:
            parts += ["Chosen runs:", markdown_table(_CHOSEN_HEADER, choices, text_columns=2)]
    return "\n\n".join(parts) + "\n"


def _render_latex(collection: Collection, *, chosen: bool = False) -> str:
    """LaTeX for a document that uses the package booktabs, the best of a column in bold."""
    lines = [
        r"% \usepackage{booktabs} in the preamble",
        f"% Total records: {collection.records}",
    ]
    for table in collection.tables:
        footnotes: dict[str, int] = {}
        heading = _latex_escape(_title(table))
        lines += ["", rf"\subsection*{{{heading}}}", *_tabular(_grid(table, _LATEX, footnotes))]
        for why, number in footnotes.items():
            lines += ["", rf"{{\footnotesize {_LATEX.mark(number)} {_latex_escape(why)}}}"]
        choices = _chosen_rows(table) if chosen else []
        if choices:
            cells = [list(map(_latex_escape, row)) for row in (_CHOSEN_HEADER, *choices)]
            lines += ["", rf"\subsubsection*{{Chosen runs, {heading}}}", *_tabular(cells)]
    return "\n".join(lines) + "\n"


def _tabular(cells: Sequence[Sequence[str]]) -> list[str]:
    header, *rows = (" & ".join(row) + r" \\" for row in cells)
    begin = rf"\begin{{tabular}}{{l{'c' * (len(cells[0]) - 1)}}}"
    return [begin, r"\toprule", header, r"\midrule", *rows, r"\bottomrule", r"\end{tabular}"]


def _render_csv(collection: Collection, *, chosen: bool = False) -> str:
    """CSV: a line per cell of the data sets' tables, from which the averages follow."""
    buffer = io.StringIO()
    fields = [*_CELL_FIELDS, *_CHOSEN_FIELDS] if chosen else list(_CELL_FIELDS)
    writer = csv.DictWriter(buffer, fields, lineterminator="\n")
    writer.writeheader()
    for table in collection.tables:
        for algorithm, column, cell in table.cells() if table.dataset is not None else ():
            found = (cell.mean, cell.error, len(cell.trials), "; ".join(cell.reasons))
            values = (table.selection.name, table.dataset, algorithm, column, *found)
            row = dict(zip(_CELL_FIELDS, values, strict=True))
            for trial in (_trials(cell, chosen=True) if chosen else ()) or ({},):
                if trial:
                    trial["hparams"] = json.dumps(trial["hparams"], sort_keys=True)
                writer.writerow({**row, **trial})
    return buffer.getvalue()


def _render_json(collection: Collection, *, chosen: bool = False) -> str:
    """JSON: tables with the value of every trial, what they lack, and the notes."""
    tables = [
        {
            "selection": table.selection.name,
            "dataset": table.dataset,
            "columns": list(table.columns),
            "rows": [
                {
                    "algorithm": row.algorithm,
                    "average": row.average,
                    "cells": [
                        {
                            "column": column,
                            "mean": cell.mean,
                            "standard_error": cell.error,
                            "trials": _trials(cell, chosen=chosen),
                            "missing": list(cell.reasons),
                        }
                        for column, cell in zip(table.columns, row.cells, strict=True)
                    ],
                }
                for row in table.rows
            ],
        }
        for table in collection.tables
    ]
    notes = [{"kind": note.kind, "text": note.text} for note in collection.notes]
    whole = {"records": collection.records, "tables": tables, "notes": notes}
    return json.dumps(whole, indent=2) + "\n"


def _trials(cell: Cell, *, chosen: bool) -> list[dict[str, Any]]:
    """The values of a cell; those of averages have no candidate."""
    trials: list[dict[str, Any]] = [
        {"trial_seed": trial, "accuracy": value}
        for trial, value in zip(cell.trials, cell.values, strict=True)
    ]
    for trial, candidate in zip(trials, cell.chosen if chosen else (), strict=False):
        run = candidate.run
        found = (candidate.validation, candidate.step, run.key.hparams_seed)
        values = (*found, os.path.dirname(run.path), dict(run.hparams))
        trial.update(zip(_CHOSEN_FIELDS[2:], values, strict=True))
    return trials


FORMATS: Mapping[str, Callable[..., str]] = {
    "text": partial(_render_plain, _TEXT),
    "domainbed": partial(_render_plain, _DOMAINBED),
    "markdown": _render_markdown,
    "latex": _render_latex,
    "csv": _render_csv,
    "json": _render_json,
}
"""By name, what makes text of a `Collection`, with the chosen runs if `chosen` is true."""
