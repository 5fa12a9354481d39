"""One step of every algorithm where there are no values to read.

The meta device refuses any mixing with tensors of the processor and any look at a value, which on
an accelerator would make a step wait for it. There are no exceptions.
"""

import dataclasses
from typing import get_args, get_type_hints

import pytest
import torch

from hessalign import testing
from hessalign.bench.algorithms import ALGORITHMS, Step
from hessalign.bench.runs.loop import start_optimizers, update

READINGS = [
    (name, fidelity)
    for name, info in ALGORITHMS.items()
    for fidelity in get_args(get_type_hints(type(info.config)).get("fidelity")) or (None,)
]

EARLY = {
    "eqrm": {"burn_in_steps": 0},
    "mdan": {"gamma": None},  # the hard maximum; others have the soft one
    "trm": {"transfer_start": 0, "head_steps": 2},
    "ermplusplus": {"probe_steps": 1, "sma_start": 2},
}
"""Options by which what sets in late is met in the first two steps."""


def test_there_are_algorithms_with_several_readings():
    assert len(READINGS) > len(ALGORITHMS)


@pytest.mark.parametrize(("name", "fidelity"), READINGS)
def test_a_step_on_another_device(name, fidelity):
    info, meta = ALGORITHMS[name], torch.device("meta")
    if fidelity is not None:
        info = dataclasses.replace(info, config=info.configure({"fidelity": fidelity}))
    situation = testing.Situation((4, 4, 4), "cross_entropy")
    trial = testing._Trial(info, situation, EARLY.get(name, {}))
    trial.algorithm.to(meta)
    optimizers = start_optimizers(trial.algorithm, trial.config)
    batch = trial.situation.batch(0).to(meta)
    for number in range(2):
        step = Step(trial.algorithm.network, batch, number, trial.situation.loss)
        terms = update(trial.algorithm, step, optimizers, trial.config)
        assert all(value.is_meta for value in terms.values())
