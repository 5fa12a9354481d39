"""The training loop against a plain PyTorch re-implementation of the protocol."""

import pytest
import torch
from torch.nn import functional

from hessalign.algorithms import make_objective
from hessalign.models import make_coloured_images, make_coloured_mlp
from hessalign.training import DivergedError, PenaltySchedule
from hessalign.training.loop import Batch, LoopConfig, train

SIZES = (7, 5)
SCHEDULE = PenaltySchedule(before=1.0, after=50.0, jump=1)


def make_case(seed=0):
    generator = torch.Generator().manual_seed(seed)
    count = sum(SIZES)
    grey = torch.rand(count, 9, generator=generator, dtype=torch.float64)
    grey[:, 4] = 0
    colour = torch.cat([torch.arange(2).repeat_interleave(n)[:n] for n in SIZES])
    y = torch.randint(2, (count,), generator=generator)
    domain = torch.arange(2).repeat_interleave(torch.tensor(SIZES))
    network = make_coloured_mlp(2, 9, 6, generator).double()
    return network, Batch(make_coloured_images(grey, colour, 2), y, domain)


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
    dense = batch.x.dense()
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


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("kind", ["erm", "gradient", "hgp", "diagonal", "full"])
def test_parameters_equal_the_reference(kind, steps):
    network, batch = make_case()
    objective = make_objective(kind, {}, torch.Generator())
    config = LoopConfig(steps, 0.01, 0.001, SCHEDULE, 1, hessian_distance=False)
    train(network, batch, batch, objective, config)
    expected = reference_training(kind, steps, l2=0.001, learning_rate=0.01)
    for ours, theirs in zip(network.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-10)


def test_records_describe_the_network_before_the_update():
    network, batch = make_case()
    with torch.no_grad():
        correct = (network(batch.x).squeeze(1) > 0).long() == batch.y
    expected_train = torch.stack([part.double().mean() for part in correct.split(SIZES)]).mean()
    config = LoopConfig(1, 0.5, 0.0, SCHEDULE, 1, hessian_distance=True)
    (record,) = train(network, batch, batch, make_objective("erm", {}, torch.Generator()), config)
    assert record.step == 0
    assert record.train_accuracy == pytest.approx(float(expected_train))
    assert record.test_accuracy == pytest.approx(float(correct.double().mean()))
    assert record.hessian_distance > 0


@pytest.mark.parametrize(("steps", "every", "expected"), [(5, 2, [0, 2, 4]), (6, 4, [0, 4, 5])])
def test_evaluates_at_multiples_and_at_the_last_step(steps, every, expected):
    network, batch = make_case()
    config = LoopConfig(steps, 0.01, 0.0, SCHEDULE, every, hessian_distance=False)
    seen = []
    records = train(
        network, batch, batch, make_objective("erm", {}, torch.Generator()), config, seen.append
    )
    assert [record.step for record in records] == expected
    assert seen == records


def test_divergence_names_the_step():
    network, batch = make_case()
    config = LoopConfig(5, 1e200, 0.0, SCHEDULE, 1, hessian_distance=False)
    with pytest.raises(DivergedError, match=r"not finite at step 1\b.*Lower the learning rate"):
        train(network, batch, batch, make_objective("full", {}, torch.Generator()), config)


def test_divergence_names_the_term():
    network, batch = make_case()
    config = LoopConfig(1, 0.1, 0.0, SCHEDULE, 1, hessian_distance=False)
    with torch.no_grad():
        network.head.weight.fill_(0.0)
        batch.x.lit.mul_(1e100)
    with pytest.raises(DivergedError, match=r"step 0: hessian = (inf|nan)"):
        train(network, batch, batch, make_objective("full", {"beta": 0}, torch.Generator()), config)
