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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, final

from hessalign.bench.sweep.selection import Candidate, Cell, Collection, Row, Table
from hessalign.report.tables import markdown_table

_DATASET_WIDTH: Final = 20
_AVERAGES_WIDTH: Final = 25
_CHOSEN_HEADER: Final = (
    "algorithm",
    "domain",
    "trial",
    "test",
    "validation",
    "step",
    "hparams seed",
    "run",
    "hyper-parameters",
)
_CELL_FIELDS: Final = (
    "selection",
    "dataset",
    "algorithm",
    "domain",
    "mean",
    "standard_error",
    "trials",
    "missing",
)
_CHOSEN_FIELDS: Final = (
    "trial_seed",
    "accuracy",
    "validation_accuracy",
    "step",
    "hparams_seed",
    "run",
    "hparams",
)


class _Renderer(Protocol):
    """Writes the tables of a sweep."""

    def __call__(self, collection: Collection, *, chosen: bool = False) -> str:
        """The tables as text with a final line end, and the chosen runs if they are asked for."""


@final
@dataclass(frozen=True)
class _Style:
    """How cells are written.

    Attributes:
        plus_minus: Between a mean and its error.
        missing: In place of a value that is missing.
        mark: A reference to a footnote.
        escape: Applied to names.
    """

    plus_minus: str
    missing: str
    mark: Callable[[int], str]
    escape: Callable[[str], str] = str


@final
class _Footnotes:
    """Reasons, each numbered once."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def number(self, reasons: Sequence[str]) -> int | None:
        """The number of a cell's reasons."""
        if not reasons:
            return None
        return self.numbers.setdefault("; ".join(reasons), len(self.numbers) + 1)


def _latex_escape(text: str) -> str:
    r"""Text with the characters that LaTeX would interpret escaped.

    Returns:
        LaTeX.

    Example:
        >>> _latex_escape("IB_ERM +90% {0,2}")
        'IB\\_ERM +90\\% \\{0,2\\}'
    """
    named = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    return "".join(named.get(c, f"\\{c}" if c in "&%$#_{}" else c) for c in text)


_DOMAINBED: Final = _Style(" +/- ", "X", lambda number: "")
_TEXT: Final = _Style(" +/- ", "missing", lambda number: f" [{number}]")
_MARKDOWN: Final = _Style(
    " ± ", "missing", lambda number: f" [{number}]", lambda text: text.replace("|", "\\|")
)
_LATEX: Final = _Style(
    r" $\pm$ ", "missing", lambda number: rf"\textsuperscript{{{number}}}", _latex_escape
)


def _title(table: Table) -> str:
    """What a table shows, in DomainBed's words."""
    what = "Averages" if table.dataset is None else f"Dataset: {table.dataset}"
    return f"{what}, model selection method: {table.selection.title}"


def _grid(table: Table, style: _Style, footnotes: _Footnotes) -> list[list[str]]:
    """The header and the rows of a table as text."""

    def marked(value: str | None, reasons: Sequence[str]) -> str:
        number = footnotes.number(reasons)
        return (value or style.missing) + (style.mark(number) if number is not None else "")

    def cell_text(cell: Cell) -> str:
        value = None
        if cell.mean is not None:
            value = f"{cell.mean:.1f}{style.plus_minus}{cell.error:.1f}"
        return marked(value, cell.reasons)

    def average_text(row: Row) -> str:
        if row.average is not None:
            return f"{row.average:.1f}"
        return marked(None, [f"no value in column {', '.join(table.without_value(row))}"])

    header = ["Algorithm", *map(style.escape, table.columns), "Avg"]
    return [header] + [
        [style.escape(row.algorithm), *map(cell_text, row.cells), average_text(row)]
        for row in table.rows
    ]


def _chosen_rows(table: Table) -> list[list[str]]:
    """The runs behind a table, one row per cell and trial."""
    return [
        [
            row.algorithm,
            column,
            str(trial),
            f"{chosen.test:.6f}",
            f"{chosen.validation:.6f}",
            str(chosen.step),
            str(chosen.run.key.hparams_seed),
            os.path.dirname(chosen.run.path),
            json.dumps(chosen.run.hparams, sort_keys=True),
        ]
        for row in table.rows
        for column, cell in zip(table.columns, row.cells, strict=True)
        for trial, chosen in zip(cell.trials, cell.chosen, strict=False)
    ]


def _render_domainbed(collection: Collection, *, chosen: bool = False) -> str:
    """What DomainBed prints, byte for byte; a missing value is an X without a reason."""
    return _plain(collection, _DOMAINBED, _Footnotes()) + (_plain_chosen(collection) * chosen)


def _render_text(collection: Collection, *, chosen: bool = False) -> str:
    """What DomainBed prints if nothing is missing, else with marks and the reasons at the end."""
    footnotes = _Footnotes()
    text = _plain(collection, _TEXT, footnotes)
    if footnotes.numbers:
        text += "\n-------- Missing\n"
        text += "".join(f"[{number}] {why}\n" for why, number in footnotes.numbers.items())
    return text + (_plain_chosen(collection) * chosen)


