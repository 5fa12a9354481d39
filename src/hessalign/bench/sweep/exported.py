"""Tables of a sweep for programs: CSV and JSON, in full precision."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterator
from typing import Any, Final

from hessalign.bench.sweep.selection import Candidate, Cell, Collection, Table

CELL_FIELDS: Final = (
    "selection",
    "dataset",
    "algorithm",
    "domain",
    "mean",
    "standard_error",
    "trials",
    "missing",
)
CHOSEN_FIELDS: Final = (
    "trial_seed",
    "accuracy",
    "validation_accuracy",
    "step",
    "hparams_seed",
    "run",
    "hparams",
)


def render_csv(collection: Collection, *, chosen: bool = False) -> str:
    """CSV: a line per cell of the data sets' tables, from which the averages follow.

    Args:
        collection: The results.
        chosen: Whether to write a line per trial instead, with the run behind it.

    Returns:
        The text.
    """
    buffer = io.StringIO()
    fields = [*CELL_FIELDS, *CHOSEN_FIELDS] if chosen else list(CELL_FIELDS)
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
            fields = dict(zip(CELL_FIELDS, values, strict=True))
            trials = _trials(cell, chosen=True) if chosen else []
            for trial in trials:
                hparams = json.dumps(trial["hparams"], sort_keys=True)
                yield {**fields, **trial, "hparams": hparams}
            if not trials:
                yield fields


def render_json(collection: Collection, *, chosen: bool = False) -> str:
    """JSON: tables with the value of every trial, what they lack, and the notes.

    Args:
        collection: The results.
        chosen: Whether to add the run behind each value.

    Returns:
        The text.
    """
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
