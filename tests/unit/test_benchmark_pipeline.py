"""The benchmark of the image pipeline: what it counts, and what it makes of its measurements."""

import os
import subprocess
import sys

import pytest
from benchmarks import pipeline
from benchmarks.processes import cpu_seconds, descendants, resident_megabytes

pytestmark = pytest.mark.slow

STEP = {"step_cpu_ms": 9600.0, "processes": 3, "resident_mb": 900.0}
EVALUATED = {"oracle": {"needed": 250.0, "all": 1000.0}}


def samples(ours, theirs):
    return {
        name: [{"cpu_ms": value, "wall_ms": 2 * value} for value in values]
        for name, values in (("ours", ours), ("domainbed", theirs))
    }


def test_ratios_are_taken_turn_by_turn():
    record = pipeline.summarise(samples([1.0, 2.0, 1.0], [6.0, 10.0, 7.0]), STEP)
    assert record["ratio_cpu"] == {"median": 6.0, "quartiles": [5.5, 6.5]}
    assert record["share_of_step"] == pytest.approx(96 * 1.0 / 9600)
    assert record["met"]
    text = pipeline.markdown({**record, "torchvision": "0", "evaluated": EVALUATED})
    assert "processor times: 6.0 (quartiles 5.5 to 6.5); target: at least 5" in text
    assert "1.0 % of that" in text
    assert "| oracle | 250 | 1,000 | 25% |" in text


@pytest.mark.parametrize(("theirs", "processes"), [(4.9, 3), (9.0, 5)])
def test_a_missed_target_is_told(theirs, processes):
    step = {**STEP, "processes": processes}
    assert not pipeline.summarise(samples([1.0, 1.0], [theirs, theirs]), step)["met"]


def test_processes_are_counted_with_their_time_and_memory():
    busy = "import time\nwhile time.process_time() < 0.4: pass\nprint(flush=True)\ninput()"
    before = descendants(os.getpid())
    child = subprocess.Popen(
        [sys.executable, "-c", busy], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    child.stdout.readline()
    assert descendants(os.getpid()) - before == {child.pid}
    assert 0.3 < cpu_seconds([child.pid]) < 2
    assert 2 < resident_megabytes(child.pid) < 200
    child.communicate(b"\n")
    assert child.pid not in descendants(os.getpid())
