"""What holds for every algorithm: it trains on any domains, resumes, draws from its generator."""

import copy

import pytest
import torch
from torch import nn

from hessalign.bench.algorithms import ALGORITHMS, Batch, Setting, Step, make_algorithm
from hessalign.bench.models import Network
from hessalign.bench.runs.loop import LoopConfig, start_optimizers, train, update
from hessalign.bench.runs.sampling import Minibatches
from hessalign.bench.runs.state import TrainingState

WIDTH, FEATURES = 5, 4
SIZES = [(5,), (4, 3), (1, 1), (2, 1), (3, 2, 1, 5, 2)]
OUTPUTS = {"binary": 1, "cross_entropy": 3}


def make_setting(domains, loss="cross_entropy", head="linear", images=False, seed=0):
    weights = torch.Generator().manual_seed(seed)

    def make_network(*, extra_channels=0, head_factor=1):
        if images:
            body = nn.Sequential(
                nn.Conv2d(2 + extra_channels, FEATURES, 3), nn.ReLU(), nn.Flatten(),
                nn.Linear(FEATURES * 4, FEATURES),
            )  # fmt: skip
        else:
            body = nn.Sequential(nn.Linear(WIDTH + extra_channels, FEATURES), nn.Tanh())
        inputs, outputs = head_factor * FEATURES, OUTPUTS[loss]
        top = nn.Linear(inputs, outputs)
        if head == "mlp":
            top = nn.Sequential(nn.Linear(inputs, 3), nn.Tanh(), nn.Linear(3, outputs))
        network = Network(body, top)
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=weights) / 2)
        return network

    shape = (2, 4, 4) if images else (WIDTH,)
    generator = torch.Generator().manual_seed(seed + 1)
    return Setting(make_network, OUTPUTS[loss], domains, loss, 5, generator, input_shape=shape)


def make_batch(sizes, loss="cross_entropy", images=False, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shape = (2, 4, 4) if images else (WIDTH,)
    x = torch.randn(sum(sizes), *shape, generator=generator)
    y = torch.randint(max(2, OUTPUTS[loss]), (sum(sizes),), generator=generator)
    y[: sizes[0]] = 1  # the first domain has a single class
    domain = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    return Batch(x, y, domain)


def run(name, sizes, loss="cross_entropy", steps=3, options=None, **setting):
    algorithm = make_algorithm(name, options or {}, make_setting(len(sizes), loss, **setting))
    config = LoopConfig(steps, 0.01, loss, l2=0.01, clip=1.0)
    optimizers = start_optimizers(algorithm, config)
    logs = []
    for number in range(steps):
        batch = make_batch(sizes, loss, setting.get("images", False), seed=number)
        logs.append(update(algorithm, Step(algorithm.network, batch, number, loss),
                           optimizers, config))  # fmt: skip
    return algorithm, logs


def check_finite(algorithm, logs):
    for log in logs:
        assert "risk" in log
        assert all(torch.isfinite(torch.tensor(value)) for value in log.values()), log
    for name, value in algorithm.state_dict().items():
        assert bool(value.isfinite().all()), name


@pytest.mark.parametrize("loss", OUTPUTS)
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_trains_on_any_domains(name, sizes, loss):
    algorithm, logs = run(name, sizes, loss)
    check_finite(algorithm, logs)
    network = algorithm.network.eval()
    for count in (1, 3):
        logits = network(torch.randn(count, WIDTH))
        assert logits.shape == (count, OUTPUTS[loss])
        assert bool(logits.isfinite().all())


@pytest.mark.parametrize("kind", [{"head": "mlp"}, {"images": True}], ids=["mlp-head", "images"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_trains_other_networks(name, kind):
    check_finite(*run(name, (4, 3), **kind))


WITH_FIDELITY = [
    (name, fidelity)
    for name in ("mtl", "mixup", "mldg", "coral", "iga", "andmask", "fish", "sagnet")
    for fidelity in ("paper", "domainbed")
]


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize(("name", "fidelity"), WITH_FIDELITY)
def test_trains_in_either_fidelity(name, fidelity, sizes):
    check_finite(*run(name, sizes, "binary", options={"fidelity": fidelity}))


def test_a_gradient_penalty_trains_the_discriminator():
    for name in ("dann", "cdann"):
        check_finite(*run(name, (3, 1), options={"gradient_penalty": 1.0, "dropout": 0.1}))


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name != "sandmask"])
def test_changes_the_parameters(name):
    trained, _ = run(name, (6, 5, 7))
    fresh = make_algorithm(name, {}, make_setting(3))
    before, after = fresh.network.state_dict(), trained.network.state_dict()
    assert any(not torch.equal(before[key], after[key]) for key in before)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_only_its_own_generator_decides(name):
    finals = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        algorithm, _ = run(name, (4, 3))
        finals.append(algorithm.state_dict())
    for key, value in finals[0].items():
        assert torch.equal(value, finals[1][key]), key


def make_state(name):
    x = [torch.arange(n * WIDTH).reshape(n, WIDTH).sin() for n in (9, 7, 8)]
    y = [torch.arange(len(each)) % 3 for each in x]
    setting = make_setting(3)
    algorithm = make_algorithm(name, {}, setting)
    sampler = Minibatches(x, y, batch_size=4, seed=5)
    return algorithm, sampler, setting.generator


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_restart_changes_nothing(name):
    def config(steps):
        return LoopConfig(steps, 0.01, "cross_entropy")

    def evaluate(network):
        return {"mean": float(network(torch.ones(2, WIDTH)).mean())}

    whole, sampler, generator = make_state(name)
    train(whole, sampler, evaluate, config(5), generator)

    first, sampler, generator = make_state(name)
    optimizers = start_optimizers(first, config(5))
    for number in range(2):
        update(first, Step(first.network, sampler.draw(), number, "cross_entropy"), optimizers,
               config(5))  # fmt: skip
    saved = TrainingState(first, optimizers, sampler, generator, step=2).state_dict()
    saved = copy.deepcopy(saved)

    second, sampler, generator = make_state(name)
    optimizers = start_optimizers(second, config(5))
    TrainingState(second, optimizers, sampler, generator).load_state_dict(saved)
    for number in range(2, 5):
        update(second, Step(second.network, sampler.draw(), number, "cross_entropy"), optimizers,
               config(5))  # fmt: skip
    for key, value in whole.state_dict().items():
        assert torch.equal(value, second.state_dict()[key]), key


@pytest.mark.parametrize("name", ALGORITHMS)
def test_search_draws_valid_options(name):
    from hessalign.bench.algorithms import make_config
    from hessalign.bench.algorithms.search import draw

    info = ALGORITHMS[name]
    assert set(info.search_small) <= set(info.search)
    for space in (info.search, {**info.search, **info.search_small}):
        by_name = dict(space.values())
        for seed in range(1, 4):
            drawn = draw(by_name, seed, 0)
            make_config(name, {field: drawn[theirs] for field, (theirs, _) in space.items()})
