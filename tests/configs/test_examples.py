"""Every configuration in the examples is one that the package reads."""

from pathlib import Path

import pytest

from hessalign.bench.runs.job import read_file
from hessalign.bench.sweep import make_specification, sweep_jobs

EXAMPLES = Path(__file__).parents[2] / "examples"
FILES = sorted(EXAMPLES.rglob("*.yaml"))


def test_no_configuration_is_missed():
    assert len(FILES) == 3
    assert not list(EXAMPLES.rglob("*.yml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_sweep_is_read_and_says_how_to_launch_it(path):
    spec = make_specification(read_file(path))
    assert sweep_jobs(spec, without_data=True)
    header = path.read_text().split("\n\n")[0]
    assert all(line.startswith("#") for line in header.splitlines())
    name = path.relative_to(EXAMPLES.parent)
    for command in (f"hessalign sweep run {name}", f"hessalign collect {spec.output}"):
        assert command in header
