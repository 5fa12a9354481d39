"""Made-up measurements of patients in three wards, one of which has another instrument."""

from __future__ import annotations

import torch

from hessalign.bench.data import DomainDataset, DomainSamples


def make_wards() -> DomainDataset:
    """Sixty patients of each ward, four measurements, ill or well."""
    generator = torch.Generator().manual_seed(0)
    wards = []
    for name, shortcut in (("north", 1.0), ("east", 0.5), ("south", -0.5)):
        y = torch.arange(60) % 2
        x = torch.randn(60, 4, generator=generator)
        x[:, 0] += 2.0 * y  # what makes ill, everywhere
        x[:, 1] += 2.0 * shortcut * y  # what the instrument adds
        wards.append(DomainSamples(name, x, y))
    return DomainDataset("wards", ("well", "ill"), tuple(wards))
