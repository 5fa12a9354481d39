"""Samples of several domains for tests of diagnoses."""

import torch

from hessalign.bench.data import make_shifted_data


def shifted(kind, *, domains=3, samples=300, seed=0, **options):
    """Sources and target of a synthetic shift as features, labels and domains."""
    data = make_shifted_data(kind, seed, domains=domains, samples=samples, **options)
    parts = (*data.source, data.target)
    return (
        torch.cat([part.x for part in parts]),
        torch.cat([part.y for part in parts]),
        torch.arange(len(parts)).repeat_interleave(samples),
    )


def alike(domains, samples, features, classes=3, *, seed=0, dtype=torch.float64):
    """Domains that are draws from one distribution."""
    generator = torch.Generator().manual_seed(seed)
    count = domains * samples
    y = torch.randint(classes, (count,), generator=generator)
    centres = torch.randn(classes, features, generator=generator, dtype=dtype)
    z = centres[y] + torch.randn(count, features, generator=generator, dtype=dtype)
    return z, y, torch.arange(domains).repeat_interleave(samples)
