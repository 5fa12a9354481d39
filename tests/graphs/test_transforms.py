"""The penalty under torch's transforms: graphs, `torch.func`, export, tensors without values.

`torch.compile` cannot follow the type checks that are put around the library's functions in tests,
so what compiles runs in a process of its own, without them.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.graphs import problems
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import grad, jvp, vjp, vmap
from torch.utils._python_dispatch import TorchDispatchMode

import hessalign as ha

SIZES = (4, 6, 5)
ROOT = Path(__file__).parents[2]


def penalty_of(kind, loss, evaluation, sizes=SIZES):
    align = problems.make_alignment(kind, loss, evaluation)
    z, logits, y = problems.make_batch(loss, sizes)
    layout = ha.domain_layout(sizes)
    return (lambda z, logits: align(z, logits, y, layout).penalty), z, logits


GRID = [
    pytest.mark.pairwise,
    pytest.mark.parametrize("evaluation", problems.EVALUATIONS),
    pytest.mark.parametrize("loss", problems.LOSSES),
]


def over_grid(kinds):
    def decorate(test):
        for mark in (*GRID, pytest.mark.parametrize("kind", kinds)):
            test = mark(test)
        return test

    return decorate


EXACT = [kind for kind in problems.KINDS if kind != "sampled"]


@over_grid(EXACT)
def test_derivatives_by_torch_func(kind, loss, evaluation):
    function, z, logits = penalty_of(kind, loss, evaluation)
    expected = torch.autograd.grad(function(z, logits), (z, logits))
    inputs = z.detach(), logits.detach()
    value, pull = vjp(function, *inputs)
    for found in (grad(function, argnums=(0, 1))(*inputs), pull(torch.ones_like(value))):
        for ours, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-12)
    directions = [torch.randn_like(x) for x in inputs]
    _, slope = jvp(function, inputs, tuple(directions))
    wanted = sum((d * g).sum() for d, g in zip(directions, expected, strict=True))
    torch.testing.assert_close(slope, wanted, rtol=1e-8, atol=1e-12)


@over_grid(EXACT)
def test_an_ensemble_of_heads_by_vmap(kind, loss, evaluation):
    function, z, logits = penalty_of(kind, loss, evaluation)
    ensemble = torch.stack([logits.detach() * scale for scale in (1.0, 0.5, 2.0)])
    found = vmap(function, in_dims=(None, 0))(z.detach(), ensemble)
    expected = torch.stack([function(z.detach(), each) for each in ensemble])
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-13)
    slopes = vmap(grad(function, argnums=1), in_dims=(None, 0))(z.detach(), ensemble)
    assert slopes.shape == ensemble.shape
    assert bool(slopes.isfinite().all())


class Forbidden(TorchDispatchMode):
    """Refuses operations that make tensors of one type, and reads of values."""

    def __init__(self, dtype=None):
        super().__init__()
        self.dtype = dtype

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        assert func.overloadpacket.__name__ != "_local_scalar_dense", "a value was read"
        for each in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(each, torch.Tensor):
                assert each.dtype != self.dtype, f"{func} makes {self.dtype}"
        return result


def on_meta(kind, loss, evaluation, dtype=torch.float64):
    align = problems.make_alignment(kind, loss, evaluation)
    z, logits, y = (x.detach().to("meta") for x in problems.make_batch(loss, SIZES))
    y = y.to(dtype) if y.is_floating_point() else y
    z, logits = (x.to(dtype).requires_grad_() for x in (z, logits))
    layout = ha.domain_layout(SIZES, "meta")
    return align, (z, logits, y, layout)


@over_grid(problems.KINDS)
def test_where_there_are_no_values_to_read(kind, loss, evaluation):
    """The meta device refuses to meet the processor, and any look at a value."""
    align, inputs = on_meta(kind, loss, evaluation)
    penalty = align(*inputs).penalty
    slopes = torch.autograd.grad(penalty, inputs[:2])
    assert penalty.is_meta
    assert [slope.shape for slope in slopes] == [x.shape for x in inputs[:2]]


@pytest.mark.parametrize("kind", problems.KINDS)
def test_where_there_is_no_float64(kind, monkeypatch):
    """As on Apple's devices: float32 alone."""
    for module in ("domains", "linear", "gram", "products", "factors", "autograd"):
        name = f"hessalign.curvature.{module}.accumulation_dtype"
        monkeypatch.setattr(name, lambda device: torch.float32, raising=False)
    align, inputs = on_meta(kind, "cross_entropy", "auto", torch.float32)
    layout = inputs[3]
    layout.__dict__.clear()
    layout.__dict__.update(ids=torch.arange(3, device="meta"), sizes=SIZES, order=None)
    with Forbidden(torch.float64):
        penalty = align(*inputs).penalty
        torch.autograd.grad(penalty, inputs[:2])


@pytest.mark.parametrize("kind", EXACT)
def test_float32_alone_is_near(kind, monkeypatch):
    """What a device without float64 computes, far from alignment."""
    align = problems.make_alignment(kind, "cross_entropy", "auto")
    z, logits, y = problems.make_batch("cross_entropy", SIZES)
    exact = align(z, logits, y, SIZES).penalty
    for module in ("domains", "linear", "gram", "products", "factors"):
        name = f"hessalign.curvature.{module}.accumulation_dtype"
        monkeypatch.setattr(name, lambda device: torch.float32, raising=False)
    found = align(z.float(), logits.float(), y, SIZES).penalty
    torch.testing.assert_close(found.double(), exact, rtol=1e-4, atol=0)


