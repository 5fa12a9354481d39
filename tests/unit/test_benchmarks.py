"""The benchmark's baselines compute what they claim, and its arithmetic is right."""

from __future__ import annotations

import io
import json
import math
import warnings

import pytest
import torch
from benchmarks import head
from benchmarks.__main__ import table_names
from benchmarks.baselines import (
    make_backpack_diagonals,
    make_curvlinops_diagonals,
    rademacher_like,
    released_penalty,
)
from benchmarks.cases import Case
from benchmarks.memory import peak_memory
from benchmarks.report import write_report
from benchmarks.targets import Target
from benchmarks.timing import Effort, Timing, extrapolate_timing, measure
from torch.func import grad, hessian
from torch.nn.functional import cross_entropy

from hessalign.report.progress import Progress

pytestmark = pytest.mark.slow

TINY = Case(features=3, classes=4, domains=3, samples=5)


def tiny_batch():
    return TINY.batch(torch.float64)


def risks(batch, parameters):
    """Each domain's loss as a function of weights and biases in one vector."""
    weight, bias = parameters[: batch.weight.numel()], parameters[batch.weight.numel() :]
    weight = weight.view_as(batch.weight)
    return [cross_entropy(z @ weight.T + bias, y) for z, y in batch.per_domain()]


def mean_risk(batch, parameters):
    return torch.stack(risks(batch, parameters)).mean()


def flat(batch):
    return torch.cat([batch.weight.flatten(), batch.bias])


def dense(batch, parameters):
    """Gradient and Hessian of the mean loss, then of every domain."""
    losses = [lambda p: mean_risk(batch, p)]
    losses += [lambda p, e=e: risks(batch, p)[e] for e in range(TINY.domains)]
    return [(grad(loss)(parameters), hessian(loss)(parameters)) for loss in losses]


def oracle_penalty(batch, parameters, probes, seed):
    """The released procedure with dense Hessians and the same probes."""
    generator = torch.Generator().manual_seed(seed)
    estimates, gradients = [], []
    for gradient, matrix in dense(batch, parameters):
        total = 0
        for _ in range(probes):
            signs = [rademacher_like(parameter, generator) for parameter in batch.parameters]
            probe = torch.cat([sign.flatten() for sign in signs])
            total = total + probe * (matrix @ probe)
        estimates.append(total / probes)
        gradients.append(gradient)
    pairs = zip(estimates[1:], gradients[1:], strict=True)
    distances = [
        (d - estimates[0].detach()).square().sum() + (g - gradients[0].detach()).square().sum()
        for d, g in pairs
    ]
    return torch.stack(distances).mean()


