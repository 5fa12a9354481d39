"""Where DomainBed's own runs are, which the repository does not contain."""

from pathlib import Path

import pytest

SWEEP = Path(__file__).parents[2] / "shared" / "data" / "domainbed_sweep"

needs_sweep = pytest.mark.skipif(
    not (SWEEP / "runs").is_dir(), reason=f"DomainBed's runs are not in {SWEEP}"
)