def test_distances_without_values():
    z, logits, y = (x.detach().to("meta") for x in problems.make_batch("cross_entropy", SIZES))
    layout = ha.domain_layout(SIZES, "meta")
    assert ha.hessian_distance(z, logits, layout).is_meta
    found = ha.attribute_distances(z, logits, y, layout)
    assert all(each.is_meta for each in found.values())


@pytest.mark.parametrize("kind", problems.KINDS)
def test_fake_tensors(kind):
    with FakeTensorMode(allow_non_fake_inputs=True):
        align = problems.make_alignment(kind, "cross_entropy", "auto")
        z, logits, y = problems.make_batch("cross_entropy", SIZES)
        penalty = align(z, logits, y, ha.domain_layout(SIZES)).penalty
        torch.autograd.grad(penalty, (z, logits))
    made = ha.domain_layout(SIZES).weights.averaging
    assert type(made) is torch.Tensor, "constants of fakes are found by others"


@pytest.mark.parametrize("kind", EXACT)
def test_a_layout_reads_nothing_after_the_first_call_elsewhere(kind):
    """With a layout and without checks of values, nothing waits for a device."""
    align = problems.make_alignment(kind, "cross_entropy", "auto", checks=False)
    z, logits, y = problems.make_batch("cross_entropy", SIZES)
    layout = ha.domain_layout(SIZES)
    with Forbidden():
        torch.autograd.grad(align(z, logits, y, layout).penalty, (z, logits))


METRICS = ("relative", "whitened", "exact")


@pytest.mark.parametrize("features", [2, 30])
@pytest.mark.parametrize("metric", METRICS)
def test_metrics_under_transforms(metric, features):
    align = ha.HessianAlignment(1.0, 1.0, metric=metric)
    z, logits, y = problems.make_batch("cross_entropy", SIZES, features)
    expected = torch.autograd.grad(align(z, logits, y, SIZES).penalty, (z, logits))
    function = grad(lambda z, logits: align(z, logits, y, SIZES).penalty, argnums=(0, 1))
    pairs = torch.stack([z.detach(), 2 * z.detach()]), torch.stack([logits.detach()] * 2)
    for ours, theirs in zip(vmap(function)(*pairs), expected, strict=True):
        torch.testing.assert_close(ours[0], theirs, rtol=1e-8, atol=1e-12)
    inputs = [x.detach().to("meta") for x in (z, logits, y)]
    with Forbidden():
        assert align(*inputs, ha.domain_layout(SIZES, "meta")).penalty.is_meta


def test_an_ensemble_of_heads_class_by_class():
    align = ha.HessianAlignment(1.0, 1.0, conditional=True)
    z, logits, y = (x.detach() for x in problems.make_batch("cross_entropy", SIZES))
    ensemble = torch.stack([logits, 2 * logits])
    found = vmap(lambda each: align(z, each, y, SIZES).penalty)(ensemble)
    expected = torch.stack([align(z, each, y, SIZES).penalty for each in ensemble])
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-13)


def test_what_needs_values_is_named():
    z, logits, y = (x.detach().to("meta") for x in problems.make_batch("cross_entropy", SIZES))
    layout = ha.domain_layout(SIZES, "meta")
    with pytest.raises(ValueError, match="conditional on the class"):
        ha.HessianAlignment(1.0, 1.0, conditional=True)(z, logits, y, layout)
    with pytest.raises(ValueError, match='Expected norm="fro"'):
        ha.hessian_distance(z, logits, layout, "spectral")


def test_sizes_are_checked_under_transforms():
    align = ha.HessianAlignment(1.0, 1.0)
    z, logits, y = (x.detach() for x in problems.make_batch("cross_entropy", SIZES))
    with pytest.raises(ValueError, match=r"got sizes \(4, 6\), which are 10"):
        grad(lambda z: align(z, logits, y, (4, 6)).penalty)(z)


def test_ids_cannot_be_part_of_a_graph():
    align = ha.HessianAlignment(1.0, 1.0)
    z, logits, y = problems.make_batch("cross_entropy", SIZES)
    ids = torch.arange(3).repeat_interleave(torch.tensor(SIZES))
    with pytest.raises(ha.alignment.hessian_alignment.InputError, match="domain_layout"):
        grad(lambda z: align(z, logits, y, ids).penalty)(z.detach())


def compiled(*arguments, limit=280):
    """Run `tests.graphs.problems` in a process without type checks around functions."""
    command = [sys.executable, "-m", "tests.graphs.problems", *arguments]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=limit, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


def check_graphs(found):
    for each in found:
        assert each["error"] <= 1e-9, each
        assert each["graphs"] <= 2, each


@pytest.mark.slow
@pytest.mark.parametrize("kind", [str(kind) for kind in problems.KINDS])
def test_graphs_of_every_loss_and_evaluation(kind):
    """Compiled as one graph, then as one with a dynamic batch size, for any sizes of domains."""
    check_graphs(compiled("dynamic", kind))


def test_a_graph():
    check_graphs(compiled("dynamic", "full", "cross_entropy", "dual"))


def test_what_a_graph_cannot_have_is_named():
    found = compiled("refused")
    assert "terms that are conditional on the class" in found["conditional"]
    assert "Expected a linear head in a graph" in found["head"]
    assert "got sizes (25, 25), which are 50" in found["sizes"]
    assert 'Expected norm="fro" in a graph' in found["spectral"]
    assert found["one domain"] == "0.0"
    assert found["not convex"] == "nan"


@pytest.mark.slow
def test_graphs_with_generated_code_and_export():
    found = compiled("generated")
    assert found["error"] <= 1e-6
    assert found["exported"] <= 1e-9
    for far, near in found["branches"].values():  # near it, slopes are rounded to float32
        assert far <= 1e-5
        assert near <= 5e-3