def _plain(collection: Collection, style: _Style, footnotes: _Footnotes) -> str:
    lines = [f"Total records: {collection.records}"]
    for table in collection.tables:
        lines += ["", f"-------- {_title(table)}"]
        width = _AVERAGES_WIDTH if table.dataset is None else _DATASET_WIDTH
        # Cells are cut to the width of their column and lines end in a blank, as DomainBed's do.
        lines += [
            "  ".join(cell.ljust(width)[:width] for cell in row) + " "
            for row in _grid(table, style, footnotes)
        ]
    return "\n".join(lines) + "\n"


def _plain_chosen(collection: Collection) -> str:
    lines = []
    for table in collection.tables:
        rows = _chosen_rows(table)
        if not rows:
            continue
        cells = [list(_CHOSEN_HEADER), *rows]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines += ["", f"-------- Chosen runs, {_title(table)}"]
        lines += [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in cells
        ]
    return "".join(f"{line}\n" for line in lines)


def _render_markdown(collection: Collection, *, chosen: bool = False) -> str:
    """Markdown: a section per table, with what it lacks below it."""
    parts = [f"{collection.records} records."]
    for table in collection.tables:
        footnotes = _Footnotes()
        header, *rows = _grid(table, _MARKDOWN, footnotes)
        parts += [f"## {_title(table)}", markdown_table(header, rows)]
        if footnotes.numbers:
            parts.append(
                "\n".join(f"- [{number}] {why}" for why, number in footnotes.numbers.items())
            )
        choices = [list(map(_MARKDOWN.escape, row)) for row in _chosen_rows(table)]
        if chosen and choices:
            parts += ["Chosen runs:", markdown_table(_CHOSEN_HEADER, choices, text_columns=2)]
    return "\n\n".join(parts) + "\n"


def _render_latex(collection: Collection, *, chosen: bool = False) -> str:
    """LaTeX to be included in a document that uses the package booktabs."""
    lines = [
        r"% \usepackage{booktabs} in the preamble",
        f"% Total records: {collection.records}",
    ]
    for table in collection.tables:
        footnotes = _Footnotes()
        heading = _latex_escape(_title(table))
        lines += ["", rf"\subsection*{{{heading}}}", *_tabular(_grid(table, _LATEX, footnotes))]
        for why, number in footnotes.numbers.items():
            lines += ["", rf"{{\footnotesize {_LATEX.mark(number)} {_latex_escape(why)}}}"]
        choices = _chosen_rows(table) if chosen else []
        if choices:
            cells = [list(map(_latex_escape, row)) for row in (_CHOSEN_HEADER, *choices)]
            lines += ["", rf"\subsubsection*{{Chosen runs, {heading}}}", *_tabular(cells)]
    return "\n".join(lines) + "\n"


def _tabular(cells: Sequence[Sequence[str]]) -> list[str]:
    header, *rows = (" & ".join(row) + r" \\" for row in cells)
    columns = "l" + "c" * (len(cells[0]) - 1)
    return [
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        header,
        r"\midrule",
        *rows,
        r"\bottomrule",
        r"\end{tabular}",
    ]


def _render_csv(collection: Collection, *, chosen: bool = False) -> str:
    """CSV: a line per cell of the data sets' tables, from which the averages follow."""
    buffer = io.StringIO()
    fields = [*_CELL_FIELDS, *_CHOSEN_FIELDS] if chosen else list(_CELL_FIELDS)
    writer = csv.DictWriter(buffer, fields, lineterminator="\n")
    writer.writeheader()
    for table in collection.tables:
        if table.dataset is not None:
            writer.writerows(_csv_rows(table, chosen=chosen))
    return buffer.getvalue()


def _csv_rows(table: Table, *, chosen: bool) -> Iterator[dict[str, Any]]:
    for row in table.rows:
        for column, cell in zip(table.columns, row.cells, strict=True):
            values = (
                table.selection.name,
                table.dataset,
                row.algorithm,
                column,
                cell.mean,
                cell.error,
                len(cell.trials),
                "; ".join(cell.reasons),
            )
            fields = dict(zip(_CELL_FIELDS, values, strict=True))
            trials = _trials(cell, chosen=True) if chosen else []
            for trial in trials:
                hparams = json.dumps(trial["hparams"], sort_keys=True)
                yield {**fields, **trial, "hparams": hparams}
            if not trials:
                yield fields


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
    candidates = cell.chosen if chosen and cell.chosen else (None,) * len(cell.trials)
    return [
        {"trial_seed": trial, "accuracy": value, **_candidate_fields(candidate)}
        for trial, value, candidate in zip(cell.trials, cell.values, candidates, strict=True)
    ]


def _candidate_fields(candidate: Candidate | None) -> dict[str, Any]:
    if candidate is None:
        return {}
    return {
        "validation_accuracy": candidate.validation,
        "step": candidate.step,
        "hparams_seed": candidate.run.key.hparams_seed,
        "run": os.path.dirname(candidate.run.path),
        "hparams": dict(candidate.run.hparams),
    }


FORMATS: Mapping[str, _Renderer] = {
    "text": _render_text,
    "domainbed": _render_domainbed,
    "markdown": _render_markdown,
    "latex": _render_latex,
    "csv": _render_csv,
    "json": _render_json,
}
"""Renderers by name."""
