"""The benchmark of the marginal cost compares equals, counts exactly, and writes its page."""

import json

import pytest
import torch
from benchmarks import marginal as benchmark
from benchmarks.baselines import cma_penalty
from benchmarks.cases import Case
from benchmarks.counting import Counts, count
from benchmarks.timing import Timing
from torch.nn.functional import linear

import hessalign as ha
from hessalign.report.progress import Progress

TINY = Case(features=6, classes=4, domains=3, samples=5)


@pytest.mark.parametrize("kind", benchmark.PLAIN_KINDS)
def test_plain_forms_equal_ours_in_value_and_gradient(kind):
    batch = TINY.batch(torch.float64)
    inputs = batch.z, batch.logits
    simple = benchmark.plain(batch, kind)(*inputs, batch.y)
    for domain in (batch.domain, ha.domain_layout(batch.sizes)):
        expected = benchmark.ours(kind, domain)(*inputs, batch.y)
        torch.testing.assert_close(simple, expected, rtol=1e-9, atol=0)
        for found, slope in zip(
            torch.autograd.grad(simple, inputs, retain_graph=True),
            torch.autograd.grad(expected, inputs),
            strict=True,
        ):
            torch.testing.assert_close(found, slope, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-9)])
def test_cma_is_the_full_dispersion_without_bias_over_the_classes_squared(dtype, tolerance):
    batch = TINY.batch(dtype)
    leaves = batch.z, batch.weight
    align = ha.HessianAlignment(1.0, 0.0, "full", bias=False)
    penalty = align(batch.z, linear(*leaves), batch.y, batch.domain).penalty / TINY.classes**2
    found = cma_penalty(batch)
    torch.testing.assert_close(found, penalty, rtol=tolerance, atol=0)
    for ours, theirs in zip(
        torch.autograd.grad(penalty, leaves), torch.autograd.grad(found, leaves), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=tolerance * float(theirs.abs().max()))


def test_the_counter_counts_a_known_function():
    x = torch.ones(2, 3, requires_grad=True)

    def forward():
        double = x.double().view(3, 2).T  # one copy; views do not count
        product = double @ double.T  # of a dimension of 3
        if product.sum().item() > 0:  # a sum that is detached, and a read
            product = product.float()
        return product.sum()

    # Forward: copy, product, sum, copy, sum. Backward: the slope 1, a copy to float64, two
    # products and their sum, a copy to float32. Expanding and transposing are views.
    assert count(forward, [x], 3) == Counts(
        forward=5, backward=6, float64=3 + 4, large=1 + 2, reads=1
    )
    assert count(forward, [x], 4).large == 0


def test_counts_are_of_the_procedure_named():
    found = benchmark.counts(TINY)
    assert found["full + gradient, layout, on another device"].reads == 0
    assert found["full + gradient, ids"].reads > 0
    assert found["full + gradient, plain"].float64 == 0
    assert found[benchmark.FLOOR].kernels < found["full + gradient, plain"].kernels


def test_marginal_costs_are_differences_of_low_times(monkeypatch):
    times = {"cross-entropy alone": 1.0, "full + gradient, plain": 3.0, "full + gradient, ids": 4.0}
    times |= {"gradient, ids": 1.5, benchmark.CMA: 10.0}
    runs = dict.fromkeys(times, lambda: None)
    monkeypatch.setattr(benchmark, "procedures", lambda _: dict(runs))
    monkeypatch.setattr(
        benchmark,
        "measure",
        lambda named, *_: {
            name: Timing((9.0 * times[name], times[name]), (1.0, 1.0)) for name in named
        },
    )
    case = Case(2, 2, 3, 3 * benchmark.CMA_SAMPLES)
    rows = benchmark.measure_head(case, None, cma=True, progress=Progress())
    assert {name: row["marginal_ms"] for name, row in rows.items()} == {
        "cross-entropy alone": 0.0,
        "full + gradient, plain": 2.0,
        "full + gradient, ids": 3.0,
        "gradient, ids": 0.5,
        benchmark.CMA: 90.0,
    }
    assert rows["full + gradient, ids"]["marginal_of_plain"] == 1.5
    assert rows["gradient, ids"]["marginal_of_plain"] is None


def test_the_page_is_written(monkeypatch, capsys, tmp_path, unchecked):
    compiled = []

    def compile_nothing(function, *, fullgraph):
        assert fullgraph
        compiled.append(function)
        return function

    monkeypatch.setattr(torch, "compile", compile_nothing)  # tests/graphs has the graphs
    assert benchmark.main(["--quick", "--output", str(tmp_path)]) == 0
    assert len(compiled) == 2 * len(benchmark.PLAIN_KINDS)
    text = (tmp_path / "marginal.md").read_text()
    assert capsys.readouterr().out == text
    record = json.loads((tmp_path / "marginal.json").read_text())
    (head, rows), *others = record["heads"].items()
    assert not others
    assert len(rows) == 1 + 2 * len(benchmark.KINDS) + 3 * len(benchmark.PLAIN_KINDS) + 1
    for part in (f"## {head}", "Quick run", "**extrapolated**", f"| {benchmark.CMA}\\* |"):
        assert part in text
    assert text.count("- [") == len(record["targets"]) == 12
    assert len(record["counts"]) == 7
    assert record["machine"]["torch"] == torch.__version__
