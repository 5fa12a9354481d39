"""What is said about a run while it goes on."""

import io

from hessalign.bench.runs import Record
from hessalign.bench.runs.records import run_progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


def record(step, seconds=4.0):
    terms = {"loss": 1.0, "risk": 0.5, "hessian": 0.1, "penalty": 0.1}
    metrics = {"train_accuracy": 0.8, "test_accuracy": 0.2, "hessian_distance": 0.3}
    return Record(step, seconds, terms, metrics)


def test_a_run_shows_its_steps_and_what_was_measured():
    stream = Terminal()
    show = run_progress("hgp", 3, stream)
    for step in range(3):
        show(record(step, 4.0 * (step + 1)))
    first, second, third = stream.getvalue().split("\r")[1:]
    measured = "train 80.0 %  OOD 20.0 %  risk 0.500  hessian 1.0e-01  ‖H₁−H₂‖ 3.00e-01"
    assert first == f"hgp          1/3 steps  {measured}"
    assert second == f"hgp          2/3 steps  15 steps/min  4 s left  {measured}"
    assert third.rstrip() == f"hgp          3/3 steps  15 steps/min  {measured}"
    assert third.endswith("\n")
