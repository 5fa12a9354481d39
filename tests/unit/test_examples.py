"""The examples run, and what they print is what they promise."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import hessalign

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "examples"
ACCURACY = re.compile(r"(\d+\.\d) ± \d+\.\d")


def run_example(name, *arguments):
    source = Path(hessalign.__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / name), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def accuracies(printed, row):
    """The means in the row that starts with this word."""
    (line,) = [line for line in printed.splitlines() if line.split()[:1] == [row]]
    return [float(value) for value in ACCURACY.findall(line)]


def test_every_example_is_tested_and_found_in_the_documentation():
    names = {path.name for path in EXAMPLES.glob("*.py")}
    assert names == {
        "efficientnet_lite0.py",  # a backbone to import, not a script
        "embeddings_sklearn.py",
        "four_hospitals.py",
        "hospitals.py",
        "own_algorithm.py",
        "penalty_in_a_loop.py",
    }
    pages = (EXAMPLES.parent / "docs").glob("*.md")
    text = "".join(page.read_text(encoding="utf-8") for page in pages)
    assert [name for name in names if f"examples/{name}" not in text] == []


def test_penalty_in_a_loop():
    printed = run_example("penalty_in_a_loop.py", "--seeds", "2")
    plain, aligned = (accuracies(printed, row) for row in ("plain", "aligned"))
    assert aligned[1] > plain[1] + 3  # the unseen domain
    assert plain[0] > 90  # the sources: the shortcut works there
    assert aligned[0] > 85


def test_embeddings_sklearn():
    printed = run_example("embeddings_sklearn.py", "--seeds", "3")
    assert len(re.findall(r"(?m)^seed \d: alpha=\d+ beta=\d+$", printed)) == 3
    plain, _, worst, chosen = (float(value) for value in ACCURACY.findall(printed))
    assert worst > plain + 1
    assert chosen > plain


def test_hospitals():
    printed = run_example("hospitals.py", "--seeds", "2")
    distances = [
        [float(value) for value in re.findall(r"\d\.\d\d", line)]
        for line in printed.splitlines()
        if re.match(r"(Aalen|Bern|Como|Delft) ", line)
    ]
    assert len(distances) == 4
    assert distances[0][3] == distances[3][0]
    ((between, chance),) = re.findall(r"error_feature +([\d.]+) +([\d.]+)", printed)
    assert float(between) > 2 * float(chance)  # what the features say about the label differs
    assert re.search(r"Farthest from the others: (Aalen|Delft)", printed)
    rows = [accuracies(printed, strength) for strength in ("0", "0.1", "1", "10")]
    _, _, worst, unseen = zip(*rows, strict=True)
    assert worst[-1] > worst[0] + 2
    assert unseen[-1] > unseen[0] + 4
    assert rows[-1][0] < rows[0][0]  # the price


def test_four_hospitals():
    printed = run_example("four_hospitals.py", "--attributes", "10", "--strengths", "0.1")
    rows = {
        name: [float(value) for value in re.search(rf"(?m)^{name} +(.*)$", printed)[1].split()]
        for name in ("Cleveland", "Hungary", "Switzerland", "VA Long Beach")
    }
    unseen = [row[4] for row in rows.values()]
    assert 0.69 <= min(unseen) < max(unseen) <= 0.88
    assert rows["Switzerland"][5] < rows["Switzerland"][1] - 20  # below always saying sick
    for name in ("Cleveland", "Hungary"):
        assert abs(rows[name][2] - rows[name][4]) < 0.04
        assert rows[name][5] > rows[name][1] + 10


@pytest.mark.parametrize("kept", [False, True])
def test_own_algorithm(tmp_path, kept):
    folder = ("--folder", str(tmp_path / "run")) if kept else ()
    printed = run_example("own_algorithm.py", "--steps", "201", *folder)
    steps = [int(step) for step in re.findall(r"(?m)^step +(\d+): unseen", printed)]
    assert steps == [0, 100, 200]
    dispersions = [float(value) for value in re.findall(r"gradient=([\d.]+)", printed)]
    assert dispersions[-1] < dispersions[0]
    if kept:  # a finished run is read, not repeated
        again = run_example("own_algorithm.py", "--steps", "201", *folder)
        assert again == printed
        assert (tmp_path / "run").is_dir()
