"""Every algorithm passes the checks for algorithms of one's own, and each check finds its fault."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn

from hessalign.bench.algorithms import (
    ALGORITHMS,
    MAIN,
    AbstractGradientRule,
    AbstractObjective,
    AbstractStepOwner,
    AlgorithmInfo,
    ObjectiveTerms,
    OptimizerSpec,
)
from hessalign.bench.algorithms.options import NonNegative, Options, Uniform
from hessalign.bench.models import Network
from hessalign.testing import (
    ALGORITHM_CHECKS,
    CheckFailedError,
    Situation,
    check_algorithm,
)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_passes(name):
    check_algorithm(name)


@pytest.mark.parametrize("options", [{"gradient_penalty": 1.0, "width": 5}, {"depth": 5}])
def test_a_row_may_have_options_of_its_own(options):
    row = ALGORITHMS["dann"]
    check_algorithm(AlgorithmInfo("own", "Own", row.make, config=row.configure(options)))


@dataclass(frozen=True)
class PlainConfig(Options):
    weight: NonNegative = 0.1


class Plain(AbstractObjective):
    """What is right; the others have one fault each."""

    config: PlainConfig = PlainConfig()
    search: ClassVar = {"weight": Uniform(0, 1)}

    def terms(self, step):
        return ObjectiveTerms(step.statistics.risk.mean(), self.penalty(step))

    def penalty(self, step):
        return self.config.weight * step.z.square().mean()


class Rule(AbstractGradientRule):
    def combine(self, gradients: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return [each.mean(0) for each in gradients]


class Owner(AbstractStepOwner):
    def optimizers(self):
        return {MAIN: OptimizerSpec(self.network.parameters())}

    def update(self, step, optimizers):
        optimizers[MAIN].zero_grad()
        risk = step.statistics.risk.mean()
        risk.backward()
        optimizers[MAIN].step()
        return {"risk": float(risk.detach())}


@pytest.mark.parametrize("algorithm", [Plain, Rule, Owner])
def test_a_sound_algorithm_passes(algorithm):
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    check_algorithm(algorithm)
    assert torch.equal(before[0], torch.get_rng_state())
    assert (before[1] == np.random.get_state()[1]).all()
    assert before[2] == random.getstate()


# ------------------------------------------------------------------------------------------- faults


class ListOption(Plain):
    @dataclass(frozen=True)
    class Config:
        weight: float = 0.1
        widths: Any = (1, 2)

    config = Config()


class TakenName(Plain):
    @dataclass(frozen=True)
    class Config(Options):
        weight: float = 0.1
        lr: float = 0.1

    config = Config()


class Unchecked(Plain):
    @dataclass(frozen=True)
    class Config:
        weight: Any = 0.1

    config = Config()


class TooWide(Plain):
    search: ClassVar = {"weight": Uniform(-5, -1)}


class NoSuchOption(Plain):
    search: ClassVar = {"wait": Uniform(0, 1)}


class NotFinite(Plain):
    def penalty(self, step):
        return sum(part.sum() / (len(part) - 1) for part in step.features_by_domain())


class Grows(Plain):
    def terms(self, step):
        self.register_buffer(f"seen{step.number}", torch.zeros(1))
        return super().terms(step)


class NoRisk(Owner):
    def update(self, step, optimizers):
        return {"loss": super().update(step, optimizers)["risk"]}


class RefusesOneDomain(Plain):
    def __init__(self, config, setting):
        from hessalign._errors import InputError

        super().__init__(config, setting)
        if setting.domains == 1:
            raise InputError("Expected two domains.")


class Still(Owner):
    def update(self, step, optimizers):
        return {"risk": float(step.statistics.risk.mean().detach())}


class GlobalTorch(Plain):
    def penalty(self, step):
        return (step.z + torch.randn(()).to(step.z)).square().mean()


class GlobalNumpy(Plain):
    def penalty(self, step):
        return (step.z + np.random.rand()).square().mean()


class GlobalPython(Plain):
    def penalty(self, step):
        return (step.z + random.random()).square().mean()


class UnseededLayer(Plain):
    def __init__(self, config, setting):
        super().__init__(config, setting)
        self.extra = nn.Linear(1, 1)


class Forgetful(Plain):
    """What it remembers is in no buffer."""

    past = 0.0

    def penalty(self, step):
        value = (step.z - self.past).square().mean()
        self.past = float(step.z.detach().mean())
        return value


class Overwrites(Plain):
    def terms(self, step):
        step.batch.x.mul_(2)
        return super().terms(step)


class LeavesEvaluation(Owner):
    def update(self, step, optimizers):
        terms = super().update(step, optimizers)
        self.network.eval()
        return terms


class BadDefault(Plain):
    @dataclass(frozen=True)
    class Config:
        weight: NonNegative = -1.0

    config = Config()


class BreaksWhenDrawn(Plain):
    @dataclass(frozen=True)
    class Config(Options):
        weight: NonNegative = 1.0

    config = Config()

    def penalty(self, step):
        return super().penalty(step) / (self.config.weight == 1.0)


class TwoDomains(Plain):
    def penalty(self, step):
        first, second, *_ = step.features_by_domain()
        return (first.mean(0) - second.mean(0)).square().mean()


class Vector(Plain):
    def penalty(self, step):
        return step.statistics.risk


class NoTerms(Plain):
    def terms(self, step):
        return step.statistics.risk.mean()


class NotCombined(Rule):
    def combine(self, gradients):
        return gradients


class Logs(Owner):
    """Logs a risk with its graph."""

    what: ClassVar = staticmethod(lambda step: step.statistics.risk.mean())

    def update(self, step, optimizers):
        super().update(step, optimizers)
        return {"risk": self.what(step)}


class LogsSamples(Logs):
    what: ClassVar = staticmethod(lambda step: step.losses)


class LogsWords(Logs):
    what: ClassVar = staticmethod(lambda step: "low")


class LogsSteps(Logs):
    def update(self, step, optimizers):
        return {"step": super().update(step, optimizers)["risk"]}


class LogsRisk(Plain):
    """Calls a part of its penalty what the risk is called."""

    def terms(self, step):
        terms = super().terms(step)
        return ObjectiveTerms(terms.risk, terms.penalty, {"risk": terms.penalty})


@pytest.mark.filterwarnings("error")
def test_what_is_logged_may_have_a_graph():
    check_algorithm(Logs)


class Widens(Plain):
    """Keeps a mean in float32, until the statistics make float64 of it."""

    def __init__(self, config, setting):
        super().__init__(config, setting)
        self.register_buffer("mean", torch.zeros(()))

    def penalty(self, step):
        risk = step.statistics.risk.mean()
        self.mean = 0.9 * self.mean + risk.detach()
        return risk * self.mean


class NothingToLog(Owner):
    def update(self, step, optimizers):
        super().update(step, optimizers)


class OnTheProcessor(Plain):
    def penalty(self, step):
        return (step.z * torch.ones(step.z.shape[1], dtype=step.z.dtype)).square().mean()


class Detached(Plain):
    def penalty(self, step):
        return (step.z * step.z.detach()).mean()


class Counting(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        if not self.training:
            self.calls = self.calls + 1
        return self.inner(x)


class Trace(Plain):
    def make_network(self, setting):
        plain = setting.make_network()
        return Network(Counting(plain.featurizer), plain.head)


class Tired(nn.Module):
    calls = 0

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        self.calls += 1
        return self.inner(x) / self.calls


class PredictsOtherwise(Plain):
    def make_network(self, setting):
        plain = setting.make_network()
        return Network(Tired(plain.featurizer), plain.head)


class BatchMean(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        z = self.inner(x)
        return z - z.mean(0)


class SeesBatch(Plain):
    def make_network(self, setting):
        plain = setting.make_network()
        return Network(BatchMean(plain.featurizer), plain.head)


class SaysSo(SeesBatch):
    sees_batch: ClassVar = True


class DetachedOnPurpose(Detached):
    constants: ClassVar = "one of the factors"


def test_what_is_said_on_purpose_is_no_fault():
    check_algorithm(SaysSo)
    check_algorithm(DetachedOnPurpose)


FAULTS = [
    (ListOption, "options can be recorded", "The option widths is \\(1, 2\\)"),
    (TakenName, "options can be recorded", "called lr. Call the option otherwise"),
    (Unchecked, "wrong options are refused", "A list as weight is accepted. Give the field a hint"),
    (TooWide, "drawn options are accepted", "which is refused: Expected weight as a finite number"),
    (NoSuchOption, "drawn options are accepted", "refused: Unknown option of .* 'wait'.*weight"),
    (NotFinite, "it trains anywhere", "finite numbers.*Guard roots and quotients"),
    (Grows, "it trains anywhere", "came or went in training.*Register all of them"),
    (NoRisk, "it trains anywhere", "has no 'risk', only \\['loss'\\]"),
    (RefusesOneDomain, "it trains anywhere", "refuses to be built for one domain"),
    (Still, "parameters move", "No parameter of the network changed in 3 steps"),
    (BadDefault, "options can be recorded", "The default -1.0 of weight is refused"),
    (BreaksWhenDrawn, "drawn options are accepted", "finite numbers.*'weight': .*search space"),
    (TwoDomains, "it trains anywhere", "With one domain: It raised ValueError: not enough values"),
    (Vector, "it trains anywhere", "Expected 'penalty' of .* one number, got shape \\[3\\]"),
    (NoTerms, "it trains anywhere", "Expected NoTerms.terms to return ObjectiveTerms, got Tensor"),
    (NotCombined, "it trains anywhere", "\\(3, 3\\), \\(3,\\), .*got \\(3, 3, 3\\), "),
    (NothingToLog, "it trains anywhere", "update to return terms, got None"),
    (
        LogsSamples,
        "it trains anywhere",
        "Expected 'risk' of LogsSamples.update as one number, got sh",
    ),
    (LogsSteps, "it trains anywhere", "another name than 'step' of LogsSteps.update: records say"),
    (LogsRisk, "it trains anywhere", "another name than 'risk' of the parts of LogsRisk.terms"),
    (LogsWords, "it trains anywhere", "Expected 'risk' of LogsWords.update as one number, got low"),
    (Overwrites, "batches stay as they are", "It changed x of the batch in place"),
    (LeavesEvaluation, "a restart changes nothing", "leave the network in train\\(\\)"),
    (GlobalTorch, "its generator decides", "the global generator of torch. Draw from self.gen"),
    (GlobalNumpy, "its generator decides", "the global generator of numpy"),
    (
        GlobalPython,
        "its generator decides",
        "same seed differ in .*nor Python's random",
    ),
    (UnseededLayer, "its generator decides", "inside `with seeded\\(setting.generator\\)`"),
    (Forgetful, "a restart changes nothing", "in buffers \\(register_buffer\\)"),
    (
        Widens,
        "a restart changes nothing",
        "differs .* in mean.* keep the shape and type they begin",
    ),
    (OnTheProcessor, "tensors are made where the network is", "device=step.z.device"),
    (Detached, "the gradient is that of the loss", "class attribute `constants`"),
    (Trace, "evaluation leaves no trace", "Predicting changed network.featurizer.calls"),
    (PredictsOtherwise, "evaluation leaves no trace", "predicted differently a second time"),
    (SeesBatch, "predictions stand alone", "class attribute `sees_batch`"),
]


@pytest.mark.parametrize(("algorithm", "check", "message"), FAULTS)
def test_each_check_finds_its_fault(algorithm, check, message):
    with pytest.raises(CheckFailedError, match=f"(?s)checks of .*{algorithm.__name__} failed:.*"
                       f"- {check}: .*{message}"):  # fmt: skip
        check_algorithm(algorithm)


def test_every_check_has_a_fault():
    assert {check for _, check, _ in FAULTS} == set(ALGORITHM_CHECKS)


def test_other_errors_are_shown_with_their_kind():
    class Broken(Plain):
        def penalty(self, step):
            raise KeyError("missing")

    told = r"(?s)10 of 12 .*raised KeyError.*The same as"
    with pytest.raises(CheckFailedError, match=told) as caught:
        check_algorithm(Broken)
    assert isinstance(caught.value.__cause__, KeyError)


def test_no_algorithm_is_refused():
    with pytest.raises(ValueError, match="Expected the class of an algorithm"):
        check_algorithm(nn.Linear)
    with pytest.raises(ValueError, match="lacks terms"):
        check_algorithm(AbstractObjective)


def test_situations_can_be_repeated():
    situation = Situation((2, 3), "cross_entropy", one_class=(1,))
    assert torch.equal(situation.batch(1).x, situation.batch(1).x)
    assert situation.batch(1).y[2:].tolist() == [1, 1, 1]
    first, second = (situation.setting().make_network() for _ in range(2))
    torch.testing.assert_close(dict(first.named_parameters()), dict(second.named_parameters()))
