"""The cost of runs, recovered from short ones whose cost is known."""

import json

import pytest

from hessalign.bench.sweep import Job, measure_cost
from hessalign.bench.sweep.progress import evaluations

JOB = Job("PACS", "ERM", (0,), 0, 0, "data")


class Simulated:
    """Work that takes 2 + 0.01 n + 0.3 k seconds for n steps and k evaluations."""

    def __init__(self, every):
        self.now = 0.0
        self.every = every
        self.lengths = []

    def clock(self):
        return self.now

    def __call__(self, job, folder):
        count = evaluations(job.steps, self.every(job.steps))
        self.lengths.append(job.steps)
        first = len(self.lengths) == 1
        self.now += 2 + 0.01 * job.steps + 0.3 * count + (100 if first else 0)
        folder.mkdir()
        (folder / "results.jsonl").write_text("x" * 99 + "\n" + ("x" * 99 + "\n") * (count - 1))
        (folder / "done").write_text(json.dumps({}).ljust(50))


@pytest.mark.parametrize(
    "every", [lambda steps: 300, lambda steps: max(1, (steps - 1) // 10)], ids=["images", "tenth"]
)
def test_all_parts_of_the_cost_are_found(every):
    work = Simulated(every)
    cost = measure_cost(JOB, work, work.clock)
    assert cost.start == pytest.approx(2.0)
    assert cost.step == pytest.approx(0.01)
    assert cost.evaluation == pytest.approx(0.3)
    assert (cost.record, cost.files) == (100, 50)
    assert cost.seconds(5001, 18) == pytest.approx(2 + 50.01 + 5.4)
    assert cost.size(18) == 1850
    assert max(work.lengths) <= 64


def test_fast_runs_are_measured_for_longer_but_not_beyond_their_own_length():
    work = Simulated(lambda steps: 300)
    speed = 1e-3
    measure_cost(JOB, work, lambda: speed * work.now)
    assert work.lengths == [1, 1, 16, 64, 256, 1024, 4096]
    short = Simulated(lambda steps: 300)
    measure_cost(Job("PACS", "ERM", (0,), 0, 0, "d", steps=40), short, lambda: speed * short.now)
    assert short.lengths == [1, 1, 16]
    shortest = Simulated(lambda steps: 300)
    measure_cost(Job("PACS", "ERM", (0,), 0, 0, "d", steps=1), shortest, shortest.clock)
    assert shortest.lengths == [1, 1]


def test_records_of_the_benchmarks():
    # The protocol: PACS 18 records (0, 300 … 4800, 5000), DomainNet 6, MNIST 51.
    assert [evaluations(5001, every) for every in (300, 1000, 100)] == [18, 6, 51]
    assert [evaluations(steps, 10) for steps in (1, 2, 11, 12)] == [1, 2, 2, 3]
