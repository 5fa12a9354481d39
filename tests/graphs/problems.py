"""Penalties of every kind, loss and evaluation on small batches, and what compiles them.

`python -m tests.graphs.problems dynamic KIND [LOSS EVALUATION]` prints a JSON list: how far graphs
are from eager mode, and how many there are after five batches of different shapes. `refused` prints
what is said of what a graph cannot have.
"""

import itertools
import json
import sys

import torch

import hessalign as ha

KINDS = ("full", "diagonal", "product", "expected", "sampled", None)
OUTPUTS = {
    "cross_entropy": 4,
    "binary": 1,
    "squared": 2,
    "tanh": 2,
    "multilabel": 3,
    "weighted": 4,
    "own": 3,
}
LOSSES = tuple(OUTPUTS)
EVALUATIONS = ("auto", "primal", "dual")
SHAPES = ((25, 25, 25), (27, 27, 27), (24, 26, 29), (29, 29, 29), (23, 28, 25))


def poisson(logits, y):
    return logits.exp().sum() - y * logits.sum()


def make_alignment(kind, loss, evaluation, **options):
    if loss == "tanh":
        options |= {"activation": "tanh"}
        loss = "squared"
    elif loss == "own":
        loss = poisson
    elif loss == "weighted":
        weight = torch.tensor([1.0, 2.0, 0.5, 1.5])
        loss = ha.CrossEntropy(class_weight=weight, label_smoothing=0.1)
    return ha.HessianAlignment(1.0, 1.0, kind, loss=loss, evaluation=evaluation, **options)


def make_batch(loss, sizes, features=6, dtype=torch.float64):
    generator = torch.Generator().manual_seed(sum(sizes))
    samples, outputs = sum(sizes), OUTPUTS[loss]
    z = torch.randn(samples, features, generator=generator).to(dtype)
    logits = torch.randn(samples, outputs, generator=generator).to(dtype)
    if loss in {"cross_entropy", "weighted"}:
        y = torch.randint(outputs, (samples,), generator=generator)
    elif loss == "binary":
        y = torch.randint(2, (samples,), generator=generator)
    elif loss == "own":
        y = torch.rand(samples, generator=generator).to(dtype)
    else:
        y = torch.rand(samples, outputs, generator=generator).to(dtype)
    return z.requires_grad_(), logits.requires_grad_(), y


def difference(found, expected):
    return max(
        float((a - b).norm() / b.norm().clamp(min=1e-30))
        for a, b in zip(found, expected, strict=True)
    )


def values_of(function, inputs):
    value = function(*inputs)
    return (value.detach(), *torch.autograd.grad(value, inputs[:2]))


def compile_dynamically(kind, loss, evaluation):
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    align = make_alignment(kind, loss, evaluation)

    def function(z, logits, y, layout):
        return align(z, logits, y, layout).penalty

    graph = torch.compile(function, fullgraph=True, backend="aot_eager")
    error = 0.0
    for sizes in SHAPES:
        inputs = (*make_batch(loss, sizes), ha.domain_layout(sizes))
        found = values_of(graph, inputs)
        if kind != "sampled":
            error = max(error, difference(found, values_of(function, inputs)))
    graphs = counters["stats"]["unique_graphs"]
    return {
        "kind": str(kind),
        "loss": loss,
        "evaluation": evaluation,
        "error": error,
        "graphs": graphs,
    }


class Penalty(torch.nn.Module):
    def __init__(self, align, layout):
        super().__init__()
        self.align, self.layout = align, layout

    def forward(self, z, logits, y):
        return self.align(z, logits, y, self.layout).penalty


def generate_code():
    """One graph of torch's own code generator in float32, and one exported program."""
    align, sizes = ha.HessianAlignment(1.0, 1.0), (32, 32, 32)
    module = Penalty(align, ha.domain_layout(sizes))
    inputs = make_batch("cross_entropy", sizes, 300, torch.float32)
    graph = torch.compile(module, fullgraph=True)
    error = difference(values_of(graph, inputs), values_of(module, inputs))
    exported = torch.export.export(module, tuple(x.detach() for x in inputs)).module()
    found = [exported(*(x.detach() for x in inputs))]
    return {
        "error": error,
        "exported": difference(found, [module(*inputs).detach()]),
        "branches": {str(kind): branches(kind) for kind in ("full", "product", None)},
    }


def branches(kind):
    """Value and slopes of one graph far from alignment and near it, against float64."""
    sizes = (20, 20)
    module = Penalty(ha.HessianAlignment(1.0, 1.0, kind), ha.domain_layout(sizes))
    graph = torch.compile(module, fullgraph=True)
    z, logits, y = make_batch("cross_entropy", sizes, 400, torch.float32)
    near = [
        torch.cat([x[:20], x[:20] + 1e-4 * x[20:]]).detach().requires_grad_() for x in (z, logits)
    ]
    errors = []
    for inputs in ((z, logits, y), (*near, y[:20].repeat(2))):
        wide = [x.detach().double().requires_grad_() for x in inputs[:2]]
        found, expected = values_of(graph, inputs), values_of(module, (*wide, inputs[2]))
        errors.append(difference([x.double() for x in found], expected))
    return errors


def refused():
    """What a graph gives, or what is said instead, by name."""
    sizes = SHAPES[0]
    z, logits, y = (x.detach() for x in make_batch("cross_entropy", sizes))
    head, plain = torch.nn.Linear(6, 4).double(), ha.HessianAlignment(1.0, 1.0)
    by_class = ha.HessianAlignment(1.0, 1.0, conditional=True)
    bent = ha.HessianAlignment(1.0, 1.0, loss="squared", activation="tanh", metric="exact")
    calls = {
        "conditional": lambda: by_class(z, logits, y, sizes).penalty,
        "head": lambda: plain(z, logits, y, sizes, head=head).penalty,
        "sizes": lambda: plain(z, logits, y, sizes[:2]).penalty,
        "spectral": lambda: ha.hessian_distance(z, logits, sizes, "spectral").sum(),
        "one domain": lambda: plain(z, logits, y, (sum(sizes),)).penalty,
        "not convex": lambda: bent(z, logits.abs(), -torch.ones_like(logits), sizes).penalty,
    }
    said = {}
    for name, call in calls.items():
        try:
            said[name] = str(torch.compile(call, fullgraph=True, backend="eager")().item())
        except Exception as error:
            said[name] = str(error)
    return said


def main(what, *chosen):
    torch.set_num_threads(1)
    if what == "refused":
        return refused()
    if what == "generated":
        return generate_code()
    kind = None if chosen[0] == "None" else chosen[0]
    pairs = [chosen[1:]] if len(chosen) == 3 else itertools.product(LOSSES, EVALUATIONS)
    return [compile_dynamically(kind, *pair) for pair in pairs]


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(*sys.argv[1:])) + "\n")
