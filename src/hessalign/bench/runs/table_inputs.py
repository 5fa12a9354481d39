"""What a model that was trained on a table needs to know of it, to take another one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from hessalign.bench.data import Column, DomainDataset
from hessalign.diagnosis.preparation import Preparation


@final
@dataclass(frozen=True)
class TableInputs:
    """The columns of a table, and how their features were made ready in training.

    Attributes:
        columns: What features are made of.
        fill: What stands for a missing value of each feature.
        marked: Features that have a further input, which tells where they were missing.
        mean: Of every input, the marks last.
        scale: Its standard deviation.
    """

    columns: tuple[Column, ...]
    fill: tuple[float, ...]
    marked: tuple[int, ...]
    mean: tuple[float, ...]
    scale: tuple[float, ...]

    def prepare(self, x: Tensor) -> Tensor:
        """The inputs of the network for features in which NaN is missing."""
        fill, mean, scale = (torch.tensor(part) for part in (self.fill, self.mean, self.scale))
        marked = torch.tensor(self.marked, dtype=torch.int64)
        return Preparation(fill, marked, mean, scale).apply(x.float())


def make_table_inputs(data: DomainDataset, preparation: Preparation) -> TableInputs:
    """All that a trained model keeps of its table."""
    columns = () if data.table is None else data.table.columns
    parts = (preparation.fill, preparation.marked, preparation.mean, preparation.scale)
    return TableInputs(columns, *(tuple(part.tolist()) for part in parts))


def read_table_inputs(values: Mapping[str, Any]) -> TableInputs:
    """The same from plain values."""
    columns = tuple(Column(each["name"], tuple(each["values"])) for each in values["columns"])
    parts = (tuple(values[name]) for name in ("fill", "marked", "mean", "scale"))
    return TableInputs(columns, *parts)
