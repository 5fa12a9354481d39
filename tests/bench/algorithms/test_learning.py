"""What every algorithm learns where plain training fails.

Under correlation shift (`make_shifted_data("correlation", ...)`) some features follow the label in
both source domains, more often than the core features do, but not equally often; in the target they
follow the opposite. The invariant predictor is right in about 83 % of all samples everywhere. ERM
relies on what is not stable: 94 % on the sources, less than a coin (47 %) on the target.

Methods that compare risks or gradients between domains can tell the unstable features, and have to
beat ERM on the target by ten points with each of three seeds. The others make no such promise
about this shift (they align feature distributions, which do not differ here, or nothing), so they
only have to learn the sources.
"""

from dataclasses import dataclass, field
from functools import cache

import pytest
import torch
from torch import nn

from hessalign.bench.algorithms import ALGORITHMS, Batch, Setting, make_algorithm
from hessalign.bench.algorithms.options import penalty_schedule
from hessalign.bench.data.shifts import make_shifted_data
from hessalign.bench.models import Network
from hessalign.bench.runs import FullBatch, LoopConfig, train

SEEDS = (0, 1, 2)
MARGIN = 0.10
HIDDEN = 8
LONG = {"steps": 150, "samples": 500}
SHORT = {"steps": 150, "samples": 100}
"""Where nothing but learning the sources is asked for."""


@dataclass(frozen=True)
class Expectation:
    """What is asked of an algorithm.

    Attributes:
        options: Those it is trained with, the same for all seeds.
        gain: Whether it has to beat ERM on the target.
    """

    options: dict = field(default_factory=dict)
    gain: bool = False


NO_CLAIM = Expectation()
ANNEALED = Expectation({"penalty_weight": 1000.0, "anneal_steps": 40}, gain=True)
BOTH = {"alpha": 1000.0, "beta": 1000.0}

# How the weights were found: one value for all seeds, from a coarse grid.
# - irm, vrex, fishr, gradient: 10, 100, 1000. The gain grows with the weight; at 10 only fishr
#   gains ten points.
# - eqrm, ib_irm: the first tried, a quantile near 1 and IRM's weight.
# - iga: 10, 100, 200, 300, 1000. At 300 one seed has 67 % on the sources; at 1000 two of three
#   seeds stay at chance, on the sources too.
# - Hessian variants: (α, β) = (1000, 1000), (1000, 0), (10000, 0). With β = 0, the Hessian alone,
#   none gains ten points with every seed (targets from 10 % to 76 %): equal curvature does not rule
#   out features whose gradients differ. So this shows that both terms together work, not that the
#   Hessian's is what helps: gradient alone has 68, 65, 68 %, with the full Hessian 77, 68, 70 %.
EXPECTATIONS = {
    "erm": NO_CLAIM,
    "irm": ANNEALED,
    "vrex": ANNEALED,
    "fishr": ANNEALED,
    "gradient": Expectation({"beta": 1000.0}, gain=True),
    "hgp": Expectation(BOTH, gain=True),
    "hutchinson": Expectation({**BOTH, "probes": 20}, gain=True),
    "expected": Expectation({**BOTH, "probes": 20}, gain=True),
    "diagonal": Expectation(BOTH, gain=True),
    "full": Expectation(BOTH, gain=True),
    "iga": Expectation({"penalty_weight": 200.0}, gain=True),
    "groupdro": Expectation({"eta": 1.0}),  # the worst source is a hint: some points, no claim
    "mixup": NO_CLAIM,
    "mldg": NO_CLAIM,
    "coral": NO_CLAIM,
    "mmd": NO_CLAIM,
    "dann": Expectation({"width": 16}),
    "cdann": Expectation({"width": 16}),
    "mtl": NO_CLAIM,
    "sagnet": NO_CLAIM,
    "arm": Expectation({"width": 8}),
    "rsc": NO_CLAIM,
    "andmask": NO_CLAIM,  # both domains agree in sign that the unstable features help
    "sandmask": Expectation({"tau": 0.5}),  # with DomainBed's default τ = 1 it learns nothing
    "fish": NO_CLAIM,
    "sd": NO_CLAIM,
    "eqrm": Expectation({"quantile": 0.99, "burn_in_steps": 40, "late_lr": None}, gain=True),
    "rdm": Expectation({"anneal_steps": 40, "late_lr": None}),
    "ib_erm": Expectation({"penalty_weight": 0.1, "anneal_steps": 40}),
    "ib_irm": Expectation(
        {"irm_weight": 1000.0, "irm_anneal_steps": 40, "ib_weight": 0.1, "ib_anneal_steps": 40},
        gain=True,
    ),
    "cad": NO_CLAIM,
    "condcad": NO_CLAIM,
    "causirl_coral": NO_CLAIM,
    "causirl_mmd": NO_CLAIM,
    "ddc": NO_CLAIM,
    "mdan": NO_CLAIM,
    "urm": NO_CLAIM,
    "selfreg": NO_CLAIM,
    "trm": Expectation({"transfer_start": 140, "head_steps": 2}),
    "transfer": Expectation({"ascent_steps": 2}),
    "adrmx": Expectation({"width": 16, "depth": 3}),
    "ermplusplus": Expectation({"probe_steps": 20, "probe_lr": None, "sma_start": 100}),
    "agrsum": NO_CLAIM,
    "agrrand": NO_CLAIM,
    "cma": Expectation(BOTH, gain=True),
    "miro": NO_CLAIM,
    "sagm": NO_CLAIM,
}
CLAIMED = [name for name, expectation in EXPECTATIONS.items() if expectation.gain]


