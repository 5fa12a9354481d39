"""The methods' formulas, written out naively: loops over samples, domains and pairs."""

import copy
import dataclasses
from itertools import combinations
from statistics import NormalDist

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from hessalign._numbers import check_number
from hessalign.bench.algorithms import (
    MAIN,
    Batch,
    Setting,
    Step,
    auxiliary,
    make_algorithm,
    pairs,
)
from hessalign.bench.algorithms.adversaries import _class_mean
from hessalign.bench.algorithms.augmentations import (
    _muting_mask,
    _randomize_content,
    _randomize_style,
    _RscConfig,
)
from hessalign.bench.algorithms.auxiliary import draw_beta
from hessalign.bench.algorithms.features import _GAMMAS, _coral_penalty, squared_discrepancy
from hessalign.bench.algorithms.gradients import _first_adam_step, _meta_split, _smooth_mask
from hessalign.bench.algorithms.risks import _quantile
from hessalign.bench.models import Network
from hessalign.bench.runs.loop import LoopConfig, start_optimizers, update
from hessalign.curvature.domains import make_domains

SIZES = (5, 4, 6)
DOMAIN = torch.arange(3).repeat_interleave(torch.tensor(SIZES))
AVERAGING = make_domains(DOMAIN).weights.averaging


def features(seed=0):
    return torch.randn(15, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def make_setting():
    def make_network(*, extra_channels=0, head_factor=1):
        generator = torch.Generator().manual_seed(3)
        body = nn.Sequential(nn.Linear(3 + extra_channels, 4), nn.Tanh())
        network = Network(body, nn.Linear(4 * head_factor, 2)).double()
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
        return network

    generator = torch.Generator().manual_seed(7)
    return Setting(make_network, 2, 3, "cross_entropy", 5, generator, input_shape=(3,))


def make_step(algorithm, number=0):
    y = torch.arange(15) * 7 % 3 % 2
    return Step(algorithm.network, Batch(features(), y, DOMAIN), number, "cross_entropy")


def risks(network, batch):
    return [functional.cross_entropy(network(part.x), part.y) for part in batch.parts]


def flat(tensors):
    return torch.cat([each.flatten() for each in tensors])


# --- objectives ---------------------------------------------------------------------------------


@pytest.mark.parametrize("fidelity", ["paper", "domainbed"])
def test_coral_is_the_mean_over_pairs(fidelity):
    parts = features().split(SIZES)
    expected = 0.0
    for a, b in combinations(parts, 2):
        covariances = ((torch.cov(a.T) - torch.cov(b.T)) ** 2).sum()
        if fidelity == "paper":
            expected += covariances / (4 * 3**2) / 3
        else:
            expected += (((a.mean(0) - b.mean(0)) ** 2).mean() + covariances / 9) / 3
    torch.testing.assert_close(_coral_penalty(parts, fidelity), expected)


def test_mmd_is_the_mean_over_pairs():
    parts = features().split(SIZES)

    def mean_kernel(a, b):
        squares = ((a[:, None] - b[None]) ** 2).sum(-1)
        return sum(torch.exp(-gamma * squares) for gamma in _GAMMAS).mean()

    expected = sum(
        mean_kernel(a, a) + mean_kernel(b, b) - 2 * mean_kernel(a, b)
        for a, b in combinations(parts, 2)
    )
    torch.testing.assert_close(squared_discrepancy(features(), AVERAGING), expected / 3)


def test_mmd_keeps_its_digits_far_from_the_origin():
    near, far = features(), features() + 1e4
    torch.testing.assert_close(
        squared_discrepancy(far, AVERAGING),
        squared_discrepancy(near, AVERAGING),
        rtol=1e-6,
        atol=0,
    )


def test_mmd_in_parts_is_the_same(monkeypatch):
    def value_and_slope():
        z = features().requires_grad_()
        penalty = squared_discrepancy(z, AVERAGING)
        return penalty.detach(), torch.autograd.grad(penalty, z)[0]

    whole = value_and_slope()
    monkeypatch.setattr(auxiliary, "_KEPT_ENTRIES", 40)
    torch.testing.assert_close(value_and_slope(), whole)


@pytest.mark.parametrize("alpha", [0.05, 0.5, 0.99])
def test_the_quantile_is_that_of_the_smoothed_risks(alpha):
    risks = torch.tensor([0.3, 1.1, 0.7, 0.4], dtype=torch.float64, requires_grad=True)
    for fidelity in ("paper", "domainbed"):
        with torch.no_grad():
            q, width = _quantile(risks, alpha, fidelity), 1.06 * 4**-0.2 * risks.std()
        below = [NormalDist(risk, float(width)).cdf(float(q)) for risk in risks.tolist()]
        assert np.mean(below) == pytest.approx(alpha, abs=1e-9)
    assert torch.autograd.gradcheck(lambda r: _quantile(r, alpha), risks)


def test_equal_risks_have_a_quantile_with_a_slope():
    risks = torch.full((3,), 0.7, requires_grad=True)
    q = _quantile(risks, 0.9)
    (slope,) = torch.autograd.grad(q, risks)
    assert float(q.detach()) == pytest.approx(0.7)
    torch.testing.assert_close(slope, torch.full((3,), 1 / 3))


@pytest.mark.parametrize("name", ["cad", "condcad"])
def test_the_bottleneck_in_parts_is_the_same(name, monkeypatch):
    def value_and_slope():
        algorithm = make_algorithm(name, {}, make_setting())
        penalty = algorithm.terms(make_step(algorithm)).penalty
        return penalty.detach(), torch.autograd.grad(
            penalty, algorithm.network.featurizer[0].weight
        )

    whole = value_and_slope()
    monkeypatch.setattr(auxiliary, "_KEPT_ENTRIES", 40)
    torch.testing.assert_close(value_and_slope(), whole)


def test_the_contrastive_loss_is_the_same_in_parts(monkeypatch):
    torch.manual_seed(0)
    z, y = torch.randn(9, 3, dtype=torch.float64, requires_grad=True), torch.arange(9) % 4

    def value_and_slope():
        loss = pairs._contrastive_loss(z, y)
        return loss.detach(), torch.autograd.grad(loss, z)[0]

    whole = value_and_slope()
    monkeypatch.setattr(auxiliary, "_KEPT_ENTRIES", 20)
    torch.testing.assert_close(value_and_slope(), whole)


def test_group_weights_multiply_and_add_up():
    algorithm = make_algorithm("groupdro", {"eta": 0.7}, make_setting())
    weights = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    algorithm.weights, step = weights, make_step(algorithm)
    product = weights * torch.exp(0.7 * torch.stack(risks(algorithm.network, step.batch)).detach())
    algorithm.terms(step)
    torch.testing.assert_close(algorithm.weights, product / product.sum())


def test_group_weights_are_updated_before_they_are_used():
    algorithm = make_algorithm("groupdro", {"eta": 2.0}, make_setting())
    step = make_step(algorithm)
    each = torch.stack(risks(algorithm.network, step.batch))
    weights = torch.exp(2 * each) / torch.exp(2 * each).sum()
    torch.testing.assert_close(algorithm.terms(step).risk, weights.detach() @ each)


@pytest.mark.parametrize(("fidelity", "scale"), [("paper", 1), ("domainbed", 3)])
def test_iga_is_the_trace_of_the_covariance(fidelity, scale):
    algorithm = make_algorithm("iga", {"fidelity": fidelity}, make_setting())
    step, parameters = make_step(algorithm), list(algorithm.network.parameters())
    each = torch.stack([
        flat(torch.autograd.grad(risk, parameters, create_graph=True))
        for risk in risks(algorithm.network, step.batch)
    ])  # fmt: skip
    expected = scale * each.var(0, correction=0).sum()
    penalty = algorithm.terms(step).penalty
    torch.testing.assert_close(penalty, expected)
    torch.testing.assert_close(
        flat(torch.autograd.grad(penalty, parameters)),
        flat(torch.autograd.grad(expected, parameters)),
    )


def test_mixup_mixes_each_domain_with_the_next():
    algorithm = make_algorithm("mixup", {"fidelity": "domainbed"}, make_setting())
    generator, batch = torch.Generator().manual_seed(7), make_step(algorithm).batch
    parts, expected = batch.parts, 0.0
    order = torch.randperm(3, generator=generator).tolist()
    for i, j in zip(order, order[1:] + order[:1], strict=True):
        share = draw_beta(0.2, generator)
        n = min(SIZES[i], SIZES[j])
        logits = algorithm.network(share * parts[i].x[:n] + (1 - share) * parts[j].x[:n])
        expected += share * functional.cross_entropy(logits, parts[i].y[:n]) / 3
        expected += (1 - share) * functional.cross_entropy(logits, parts[j].y[:n]) / 3
    torch.testing.assert_close(algorithm.terms(make_step(algorithm)).risk, expected)


def test_shares_follow_the_beta_distribution():
    generator = torch.Generator().manual_seed(0)
    shares = np.array([draw_beta(0.5, generator) for _ in range(4000)])
    assert abs(shares.mean() - 0.5) < 0.02
    assert abs(shares.var() - 1 / (4 * (2 * 0.5 + 1))) < 0.01


def test_rsc_mutes_by_percentiles():
    torch.manual_seed(1)
    head, z = nn.Linear(6, 3).double(), torch.randn(8, 6, dtype=torch.float64)
    y = torch.arange(8) % 3
    config = _RscConfig(0.4, 0.25)
    gradient = head.weight.detach()[y]
    keep = (gradient.numpy() < np.percentile(gradient, 60, axis=1)[:, None]).astype(float)
    with torch.no_grad():
        before = head(z).softmax(1)[range(8), y]
        after = head(z * torch.from_numpy(keep)).softmax(1)[range(8), y]
    fall = (before - after).numpy()
    spared = (fall < np.percentile(fall, 75)).astype(float)
    expected = np.maximum(keep, spared[:, None])
    np.testing.assert_array_equal(_muting_mask(head, z, y, config).numpy(), expected)


def test_rsc_treats_one_logit_as_two_classes():
    torch.manual_seed(1)
    one, z = nn.Linear(6, 1).double(), torch.randn(9, 6, dtype=torch.float64)
    two = nn.Linear(6, 2).double()
    with torch.no_grad():
        two.weight.copy_(torch.cat([-one.weight, one.weight]) / 2)
        two.bias.copy_(torch.cat([-one.bias, one.bias]) / 2)
    y = torch.arange(9) % 2
    masks = [_muting_mask(head, z, y, _RscConfig()) for head in (one, two)]
    assert torch.equal(*masks)


def test_mtl_appends_the_moving_average_of_mean_features():
    algorithm = make_algorithm("mtl", {"ema": 0.75}, make_setting())
    step = make_step(algorithm)
    base = algorithm.network.featurizer.featurizer
    algorithm.average = algorithm.average.double()
    past = None
    for seed in range(2):
        batch = Batch(features(seed), step.batch.y, DOMAIN)
        expected = 0.0
        means = [base(part.x).mean(0) for part in batch.parts]
        past = means if past is None else [
            0.75 * new + 0.25 * old for new, old in zip(means, past, strict=True)
        ]  # fmt: skip
        for part, mean in zip(batch.parts, past, strict=True):
            z = base(part.x)
            logits = algorithm.network.head(torch.cat([z, mean.expand_as(z)], 1))
            expected += functional.cross_entropy(logits, part.y) / 3
        terms = algorithm.terms(Step(algorithm.network, batch, seed, "cross_entropy"))
        torch.testing.assert_close(terms.risk, expected)


def test_mtl_predicts_with_the_mean_of_the_batch():
    network = make_algorithm("mtl", {}, make_setting()).network
    x = features()
    alone, together = network(x[:1]), network(x)[:1]
    assert not torch.allclose(alone, together)
    z = network.features(x)
    torch.testing.assert_close(z[:, 4:], z[:, :4].mean(0).expand(15, 4))


def test_arm_gives_each_domain_its_own_context():
    algorithm = make_algorithm("arm", {}, make_setting())
    algorithm.double()
    step = make_step(algorithm)
    body = algorithm.network.featurizer
    expected = 0.0
    for part in step.batch.parts:
        context = body.context(part.x).mean(0).expand(len(part.x), 1)
        logits = algorithm.network.head(body.featurizer(torch.cat([part.x, context], 1)))
        expected += functional.cross_entropy(logits, part.y) / 3
    torch.testing.assert_close(algorithm.terms(step).risk, expected)


@pytest.mark.parametrize(("batch_size", "parts"), [(5, (5, 5, 5)), (4, (15,)), (None, (15,))])
def test_domainbeds_arm_predicts_in_parts_of_a_training_batch(batch_size, parts):
    """Each part has a context of its own, if the parts are all equal; else the batch is one."""
    x = features()
    by_fidelity = {}
    for fidelity in ("paper", "domainbed"):
        setting = dataclasses.replace(make_setting(), batch_size=batch_size)
        network = make_algorithm("arm", {"fidelity": fidelity}, setting).network.eval()
        body = network.featurizer
        by_fidelity[fidelity] = network(x)
        sizes = parts if fidelity == "domainbed" else (15,)
        contexts = [each.mean(0).expand_as(each) for each in body.context(x).split(sizes)]
        z = body.featurizer(torch.cat([x, torch.cat(contexts)], 1))
        torch.testing.assert_close(by_fidelity[fidelity], network.head(z))
    same = torch.allclose(by_fidelity["paper"], by_fidelity["domainbed"])
    assert same == (len(parts) == 1)


def test_arm_asks_for_the_shape_of_the_inputs():
    setting = make_setting()
    bare = Setting(setting.make_network, 2, 3, "cross_entropy", 5, setting.generator)
    with pytest.raises(ValueError, match=r"shape of the inputs.*input_shape="):
        make_algorithm("arm", {}, bare)


# --- gradient rules -----------------------------------------------------------------------------

GRADIENTS = torch.tensor([[1.0, 1.0, -1.0, 0.0, 2.0], [2.0, -1.0, -3.0, 1.0, 2.0],
                          [3.0, 2.0, -2.0, 2.0, 2.0]])  # fmt: skip


@pytest.mark.parametrize(
    ("tau", "fidelity", "expected"),
    [
        (1.0, "paper", [2.0, 0.0, -2.0, 0.0, 2.0]),
        (0.5, "paper", [2.0, 0.0, -2.0, 1.0, 2.0]),
        (0.0, "paper", [2.0, 2 / 3, -2.0, 1.0, 2.0]),
        (1.0, "domainbed", [10 / 3, 0.0, -10 / 3, 0.0, 10 / 3]),
    ],
)
def test_and_mask_keeps_agreement(tau, fidelity, expected):
    rule = make_algorithm("andmask", {"tau": tau, "fidelity": fidelity}, make_setting())
    torch.testing.assert_close(rule.combine([GRADIENTS])[0], torch.tensor(expected))


def test_sand_mask_is_the_formula():
    agreement = np.abs(np.sign(GRADIENTS.numpy()).mean(0))
    variance = GRADIENTS.numpy().var(0, ddof=1)
    with np.errstate(divide="ignore"):
        mask = np.maximum(0, np.tanh(0.3 / variance * (agreement - 0.5)))
    np.testing.assert_allclose(_smooth_mask(GRADIENTS, 0.5, 0.3).numpy(), mask, rtol=1e-6)
    rule = make_algorithm("sandmask", {"tau": 0.5, "k": 0.3}, make_setting())
    expected = mask * GRADIENTS.numpy().mean(0) / (mask.mean() + 1e-10)
    np.testing.assert_allclose(rule.combine([GRADIENTS])[0].numpy(), expected, rtol=1e-6)


@pytest.mark.parametrize("name", ["andmask", "sandmask"])
def test_one_domain_is_plain_descent(name):
    rule = make_algorithm(name, {}, make_setting())
    torch.testing.assert_close(rule.combine([GRADIENTS[:1]])[0], GRADIENTS[0])


# --- step owners --------------------------------------------------------------------------------


def take_step(algorithm, number=0, learning_rate=0.01):
    config = LoopConfig(5, learning_rate, "cross_entropy")
    optimizers = start_optimizers(algorithm, config)
    return update(algorithm, make_step(algorithm, number), optimizers, config), optimizers


def test_fish_follows_the_inner_steps_half_the_way():
    algorithm = make_algorithm("fish", {"fidelity": "domainbed"}, make_setting())
    clone = copy.deepcopy(algorithm.network)
    before = flat(clone.parameters()).detach()
    optimizer = torch.optim.Adam(clone.parameters(), lr=0.01)
    for part in make_step(algorithm).batch.parts:
        optimizer.zero_grad()
        functional.cross_entropy(clone(part.x), part.y).backward()
        optimizer.step()
    take_step(algorithm)
    expected = (before + flat(clone.parameters())) / 2
    torch.testing.assert_close(flat(algorithm.network.parameters()), expected)


def test_mldg_differentiates_through_the_inner_step():
    options = {"beta": 0.7, "inner_lr": 0.3, "meta_test_domains": 1}
    algorithm = make_algorithm("mldg", options, make_setting())
    order = torch.randperm(3, generator=torch.Generator().manual_seed(7)).tolist()
    network, batch = algorithm.network, make_step(algorithm).batch
    parameters = dict(copy.deepcopy(network).named_parameters())

    def risk(values, index):
        part = batch.parts[index]
        logits = torch.func.functional_call(network, values, (part.x,))
        return functional.cross_entropy(logits, part.y)

    train = (risk(parameters, order[0]) + risk(parameters, order[1])) / 2
    slopes = torch.autograd.grad(train, list(parameters.values()), create_graph=True)
    moved = {k: p - 0.3 * g for (k, p), g in zip(parameters.items(), slopes, strict=True)}
    expected = torch.autograd.grad(train + 0.7 * risk(moved, order[2]), list(parameters.values()))
    take_step(algorithm)
    torch.testing.assert_close(flat(p.grad for p in network.parameters()), flat(expected))


def test_mldg_without_second_derivatives_takes_adams_first_step():
    algorithm = make_algorithm(
        "mldg", {"fidelity": "domainbed", "beta": 0.7, "meta_test_domains": 1}, make_setting()
    )
    order = torch.randperm(3, generator=torch.Generator().manual_seed(7)).tolist()
    network, parts = copy.deepcopy(algorithm.network), make_step(algorithm).batch.parts
    expected = 0.0
    for i in order[:2]:
        j = order[2]
        n = min(SIZES[i], SIZES[j])
        clone = copy.deepcopy(network)
        optimizer = torch.optim.Adam(clone.parameters(), lr=0.01)
        functional.cross_entropy(clone(parts[i].x[:n]), parts[i].y[:n]).backward()
        expected = expected + flat(p.grad.clone() for p in clone.parameters()) / 3
        optimizer.step()
        test = functional.cross_entropy(clone(parts[j].x[:n]), parts[j].y[:n])
        expected = expected + 0.7 * flat(torch.autograd.grad(test, list(clone.parameters()))) / 3
    take_step(algorithm)
    torch.testing.assert_close(flat(p.grad for p in algorithm.network.parameters()), expected)


def test_adams_first_step_with_weight_decay():
    weight = nn.Parameter(torch.tensor([1.0, -2.0, 0.0]))
    weight.grad = torch.tensor([0.3, 0.1, 0.0])
    moved = _first_adam_step({"w": weight.detach().clone()}, {"w": weight.grad}, 0.1, 0.5)["w"]
    torch.optim.Adam([weight], lr=0.1, weight_decay=0.5).step()
    torch.testing.assert_close(moved.detach(), weight.detach())


def test_a_meta_training_domain_is_always_left():
    assert _meta_split([1, 0], 5) == ([1], [0])
    assert _meta_split([2, 0, 1], 1) == ([2, 0], [1])
    assert _meta_split([0], 1) == ([0], [])


@pytest.mark.parametrize("name", ["dann", "cdann"])
@pytest.mark.parametrize("number", [0, 1])
def test_adversaries_take_turns(name, number):
    options = {"weight": 0.3, "gradient_penalty": 0.2}
    algorithm = make_algorithm(name, options, make_setting())
    algorithm.double()
    clone = copy.deepcopy(algorithm)
    batch = make_step(clone).batch
    z = clone.network.features(batch.x)
    inputs = z + clone.embeddings(batch.y) if name == "cdann" else z
    values = functional.cross_entropy(clone.discriminator(inputs), DOMAIN, reduction="none")
    counts = torch.bincount(batch.y)
    weights = (
        1 / (2 * counts[batch.y])
        if name == "cdann"
        else torch.full((15,), 1 / 15, dtype=torch.float64)
    )
    slopes = torch.autograd.grad(values.sum(), inputs, create_graph=True)[0]
    adversary = (weights * values).sum() + 0.2 * (slopes**2).sum(1).mean()
    network_turn = number == 0
    loss = sum(risks(clone.network, batch)) / 3 - 0.3 * adversary if network_turn else adversary
    player = clone.network if network_turn else clone.discriminator
    expected = torch.autograd.grad(loss, list(player.parameters()))
    before = flat(algorithm.network.parameters()).detach().clone()
    log, _ = take_step(algorithm, number)
    mine = algorithm.network if network_turn else algorithm.discriminator
    torch.testing.assert_close(flat(p.grad for p in mine.parameters()), flat(expected),
                               rtol=1e-6, atol=1e-7)  # fmt: skip
    moved = not torch.equal(before, flat(algorithm.network.parameters()))
    assert moved is network_turn
    assert log["discriminator_loss"] == pytest.approx(adversary.item(), rel=1e-6)


def test_the_discriminator_has_its_turns_first():
    turns = []
    for number in range(6):
        algorithm = make_algorithm("dann", {"discriminator_steps": 2}, make_setting())
        algorithm.double()
        before = flat(algorithm.network.parameters()).detach().clone()
        take_step(algorithm, number)
        turns.append(torch.equal(before, flat(algorithm.network.parameters())))
    assert turns == [True, False, True, True, False, True]


def test_classes_have_equal_weight():
    values, y = torch.tensor([1.0, 2.0, 10.0, 3.0]), torch.tensor([2, 2, 5, 2])
    torch.testing.assert_close(_class_mean(values, y), torch.tensor(6.0))
    torch.testing.assert_close(_class_mean(values, y, "domainbed"), torch.tensor(2.0))


@pytest.mark.parametrize("fidelity", ["paper", "domainbed"])
def test_styles_are_swapped(fidelity):
    z, order = features()[:4], torch.tensor([1, 2, 3, 0])
    share = torch.tensor([[0.3], [1.0], [0.0], [0.5]], dtype=torch.float64)
    correction = int(fidelity == "domainbed")
    for n in range(4):
        mean, var = z[n].mean(), z[n].var(correction=correction) + 1e-5
        other, m = z[order[n]], share[n]
        other_mean, other_var = other.mean(), other.var(correction=correction) + 1e-5
        spread = (
            m * var.sqrt() + (1 - m) * other_var.sqrt()
            if fidelity == "paper"
            else (m * var + (1 - m) * other_var).sqrt()
        )
        expected = (z[n] - mean) / var.sqrt() * spread + m * mean + (1 - m) * other_mean
        torch.testing.assert_close(_randomize_style(z, share, order, fidelity)[n], expected)
        content = (other - other_mean) / other_var.sqrt() * var.sqrt() + mean
        torch.testing.assert_close(_randomize_content(z, order, fidelity)[n], content)


def test_the_style_step_moves_only_what_it_should():
    algorithm = make_algorithm("sagnet", {"adversary_weight": 0.0}, make_setting())
    algorithm.double()
    _, optimizers = take_step(algorithm)
    assert set(optimizers) == {MAIN, "head", "style"}
    (head_state,) = {int(s["step"]) for s in optimizers["head"].state.values()}
    (body_state,) = {int(s["step"]) for s in optimizers[MAIN].state.values()}
    assert (head_state, body_state) == (1, 2)


@pytest.mark.parametrize("value", [float("nan"), -1, "1", True, float("inf")])
def test_bad_numbers_are_refused(value):
    with pytest.raises(ValueError, match="Expected eta as a finite number of 0 or more"):
        check_number(value, "eta")
