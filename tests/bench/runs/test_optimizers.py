"""Optimisers and learning-rate schedules, against loops written out in plain PyTorch."""

import math

import pytest
import torch
from torch import optim
from torch.nn import functional

from hessalign.bench.algorithms import PenaltySchedule, make_algorithm
from hessalign.bench.runs import FullBatch, LoopConfig, RunFolder, train
from hessalign.bench.runs.loop import start_optimizers
from hessalign.testing import Situation

SITUATION = Situation((5, 4, 3), "cross_entropy")
STEPS, RATE, DECAY = 6, 0.05, 0.02
PLAIN = {
    "adam": lambda parameters: optim.Adam(parameters, lr=RATE, weight_decay=DECAY),
    "adamw": lambda parameters: optim.AdamW(parameters, lr=RATE, weight_decay=DECAY),
    "sgd": lambda parameters: optim.SGD(parameters, lr=RATE, weight_decay=DECAY, momentum=0.7),
    "torch.optim:RMSprop": lambda parameters: optim.RMSprop(
        parameters, lr=RATE, weight_decay=DECAY
    ),
}
FACTORS = {
    ("constant", 0): [1, 1, 1, 1, 1, 1],
    ("constant", 4): [0.25, 0.5, 0.75, 1, 1, 1],
    ("cosine", 0): [(1 + math.cos(math.pi * t / 6)) / 2 for t in range(6)],
    ("cosine", 2): [0.5, 1, *((1 + math.cos(math.pi * t / 4)) / 2 for t in range(4))],
}


def ours(name="erm", folder=None, stop=None, seed=0, options=None, **loop):
    """Train; the algorithm, and the learning rates of its optimisers after each step."""
    setting = SITUATION.setting(seed)
    algorithm = make_algorithm(name, options or {}, setting)
    usual = {"weight_decay": DECAY, "evaluate_every": 1, "checkpoint_every": 1}
    config = LoopConfig(STEPS, RATE, SITUATION.loss, **usual | loop)

    def report(record):
        if record.step == stop:
            raise KeyboardInterrupt

    sampler = FullBatch(SITUATION.batch(0))
    train(algorithm, sampler, lambda network: {}, config, setting.generator, folder, report)
    return algorithm.state_dict()


def theirs(optimizer, factors, reset=None):
    network = SITUATION.setting().make_network()
    batch = SITUATION.batch(0)
    made = PLAIN[optimizer](network.parameters())
    for step, factor in enumerate(factors):
        if step == reset:
            made = PLAIN[optimizer](network.parameters())
        for group in made.param_groups:
            group["lr"] = RATE * factor
        risks = [functional.cross_entropy(network(part.x), part.y) for part in batch.parts]
        made.zero_grad()
        torch.stack(risks).mean().backward()
        made.step()
    return {f"network.{key}": value for key, value in network.state_dict().items()}


@pytest.mark.parametrize(("schedule", "warmup"), FACTORS)
@pytest.mark.parametrize("optimizer", PLAIN)
def test_training_equals_a_plain_loop(optimizer, schedule, warmup):
    momentum = {"momentum": 0.7} if optimizer == "sgd" else {}
    found = ours(optimizer=optimizer, lr_schedule=schedule, warmup_steps=warmup, **momentum)
    expected = theirs(optimizer, FACTORS[schedule, warmup])
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)


def test_the_defaults_are_domainbeds_to_the_bit():
    plain, named = ours(), ours(optimizer="adam", lr_schedule="constant", warmup_steps=0)
    for key, value in theirs("adam", FACTORS["constant", 0]).items():
        torch.testing.assert_close(plain[key], value, rtol=1e-9, atol=1e-11)
        assert torch.equal(plain[key], named[key])


def test_the_schedule_goes_on_where_the_optimiser_starts_afresh():
    schedule = PenaltySchedule(1.0, 1.0, 3, reset=True)
    found = ours(optimizer="sgd", momentum=0.7, lr_schedule="cosine", schedule=schedule)
    expected = theirs("sgd", FACTORS["cosine", 0], reset=3)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)


def test_a_schedule_may_change_the_learning_rate():
    factors = FACTORS["cosine", 0]
    schedule = PenaltySchedule(1.0, 1.0, 3, rate=0.25 * RATE)
    found = ours(lr_schedule="cosine", schedule=schedule)
    expected = theirs("adam", [f if t < 3 else f / 4 for t, f in enumerate(factors)])
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)