def test_released_procedure_is_its_definition_with_dense_hessians():
    batch = tiny_batch()
    leaves = (batch.z, *batch.parameters)
    found = released_penalty(batch, 7, torch.Generator().manual_seed(3))
    expected = oracle_penalty(batch, flat(batch), 7, seed=3)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)
    for ours, theirs in zip(
        torch.autograd.grad(found, leaves), torch.autograd.grad(expected, leaves), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


def test_released_procedure_has_the_known_expectation():
    batch, probes, draws = tiny_batch(), 2, 400
    fields = [(g.detach(), h.detach()) for g, h in dense(batch, flat(batch).detach())]
    (mean_gradient, mean_hessian), *domains = fields

    def off(matrix):
        return matrix.square().sum() - matrix.diagonal().square().sum()

    expected = 0.0
    for gradient, matrix in domains:
        expected += (matrix.diagonal() - mean_hessian.diagonal()).square().sum()
        expected += (gradient - mean_gradient).square().sum()
        expected += (off(matrix) + off(mean_hessian)) / probes
    expected = float(expected) / len(domains)
    generator = torch.Generator().manual_seed(0)
    values = torch.stack(
        [released_penalty(batch, probes, generator).detach() for _ in range(draws)]
    )
    error = float(values.std()) / math.sqrt(draws)
    assert abs(float(values.mean()) - expected) < 4 * error
    assert error < 0.03 * expected


def test_backpack_gives_the_exact_diagonals():
    batch = tiny_batch()
    for found, (_, matrix) in zip(
        make_backpack_diagonals(batch)(), dense(batch, flat(batch).detach())[1:], strict=True
    ):
        torch.testing.assert_close(found, matrix.diagonal(), rtol=1e-10, atol=1e-12)


def test_curvlinops_estimates_the_same_diagonals():
    batch = tiny_batch()
    probes, rounds = TINY.parameters - 1, 50
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        estimate = make_curvlinops_diagonals(batch, probes)
        found = torch.stack([torch.stack(estimate()) for _ in range(rounds)]).mean(0)
    (_, mean_hessian), *domains = dense(batch, flat(batch).detach())
    expected = torch.stack([*(matrix.diagonal() for _, matrix in domains), mean_hessian.diagonal()])
    assert (found - expected).norm() < 0.1 * expected.norm()


def test_every_row_of_the_head_table_runs_and_most_agree():
    batch = Case(features=6, classes=4, domains=3, samples=5).batch()
    table = head.entries(batch)
    for entry in table.values():
        assert entry.make(3)() is not None
    full, alone = (table[name].make(1)() for name in (head.FULL, head.FULL_ALONE))
    gradient = table["gradient only"].make(1)()
    for both, hessian_part, gradient_part in zip(full, alone, gradient, strict=True):
        torch.testing.assert_close(both, hessian_part + gradient_part, rtol=1e-4, atol=1e-6)


def test_extrapolation_continues_the_line_sample_by_sample():
    few, many = Timing((10.0, 20.0), (1.0, 1.0)), Timing((20.0, 40.0), (2.0, 2.0))
    result = extrapolate_timing(few, many, (5, 15), 25)
    assert result.cpu == (30.0, 60.0)
    assert result.record()["extrapolated_from_probes"] == [5, 15]


def test_measure_gives_every_procedure_its_samples_in_turn():
    called = []
    fast, slow = (lambda: called.append("fast")), (lambda: called.append("slow"))
    timings = measure(
        {"fast": fast, "slow": slow}, Effort(1e9, 2, 3), Progress(stream=io.StringIO())
    )
    assert {name: len(timing.cpu) for name, timing in timings.items()} == {"fast": 3, "slow": 3}
    assert called[-1] == "slow"
    assert called.count("fast") >= 3


def test_peak_memory_counts_what_is_alive_at_once():
    def run():
        first = torch.zeros(1000, dtype=torch.float64)
        second = first + 1
        del first
        return second + 1

    run()
    assert 16_000 <= peak_memory(run) < 17_000


@pytest.mark.parametrize(
    ("relation", "measured", "met"),
    [
        ("at least", 2.0, True),
        ("at least", 1.9, False),
        ("at most", 2.0, True),
        ("at most", 2.1, False),
        ("below", 1.9, True),
        ("below", 2.0, False),
    ],
)
def test_targets(relation, measured, met):
    assert Target("x", measured, relation, 2.0).met is met


def test_report_is_written_and_says_what_was_missed(tmp_path):
    timing = Timing((1.0, 2.0, 3.0), (1.0, 2.0, 3.0)).record()
    record = {
        "machine": {
            "cpu": "a processor",
            "simd": "wide",
            "threads": 1,
            "torch": "2",
            "backpack-for-pytorch": "1",
            "curvlinops-for-pytorch": "3",
            "date": "2024-01-01T00:00:00+00:00",
        },
        "quick": False,
        "tables": {
            "cmnist": {
                "domains": 2,
                "samples_per_domain": 25_000,
                "network": [392, 390, 390, 1],
                "rows": {"ERM": {**timing, "times_erm": 1.0}},
                "targets": [Target("a step", 1.7, "at most", 1.6).record()],
            }
        },
    }
    data, text = write_report(record, tmp_path)
    assert json.loads(data.read_text()) == record
    assert "| ERM | 2.00 [1.50, 2.50] | 1.00× | 3 |" in text.read_text()
    assert "- [ ] a step: 1.70×, to be at most 1.6×: **missed**" in text.read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bench.json", "bench.md"]


def test_unknown_table_is_named():
    assert table_names("head, cmnist") == ("head", "cmnist")
    with pytest.raises(Exception, match="expected one or more of head, growth, cmnist, engine"):
        table_names("heads")
