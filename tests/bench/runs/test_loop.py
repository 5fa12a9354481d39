"""The training loop against a plain PyTorch re-implementation of the protocol."""

import math

import pytest
import torch
from torch.nn import functional

from hessalign.bench.algorithms import (
    Batch,
    DivergedError,
    PenaltySchedule,
    Setting,
    find_algorithm,
    make_algorithm,
)
from hessalign.bench.models import make_coloured_mlp
from hessalign.bench.runs import FullBatch, LoopConfig, Minibatches, loop, train
from hessalign.bench.runs.irm import measure
from hessalign.bench.runs.loop import start_optimizers, update

SIZES = (7, 5)
SCHEDULE = PenaltySchedule(before=1.0, after=50.0, jump=1, rescale=True)


def make_case(seed=0):
    generator = torch.Generator().manual_seed(seed)
    count = sum(SIZES)
    grey = torch.rand(count, 9, generator=generator, dtype=torch.float64)
    grey[:, 4] = 0
    colour = torch.cat([torch.arange(2).repeat_interleave(n)[:n] for n in SIZES])
    y = torch.randint(2, (count,), generator=generator)
    domain = torch.arange(2).repeat_interleave(torch.tensor(SIZES))
    network = make_coloured_mlp(2, 9, 6, generator).double()
    x = torch.zeros(count, 2, 9, dtype=torch.float64)
    x[torch.arange(count), colour] = grey
    return network, Batch(x, y, domain)


def reference_penalty(kind, network, dense, y):
    """The released Colored MNIST penalty by autograd: sums over domains, target from mean loss."""
    parameters = list(network.head.parameters())

    def flat_grad(value):
        grads = torch.autograd.grad(value, parameters, create_graph=True)
        return torch.cat([g.flatten() for g in grads])

    losses = [
        functional.binary_cross_entropy_with_logits(network(x).squeeze(1), t.double())
        for x, t in zip(dense.split(SIZES), y.split(SIZES), strict=True)
    ]
    gradients = [flat_grad(loss) for loss in losses]
    mean_gradient = flat_grad(sum(losses) / len(losses))
    gradient_term = sum((g - mean_gradient).square().sum() for g in gradients)
    risk = sum(losses) / len(losses)
    if kind == "erm":
        return risk, None
    if kind == "gradient":
        return risk, gradient_term
    if kind == "hgp":
        products = [flat_grad(g.norm()) * g.norm() for g in gradients]
        target = flat_grad(mean_gradient.norm()) * mean_gradient.norm()
        return risk, gradient_term + sum((p - target).square().sum() for p in products)
    hessians = [torch.stack([flat_grad(entry) for entry in g]) for g in gradients]
    if kind == "diagonal":
        hessians = [h.diagonal() for h in hessians]
    mean = sum(hessians) / len(hessians)
    return risk, gradient_term + sum((h - mean).square().sum() for h in hessians)