def accuracy(network, domain):
    """Of predictions for a whole domain at once, which some methods adapt to."""
    return float(((network(domain.x)[:, 0] > 0).long() == domain.y).double().mean())


@cache
def learn(name, seed, steps, samples):
    """Train a network with one hidden layer; its accuracy on the sources and on the target."""
    data = make_shifted_data("correlation", seed, samples=samples)
    domains, inputs = len(data.source), data.target.x.shape[1]

    def make_network(*, extra_channels=0, head_factor=1):
        torch.manual_seed(seed)
        body = nn.Sequential(nn.Linear(inputs + extra_channels, HIDDEN), nn.Tanh())
        return Network(body, nn.Linear(head_factor * HIDDEN, 1))

    generator = torch.Generator().manual_seed(seed)
    setting = Setting(make_network, 1, domains, "binary", steps, generator, input_shape=(inputs,))
    algorithm = make_algorithm(name, EXPECTATIONS[name].options, setting)
    batch = Batch(
        torch.cat([each.x for each in data.source]),
        torch.cat([each.y for each in data.source]),
        torch.arange(domains).repeat_interleave(samples),
    )

    def evaluate(network):
        sources = [accuracy(network, each) for each in data.source]
        return {"source": sum(sources) / domains, "target": accuracy(network, data.target)}

    config = LoopConfig(
        steps,
        0.01,
        "binary",
        schedule=penalty_schedule(algorithm.config),
        evaluate_every=steps,
    )
    records = train(algorithm, FullBatch(batch), evaluate, config, generator)
    return records[-1].metrics


def test_every_algorithm_is_expected_something_of():
    assert set(EXPECTATIONS) == set(ALGORITHMS)


@pytest.mark.parametrize("seed", SEEDS)
def test_plain_training_fails_on_the_target(seed):
    data = make_shifted_data("correlation", seed, samples=LONG["samples"])
    found = learn("erm", seed, **LONG)
    assert found["source"] > 0.9
    assert found["target"] < 0.55 < 0.75 < data.invariant_accuracy(data.target)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_learns_the_sources(name):
    """Well above the half that guessing gives; what aligns pays for it on the sources."""
    if name in CLAIMED:
        assert learn(name, 0, **LONG)["source"] > 0.7
    else:
        assert learn(name, 0, **SHORT)["source"] > 0.85


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", CLAIMED)
def test_gains_on_the_target(name, seed):
    found = learn(name, seed, **LONG)
    plain = learn("erm", seed, **LONG)
    assert found["target"] > plain["target"] + MARGIN
    assert found["source"] > 0.7