def test_a_schedule_may_reset_at_several_steps():
    schedule = PenaltySchedule(1.0, 1.0, 2, reset=True, resets=(0, 4))
    assert [step for step in range(6) if schedule.starts_afresh(step)] == [2, 4]


@pytest.mark.parametrize("name", ["erm", "fish", "mldg", "dann", "andmask"])
@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "torch.optim:RMSprop"])
def test_a_restart_changes_nothing(name, optimizer, tmp_path):
    how = {"optimizer": optimizer, "lr_schedule": "cosine", "warmup_steps": 2}
    whole = ours(name, **how)
    with pytest.raises(KeyboardInterrupt), RunFolder(tmp_path, how, print) as folder:
        ours(name, folder, stop=3, **how)
    with RunFolder(tmp_path, how, print) as folder:
        continued = ours(name, folder, seed=1, **how)
    assert whole.keys() == continued.keys()
    assert all(torch.equal(value, continued[key]) for key, value in whole.items())


def test_optimisers_of_step_owners_follow_from_rates_of_their_own():
    algorithm = make_algorithm("dann", {"discriminator_lr": 0.3, "beta1": 0.2}, SITUATION.setting())
    config = LoopConfig(STEPS, RATE, SITUATION.loss, optimizer="adamw", warmup_steps=4)
    made = start_optimizers(algorithm, config)
    assert {name: type(each) for name, each in made.items()} == {
        "main": optim.AdamW,
        "discriminator": optim.AdamW,
    }
    assert made["discriminator"].defaults["betas"] == (0.2, 0.9)
    rates = []

    class Watched(FullBatch):
        def draw(self):
            rates.append([each.param_groups[0]["lr"] for each in watched])
            return super().draw()

    watched = []
    from hessalign.bench.runs import loop

    start = loop.start_optimizers

    def watching(*given):
        made = start(*given)
        watched.extend(made.values())
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "start_optimizers", watching)
        sampler = Watched(SITUATION.batch(0))
        train(algorithm, sampler, lambda network: {}, config, torch.Generator())
    factors = [0.25, 0.5, 0.75, 1, 1, 1]
    assert rates == [pytest.approx([RATE * factor, 0.3 * factor]) for factor in factors]


def test_a_factor_is_never_0():
    for schedule, warmup in FACTORS:
        config = LoopConfig(STEPS, RATE, "binary", lr_schedule=schedule, warmup_steps=warmup)
        factors = [config.learning_rate_factor(step) for step in range(STEPS)]
        assert factors == pytest.approx(FACTORS[schedule, warmup])
        assert min(factors) > 0
    config = LoopConfig(6, RATE, "binary", lr_schedule="cosine", warmup_steps=6)
    assert config.learning_rate_factor(5) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"optimizer": "Adam"}, "Unknown optimizer 'Adam'.*Did you mean 'adam'"),
        ({"optimizer": "torch.optim:Adem"}, "Unknown optimizer in torch.optim 'Adem'"),
        ({"optimizer": "nowhere:Adam"}, "Cannot find the optimizer 'nowhere:Adam'"),
        ({"optimizer": 3}, "Expected optimizer as text, got 3"),
        ({"momentum": 1.0}, "Expected momentum as a number of at least 0 and below 1, got 1.0"),
        (
            {"optimizer": "adamw", "momentum": 0.5},
            "Expected momentum with optimizer=sgd only, got momentum=0.5 with adamw",
        ),
        ({"lr_schedule": "cosin"}, "Unknown lr_schedule 'cosin'.*Did you mean 'cosine'"),
        ({"warmup_steps": -1}, "Expected warmup_steps of 0 or more, got -1"),
        ({"warmup_steps": 2.5}, "Expected warmup_steps as a whole number of 0 or more, got 2.5"),
        ({"warmup_steps": 7}, "Expected warmup_steps of at most the 6 steps of the run, got 7"),
        ({"loss": "cross-entropy"}, "Unknown loss 'cross-entropy'.*mean 'cross_entropy'"),
    ],
)
def test_what_cannot_be_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        LoopConfig(**{"steps": STEPS, "learning_rate": RATE, "loss": "binary"} | options)


def test_what_an_own_optimiser_raises_is_told_as_its_own():
    with pytest.raises(ValueError, match="The optimizer 'builtins:dict' cannot be made; it raised"):
        ours(optimizer="builtins:dict")


def test_what_is_made_has_to_be_an_optimiser(tmp_path, monkeypatch):
    (tmp_path / "own_descent.py").write_text(
        "def make(parameters, lr, weight_decay):\n    return 3"
    )
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"a torch.optim.Optimizer, got int"):
        ours(optimizer="own_descent:make")