def reference_training(kind, steps, l2, learning_rate):
    network, batch = make_case()
    dense = batch.x
    optimizer = torch.optim.Adam(network.parameters(), lr=learning_rate)
    for step in range(steps):
        risk, penalty = reference_penalty(kind, network, dense, batch.y)
        loss = risk + l2 * sum(p.square().sum() for p in network.parameters())
        if penalty is not None:
            weight = 50.0 if step >= 1 else 1.0
            loss = (loss + weight * penalty) / max(weight, 1.0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return network


def run(kind, options=None, prepare=lambda network, batch: None, report=None, **loop):
    """Train on the case as the Colored MNIST experiment does."""
    network, batch = make_case()
    prepare(network, batch)
    generator = torch.Generator().manual_seed(0)
    setting = Setting(lambda **_: network, 1, 2, "binary", 1, generator)
    options = {**find_algorithm(kind).released, **(options or {})}
    algorithm = make_algorithm(kind, options, setting)
    config = LoopConfig(
        **{"steps": 1, "learning_rate": 0.01, "loss": "binary", "schedule": SCHEDULE}
        | {"evaluate_every": 1, "evaluate_before": True}
        | loop
    )

    def evaluate(network):
        head, right = measure(network, batch)
        if head is None:
            return {"loss": float("nan")}
        accuracies = [float(part.mean()) for part in right]
        return {"accuracy": sum(accuracies) / 2, "loss": float(head.risk.mean())}

    records = train(
        algorithm, FullBatch(batch), evaluate, config, generator, report=report or (lambda r: None)
    )
    return network, batch, records


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("kind", ["erm", "gradient", "hgp", "diagonal", "full"])
def test_parameters_equal_the_reference(kind, steps):
    network, _, _ = run(kind, steps=steps, l2=0.001)
    expected = reference_training(kind, steps, l2=0.001, learning_rate=0.01)
    for ours, theirs in zip(network.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-10)


def accuracy(network, batch):
    with torch.no_grad():
        correct = (network(batch.x).squeeze(1) > 0).long() == batch.y
    return float(torch.stack([part.double().mean() for part in correct.split(SIZES)]).mean())


@pytest.mark.parametrize("before", [True, False])
def test_records_describe_the_network_before_or_after_the_update(before):
    untrained, batch = make_case()
    trained, _, (record,) = run("erm", learning_rate=0.5, evaluate_before=before)
    expected = accuracy(untrained if before else trained, batch)
    assert accuracy(untrained, batch) != accuracy(trained, batch)
    assert record.step == 0
    assert record.metrics["accuracy"] == pytest.approx(expected)


@pytest.mark.parametrize(("steps", "every", "expected"), [(5, 2, [0, 2, 4]), (6, 4, [0, 4, 5])])
def test_evaluates_at_multiples_and_at_the_last_step(steps, every, expected):
    seen = []
    _, _, records = run("erm", steps=steps, evaluate_every=every, report=seen.append)
    assert [record.step for record in records] == expected
    assert seen == records


def test_divergence_names_the_step():
    with pytest.raises(DivergedError, match=r"not finite at step 1\b.*Lower the learning rate"):
        run("full", steps=5, learning_rate=1e200)


def test_divergence_names_the_term():
    def prepare(network, batch):
        with torch.no_grad():
            network.head.weight.fill_(0.0)
            batch.x.mul_(1e100)

    with pytest.raises(DivergedError, match=r"step 0: hessian = (inf|nan)"):
        run("full", {"beta": 0}, prepare=prepare)


def test_a_bad_step_is_named_exactly_without_waiting_for_the_device_at_every_step():
    """As on an accelerator: what the first bad step had is kept there until somebody asks."""
    watch = loop._Watch(torch.device("cpu"))
    watch.waits = False
    good, bad = torch.tensor(1.0), torch.tensor(math.inf)
    watch.look({"risk": good, "loss": good}, 6)
    watch.check()
    for step, terms in ((7, {"risk": good, "loss": bad}), (8, {"risk": bad, "loss": bad})):
        watch.look(terms, step)
    with pytest.raises(DivergedError, match=r"not finite at step 7: loss = inf\. Lower"):
        watch.check()


@pytest.mark.parametrize("algorithm", ["full", "andmask", "mldg"])
def test_divergence_is_found_at_the_next_evaluation(algorithm, monkeypatch):
    """Where values are not read at every step, the error is the same but for when it comes."""
    whole = loop._Watch.__init__

    def elsewhere(self, device):
        whole(self, device)
        self.waits = False

    monkeypatch.setattr(loop._Watch, "__init__", elsewhere)
    monkeypatch.setattr("hessalign.bench.algorithms.kinds.reads_values", lambda z: False)
    with pytest.raises(DivergedError, match=r"The loss is not finite at step [012]: "):
        run(algorithm, steps=5, evaluate_every=5, learning_rate=1e200)


def test_the_gradient_is_clipped():
    """With plain averages Adam's first step has the length of the learning rate, clipped or not."""
    network, batch = make_case()
    setting = Setting(lambda **_: network, 1, 2, "binary", 1, torch.Generator())
    algorithm = make_algorithm("erm", {}, setting)
    config = LoopConfig(1, 0.1, "binary", clip=1e-3)
    from hessalign.bench.algorithms import Step

    optimizers = start_optimizers(algorithm, config)
    update(algorithm, Step(network, batch, 0, "binary"), optimizers, config)
    norm = torch.cat([p.grad.flatten() for p in network.parameters()]).norm()
    assert float(norm) == pytest.approx(1e-3, rel=1e-4)


def test_the_optimiser_starts_afresh_at_the_jump():
    """At the jump Adam forgets: its first step has the length of the learning rate again."""

    def travelled(reset):
        schedule = PenaltySchedule(1.0, 1.0, 2, reset=reset)
        before, _, _ = run("erm", steps=2, schedule=schedule, l2=0.3)
        after, _, _ = run("erm", steps=3, schedule=schedule, l2=0.3)
        return (after.head.weight - before.head.weight).detach().abs()

    assert torch.allclose(travelled(True), torch.full((1, 6), 0.01).double(), rtol=1e-3)
    assert not torch.allclose(travelled(False), torch.full((1, 6), 0.01).double(), rtol=1e-3)


def test_minibatches_draw_from_their_own_domain_and_can_be_put_back():
    x = [torch.arange(5.0).unsqueeze(1), 10 + torch.arange(3.0).unsqueeze(1)]
    y = [torch.zeros(5), torch.ones(3)]
    sampler = Minibatches(x, y, batch_size=4, seed=3)
    sampler.draw()
    position = sampler.state_dict()
    batch = sampler.draw()
    assert (batch.x[:4] < 5).all()
    assert (batch.x[4:] >= 10).all()
    assert batch.y.tolist() == [0.0] * 4 + [1.0] * 4
    other = Minibatches(x, y, batch_size=4, seed=9)
    other.load_state_dict(position)
    assert torch.equal(other.draw().x, batch.x)
    assert not torch.equal(other.draw().x, batch.x)


def test_minibatches_refuse_what_cannot_be_drawn():
    with pytest.raises(ValueError, match="batch size of 1 or more, got 0"):
        Minibatches([torch.ones(2, 1)], [torch.ones(2)], 0, seed=0)
    with pytest.raises(ValueError, match="domain 1 has none"):
        Minibatches([torch.ones(2, 1), torch.ones(0, 1)], [torch.ones(2), torch.ones(0)], 2, seed=0)
