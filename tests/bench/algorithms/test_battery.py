"""One battery for every row of the table of algorithms.

Each algorithm, in every variant its configuration offers, has to equal its independent reference
(`references.py`) after each of three steps: all parameters, all buffers, all reported terms. The
situations it has to do so in are the awkward ones: one domain and five, domains of one sample, of
one class, of odd and unequal sizes, linear and deeper heads, several logits and one.
"""

import copy
import dataclasses
import math
import re
from dataclasses import dataclass, field
from typing import Literal, get_args, get_origin, get_type_hints

import pytest
import torch
from tests.bench.algorithms.references import REFERENCES, Draws
from torch import nn

from hessalign.bench.algorithms import (
    ALGORITHMS,
    AbstractAlgorithm,
    Batch,
    Setting,
    augmentations,
    make_algorithm,
    make_config,
    pairs,
)
from hessalign.bench.algorithms.options import penalty_schedule
from hessalign.bench.models import Network
from hessalign.bench.runs import FullBatch, LoopConfig, Minibatches, train
from hessalign.bench.runs.run_folder import RunFolder
from hessalign.curvature import hutchinson
from hessalign.testing import FEATURES, INPUTS, Situation

RATE, DECAY, STEPS = 0.01, 0.02, 3

# ---------------------------------------------------------------------------------------- variants

JUMP = {"penalty_weight": 30.0, "anneal_steps": 1}
"""The weight jumps, and Adam starts afresh, between the steps that are compared."""
ALIGN = {"alpha": 3.0, "beta": 2.0}
PROBED = {**ALIGN, "probes": 3}
PAPER, DOMAINBED, RELEASED = ({"fidelity": name} for name in ("paper", "domainbed", "released"))

ADVERSARIAL = [
    {"weight": 2.0, "width": 5},
    {"discriminator_steps": 2, "depth": 2, "width": 6, "beta1": 0.3, "gradient_penalty": 0.7},
    {"width": 5, "network_lr": 0.03, "network_weight_decay": 0.0, "discriminator_lr": 0.02,
     "discriminator_weight_decay": 0.1},
]  # fmt: skip

CONTRAST = {"penalty_weight": 2.0, "temperature": 0.7}
CLIMB = {"weight": 1.5, "delta": 0.05, "ascent_steps": 2, "ascent_lr": 0.2}
REMIX = {"contrast_weight": 0.4, "domain_weight": 0.6, "adversary_weight": 0.8, "remix_weight": 1.5,
         "discriminator_steps": 1, "beta1": 0.3, "width": 5, "depth": 3}  # fmt: skip

VARIANTS = {
    "erm": [{}],
    "irm": [JUMP | PAPER, JUMP | DOMAINBED | {"anneal_steps": 2}],
    "vrex": [JUMP | PAPER, JUMP | RELEASED | {"anneal_steps": 2}],
    "fishr": [
        JUMP | PAPER | {"ema": 0.8},
        JUMP | RELEASED | {"ema": 0.0, "anneal_steps": 0},
        JUMP | DOMAINBED | {"ema": 0.95, "anneal_steps": 2},
    ],
    "gradient": [{"beta": 2.0} | PAPER, {"beta": 2.0} | RELEASED, {"beta": 2.0} | DOMAINBED],
    "hgp": [ALIGN | PAPER, ALIGN | RELEASED, ALIGN | DOMAINBED],
    "hutchinson": [
        PROBED | PAPER,
        PROBED | RELEASED,
        PROBED | DOMAINBED,
        PROBED | PAPER | {"shared_probes": True},
        PROBED | RELEASED | {"shared_probes": True},
    ],
    "expected": [
        PROBED | PAPER,
        PROBED | RELEASED,
        PROBED | DOMAINBED,
        PROBED | PAPER | {"shared_probes": True},
        PROBED | RELEASED | {"shared_probes": True},
    ],
    "diagonal": [ALIGN | PAPER, ALIGN | RELEASED, ALIGN | DOMAINBED],
    "full": [ALIGN | PAPER, ALIGN | RELEASED, ALIGN | DOMAINBED],
    "groupdro": [{"eta": 0.5}],
    "mixup": [{"alpha": 2.0} | PAPER, {"alpha": 2.0} | DOMAINBED],
    "mldg": [
        {"beta": 1.5, "inner_lr": 0.3} | PAPER,
        {"beta": 0.5, "meta_test_domains": 1} | PAPER,
        {"beta": 1.5, "inner_lr": 0.3} | DOMAINBED,
        {"beta": 0.5, "meta_test_domains": 1} | DOMAINBED,
    ],
    "coral": [{"penalty_weight": 20.0} | PAPER, {"penalty_weight": 5.0} | DOMAINBED],
    "mmd": [{"penalty_weight": 2.0}],
    "dann": [ADVERSARIAL[0] | PAPER, *(each | DOMAINBED for each in ADVERSARIAL)],
    "cdann": [each | PAPER for each in ADVERSARIAL] + [each | DOMAINBED for each in ADVERSARIAL],
    "mtl": [{"ema": 0.6} | PAPER, {"ema": 1.0} | PAPER, DOMAINBED],
    "sagnet": [{"adversary_weight": 1.5} | PAPER, {"adversary_weight": 1.5} | DOMAINBED],
    "arm": [{"channels": 2, "width": 5} | PAPER, {"channels": 2, "width": 5} | DOMAINBED],
    "rsc": [{"feature_drop": 0.4, "batch_drop": 0.35}, {"feature_drop": 0.15, "batch_drop": 0.85}],
    "andmask": [{"tau": 1.0} | PAPER, {"tau": 0.3} | PAPER, {"tau": 0.5} | DOMAINBED],
    "sandmask": [{"tau": 0.3, "k": 1e-3}, {"tau": 0.1, "k": 10.0}],
    "fish": [{"meta_lr": 0.3} | PAPER, {"meta_lr": 0.3} | DOMAINBED],
    "iga": [{"penalty_weight": 2.0} | PAPER, {"penalty_weight": 2.0} | DOMAINBED],
    "sd": [{"penalty_weight": 2.0} | PAPER, {"penalty_weight": 2.0} | DOMAINBED],
    "eqrm": [
        {"quantile": 0.8, "burn_in_steps": 1, "late_lr": 0.03} | PAPER,
        {"quantile": 0.3, "burn_in_steps": 0.5, "late_lr": 0.03} | PAPER,
        {"quantile": 0.8, "burn_in_steps": 1, "late_lr": 0.03} | DOMAINBED,
        {"quantile": 0.95, "burn_in_steps": 0.5, "late_lr": 0.03} | DOMAINBED,
    ],
    "rdm": [
        {"matching_weight": 9.0, "variance_weight": 2.0, "anneal_steps": 1, "late_lr": 0.03},
        {"matching_weight": 9.0, "variance_weight": 0.0, "anneal_steps": 0, "late_lr": None},
    ],
    "ib_erm": [JUMP],
    "ib_irm": [
        {"irm_weight": 30.0, "irm_anneal_steps": 1, "ib_weight": 9.0, "ib_anneal_steps": 2} | PAPER,
        {"irm_weight": 30.0, "irm_anneal_steps": 2, "ib_weight": 9.0, "ib_anneal_steps": 0}
        | DOMAINBED,
    ],
    "cad": [CONTRAST | PAPER, CONTRAST | DOMAINBED],
    "condcad": [CONTRAST | PAPER, CONTRAST | DOMAINBED],
    "causirl_coral": [{"penalty_weight": 20.0} | PAPER, {"penalty_weight": 5.0} | DOMAINBED],
    "causirl_mmd": [{"penalty_weight": 2.0}],
    "ddc": [{"penalty_weight": 2.0}],
    "mdan": [{"weight": 0.7, "gamma": 2.0}, {"weight": 0.7, "gamma": None}],
    "urm": [
        {"weight": 2.0, "output": "tanh", "hidden_layers": 1},
        {"weight": 0.5, "output": "relu", "hidden_layers": 0, "discriminator_lr": 0.03},
    ],
    "selfreg": [PAPER, DOMAINBED],
    "trm": [
        {"weight": 0.5, "transfer_start": 1, "eta": 0.7, "head_steps": 2} | PAPER,
        {"weight": 0.5, "transfer_start": 0, "eta": 0.7, "head_steps": 2} | DOMAINBED,
    ],
    "transfer": [CLIMB | PAPER, CLIMB | DOMAINBED | {"delta": 1e3}],
    "adrmx": [REMIX | PAPER, REMIX | DOMAINBED | {"discriminator_steps": 2}],
    "ermplusplus": [
        {"probe_steps": 1, "probe_lr": 0.03, "sma_start": 3} | PAPER,
        {"probe_steps": 0, "probe_lr": None, "sma_start": 0} | DOMAINBED,
    ],
    "agrsum": [{}],
    "agrrand": [{}],
    "cma": [
        ALIGN | PAPER,
        ALIGN | RELEASED | {"bias": True},
        ALIGN | DOMAINBED | {"over_outputs": False},
    ],
    "miro": [{"weight": 0.7, "rate_factor": 5.0}],
    "sagm": [{"rho": 0.3, "alpha": 0.1} | PAPER, {"rho": 0.3, "alpha": 0.1} | DOMAINBED],
}
"""Options under which algorithms meet their references, far from where penalties vanish."""


def described(options):
    return ",".join(f"{key}={value}" for key, value in options.items()) or "defaults"


EVERY_VARIANT = [
    pytest.param(name, options, id=f"{name}-{described(options)}")
    for name, variants in VARIANTS.items()
    for options in variants
]

# -------------------------------------------------------------------------------------- situations


SITUATIONS = {
    "three-domains": Situation((5, 4, 7), "cross_entropy"),
    "two-domains-one-logit": Situation((5, 4), "binary"),
    "one-class": Situation((4, 3), "cross_entropy", one_class=(0,)),
    "one-class-each-one-logit": Situation((3, 4, 2), "binary", "mlp", one_class=(0, 2)),
    "mlp-head": Situation((4, 5), "cross_entropy", "mlp"),
    "five-odd-domains": Situation((3, 2, 1, 5, 2), "cross_entropy", one_class=(3,)),
    "five-odd-domains-mlp": Situation((3, 2, 1, 5, 2), "binary", "mlp"),
    "one-domain": Situation((6,), "cross_entropy"),
    "one-domain-one-sample": Situation((1,), "binary"),
    "single-samples": Situation((1, 1), "cross_entropy"),
    "pairs-of-samples": Situation((2, 2), "binary", "mlp"),
    "images": Situation((3, 2), "cross_entropy", shape=(2, 3, 2)),
}

EVERY_SITUATION = pytest.mark.parametrize(
    "situation", [pytest.param(each, id=name) for name, each in SITUATIONS.items()]
)
EVERY_ALGORITHM = pytest.mark.parametrize("name", ALGORITHMS)


@dataclass
class Batches:
    """A given list of batches as a sampler."""

    batches: list[Batch]

    def draw(self):
        return self.batches.pop(0)

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


@dataclass
class Course:
    """What training was like: after each step all state and the reported terms."""

    states: list[dict] = field(default_factory=list)
    terms: list[dict] = field(default_factory=list)


def nothing_to_evaluate(network):
    return {}


def loop_config(algorithm, loss, **options):
    schedule = penalty_schedule(algorithm.config)
    usual = {"steps": STEPS, "weight_decay": DECAY, "schedule": schedule, "evaluate_every": 1}
    return LoopConfig(learning_rate=RATE, loss=loss, **usual | options)


def run(name, options, situation, draws=None, **loop):
    """Train for three steps in double precision; also the algorithm as it was at the start."""
    setting = situation.setting()
    algorithm = make_algorithm(name, options, setting)
    start = copy.copy(algorithm)
    start._modules = copy.deepcopy(algorithm._modules)
    start._parameters = copy.deepcopy(algorithm._parameters)
    batches = Batches([situation.batch(number) for number in range(STEPS)])
    config, course = loop_config(algorithm, situation.loss, **loop), Course()
    if draws is not None:
        draws.queues.clear()
        draws.source = setting.generator

    def report(record):
        course.states.append(copy.deepcopy(algorithm.state_dict()))
        course.terms.append(dict(record.terms))

    train(algorithm, batches, nothing_to_evaluate, config, setting.generator, report=report)
    if draws is not None:
        draws.source = None
    return start, course


@pytest.fixture
def draws(monkeypatch):
    """Everything an algorithm draws from its generator, apart from seeds of other generators."""
    recorded = Draws()

    def record(owner, function, kind):
        draw = getattr(owner, function)

        def recording(*args, **options):
            value = draw(*args, **options)
            wanted = recorded.source is not None
            wanted &= options.get("generator", recorded.source) is recorded.source
            if wanted and not (isinstance(value, torch.Tensor) and value.dim() == 0):
                recorded.add(kind, value)
            return value

        monkeypatch.setattr(owner, function, recording)

    record(torch, "randperm", "permutation")
    record(torch, "rand", "uniform")
    record(torch, "randint", "integers")
    record(torch, "randn", "normal")
    for module in (augmentations, pairs):
        record(module, "draw_beta", "beta")
    record(hutchinson, "_rademacher", "signs")
    return recorded


def domains_of(batch):
    return [(part.x, part.y) for part in batch.parts]


def run_reference(name, start, situation, draws):
    reference = REFERENCES[name](start, len(situation.sizes), situation.loss, RATE, DECAY, draws)
    course = Course()
    for number in range(STEPS):
        course.terms.append(reference.step(number, domains_of(situation.batch(number))))
        course.states.append(reference.state())
    return course


# ------------------------------------------------------------------------------------- equivalence


def assert_equals_its_definition(name, options, situation, draws):
    start, ours = run(name, options, situation, draws)
    theirs = run_reference(name, start, situation, draws)
    assert not draws.left, "the definition makes fewer draws than the algorithm"
    for number in range(STEPS):
        label = f"after step {number}"
        assert ours.terms[number].keys() == theirs.terms[number].keys()
        for term, expected in theirs.terms[number].items():
            assert ours.terms[number][term] == pytest.approx(expected, rel=1e-8, abs=1e-10), (
                f"{term} {label}"
            )
        assert ours.states[number].keys() == theirs.states[number].keys()
        for key, expected in theirs.states[number].items():
            torch.testing.assert_close(
                ours.states[number][key], expected, rtol=1e-7, atol=1e-9,
                msg=lambda text, key=key, label=label: f"{key} {label}: {text}",
            )  # fmt: skip


def what_meets(row):
    """Every algorithm with all that situations differ in; every variant with most of it."""
    name, options, situation = row["name"], row["options"], row["situation"]
    variant = (name, described(options))
    domains = len(situation.sizes)
    return {
        (name, "domains", domains),
        (name, "outputs", situation.loss, situation.head),
        (name, "one class", bool(situation.one_class)),
        (name, "one sample", 1 in situation.sizes),
        (name, "images", len(situation.shape) > 1),
        (variant, "loss", situation.loss),
        (variant, "head", situation.head),
        (variant, "several domains", domains > 1),
    }


def readings(row):
    """Every reading of an algorithm; other options of it are for the slow lane."""
    return {(row["name"], row["options"].get("fidelity"))}


EVERY_READING = pytest.mark.pairwise(meetings=readings)
ONE_READING = pytest.mark.pairwise(meetings=lambda row: {row["name"]})


@pytest.mark.pairwise(meetings=what_meets)
@EVERY_SITUATION
@pytest.mark.parametrize(("name", "options"), EVERY_VARIANT)
def test_equals_its_definition(name, options, situation, draws):
    assert_equals_its_definition(name, options, situation, draws)


@pytest.mark.parametrize(
    ("name", "options"),
    [("fish", each) for each in VARIANTS["fish"]]
    + [("arm", {"width": 5} | PAPER), ("arm", {"width": 5} | DOMAINBED), ("mldg", PAPER)],
)
def test_running_statistics_are_treated_as_defined(name, options, draws):
    """For methods that pass each domain through the network by itself, and for DomainBed's ARM.

    The others pass all domains at once, so batch normalisation mixes them; no definition speaks of
    that.
    """
    for shape in ((INPUTS,), (2, 3, 2)):
        situation = Situation((3, 2, 4), "cross_entropy", normalized=True, shape=shape)
        assert_equals_its_definition(name, options, situation, draws)


def test_every_algorithm_has_a_reference():
    """A new row needs its definition in `references.py` and its options in `VARIANTS`."""
    for table, where in ((REFERENCES, "references.py"), (VARIANTS, "VARIANTS")):
        assert set(table) == set(ALGORITHMS), (
            f"{where} lacks {sorted(set(ALGORITHMS) - set(table))} and has the unknown "
            f"{sorted(set(table) - set(ALGORITHMS))}"
        )


METRIC_OPTIONS = {"metric", "ridge", "conditional", "unbiased"}
"""Of alignment; `test_metrics_are_those_of_the_drop_in_penalty` has them."""


@EVERY_ALGORITHM
def test_the_variants_cover_every_choice(name):
    """Each name a configuration offers, and each option, is compared with the reference."""
    hints = get_type_hints(type(ALGORITHMS[name].config))
    for option, hint in hints.items():
        if get_origin(hint) is Literal and option not in METRIC_OPTIONS:
            used = {getattr(make_config(name, options), option) for options in VARIANTS[name]}
            assert used == set(get_args(hint)), option
    # What makes the row, and what has no definition.
    fixed = {"hessian", "random", "dropout"} | METRIC_OPTIONS
    if name != "cma":
        fixed |= {"bias", "over_outputs"}
    unused_by = {"gradient": {"alpha", "probes", "shared_probes"}}
    if name in {"hgp", "diagonal", "full", "cma"}:
        unused_by[name] = {"probes", "shared_probes"}
    changed = {option for options in VARIANTS[name] for option in options}
    assert set(hints) - changed - fixed - unused_by.get(name, set()) == set()


# ------------------------------------------------------------------------ finite and deterministic


EXTREME = ("one-class", "five-odd-domains-mlp", "one-domain-one-sample", "single-samples")


@pytest.mark.parametrize("extreme", EXTREME)
@EVERY_ALGORITHM
def test_everything_stays_finite_with_default_options(name, extreme):
    start, course = run(name, {}, SITUATIONS[extreme])
    for state, terms in zip(course.states, course.terms, strict=True):
        assert all(math.isfinite(value) for value in terms.values()), terms
        assert {"risk", "loss"} <= terms.keys()
        for key, value in state.items():
            assert bool(value.isfinite().all()), key
    # Nothing of the state came or went on the way, so a checkpoint of any step fits.
    assert start.state_dict().keys() == course.states[-1].keys()


def assert_same_states(ours, theirs):
    assert ours.keys() == theirs.keys()
    for key, value in ours.items():
        assert torch.equal(value, theirs[key]), key


@ONE_READING
@pytest.mark.parametrize(("name", "options"), EVERY_VARIANT)
def test_the_seed_decides(name, options):
    situation = SITUATIONS["five-odd-domains"]
    courses = []
    for global_seed in (1, 2):
        torch.manual_seed(global_seed)
        courses.append(run(name, options, situation)[1])
    assert courses[0].terms == courses[1].terms
    assert_same_states(courses[0].states[-1], courses[1].states[-1])


RANDOM = {
    "hutchinson": PROBED,
    "mixup": {},
    "mldg": {},
    "sagnet": {},
    "fish": {},
    "mtl": DOMAINBED,
    "dann": {},
    "cdann": {},
    "arm": {},
    "causirl_coral": {},
    "causirl_mmd": {},
    "mdan": {},
    "urm": {},
    "selfreg": {},
    "trm": {"transfer_start": 0, "head_steps": 2},
    "adrmx": {},
    "agrrand": {},
}
"""Algorithms with randomness of their own: in every step, or in the weights of a second network."""


@pytest.mark.parametrize(("name", "options"), RANDOM.items())
def test_another_seed_makes_another_run(name, options):
    """What the generator draws matters: else recording its draws would show nothing."""
    situation, finals = SITUATIONS["five-odd-domains"], []
    for seed in (1, 2):
        setting = dataclasses.replace(
            situation.setting(), generator=torch.Generator().manual_seed(seed)
        )
        algorithm = make_algorithm(name, options, setting)
        config = loop_config(algorithm, situation.loss)
        sampler = FullBatch(situation.batch(0))
        records = train(algorithm, sampler, nothing_to_evaluate, config, setting.generator)
        finals.append([record.terms for record in records])
    assert finals[0] != finals[1]


# ------------------------------------------------------- regularisation, frozen layers, regression


@ONE_READING
@pytest.mark.parametrize(("name", "options"), EVERY_VARIANT)
def test_the_l2_term_is_half_of_weight_decay(name, options):
    """The gradient of l2 ‖θ‖² is 2 l2 θ, whichever way an algorithm makes its gradients.

    So the loop's l2 term reaches every optimiser, also those of algorithms that own their step.
    """
    if (name, options.get("fidelity")) == ("mldg", "domainbed"):
        pytest.skip("its inner step knows of the optimiser's weight decay only")
    if (name, options.get("fidelity")) == ("adrmx", "domainbed"):
        pytest.skip("it has no weight decay")
    decayed, penalised = dict(options), dict(options)
    if name in {"dann", "cdann"}:  # they have decays of their own
        decayed |= {"discriminator_weight_decay": DECAY, "network_weight_decay": DECAY}
        penalised |= {"discriminator_weight_decay": 0.0, "network_weight_decay": 0.0}
    situation = SITUATIONS["three-domains"]
    _, expected = run(name, decayed, situation)
    _, found = run(name, penalised, situation, weight_decay=0.0, l2=DECAY / 2)
    torch.testing.assert_close(found.states[-1], expected.states[-1], rtol=1e-7, atol=1e-9)


def train_briefly(name, situation, batch, change_network=lambda network: None, **changes):
    """Two steps with default options; the algorithm before and after."""
    plain = situation.setting()

    def make_network(**sizes):
        network = plain.make_network(**sizes)
        change_network(network)
        return network

    setting = dataclasses.replace(plain, make_network=make_network, **changes)
    options = {"probe_steps": 0} if name == "ermplusplus" else {}
    algorithm = make_algorithm(name, options, setting)
    before = copy.deepcopy(algorithm.network.state_dict())
    config = loop_config(algorithm, setting.loss, steps=2)
    train(algorithm, FullBatch(batch), nothing_to_evaluate, config, setting.generator)
    return before, algorithm.network.state_dict()


@EVERY_ALGORITHM
def test_frozen_layers_stay_as_they_are(name):
    situation = Situation((4, 3), "cross_entropy", "mlp")

    def freeze(network):
        network.featurizer[1].requires_grad_(False)
        network.head[0].bias.requires_grad_(False)

    before, after = train_briefly(name, situation, situation.batch(0), freeze)
    frozen = [key for key in before if key.endswith("head.0.bias") or "featurizer.1." in key]
    if name == "arm":  # its own context network is not frozen
        frozen = [key for key in frozen if "context" not in key]
    assert len(frozen) == 3
    for key, value in before.items():
        assert torch.equal(value, after[key]) == (key in frozen), key


NEEDS_CLASSES = {"cdann", "sagnet", "rsc", "cad", "condcad", "selfreg", "adrmx"}


@EVERY_ALGORITHM
def test_regression_is_trained_or_refused(name):
    situation = Situation((4, 3), "binary")
    batch = situation.batch(0)
    batch = Batch(batch.x, batch.x.sum(1), batch.domain)
    if name in NEEDS_CLASSES:
        with pytest.raises(ValueError, match="Expected a loss of classification, got 'squared'"):
            train_briefly(name, situation, batch, loss="squared")
        return
    before, after = train_briefly(name, situation, batch, loss="squared")
    assert all(bool(value.isfinite().all()) for value in after.values())
    assert any(not torch.equal(value, after[key]) for key, value in before.items())


# --------------------------------------------------------------------------- checkpoint and resume


class StoppedError(Exception):
    """What ends a run in the middle."""


def make_resumable(name, options, seed):
    """Algorithm, sampler and generator; the network also has dropout and running statistics."""

    def make_network(*, extra_channels=0, head_factor=1):
        body = nn.Sequential(
            nn.Linear(INPUTS + extra_channels, FEATURES),
            nn.BatchNorm1d(FEATURES),
            nn.Dropout(0.3),
        )
        return Network(body, nn.Linear(head_factor * FEATURES, 3))

    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    setting = Setting(make_network, 3, 3, "cross_entropy", 6, generator, input_shape=(INPUTS,))
    algorithm = make_algorithm(name, options, setting)
    parts = [SITUATIONS["three-domains"].batch(number) for number in range(3)]
    x, y = [part.x.float() for part in parts], [part.y for part in parts]
    return algorithm, Minibatches(x, y, batch_size=4, seed=seed), generator


def train_in(folder, name, options, seed, stop_at=None):
    algorithm, sampler, generator = make_resumable(name, options, seed)
    warnings = []

    def report(record):
        if record.step == stop_at:
            raise StoppedError

    def evaluate(network):
        return {"test_loss": network(torch.ones(2, INPUTS)).mean()}

    config = loop_config(algorithm, "cross_entropy", steps=6, checkpoint_every=3)
    identity = {"algorithm": name, **options}
    with RunFolder(folder, identity, warnings.append) as run_folder:
        records = train(algorithm, sampler, evaluate, config, generator, run_folder, report)
    assert warnings == []
    return algorithm.state_dict(), [
        (record.step, record.terms, record.metrics) for record in records
    ]


RESUMED = [
    *(each for each in EVERY_VARIANT if "shared_probes" not in each.values[1]),
    pytest.param("dann", {"dropout": 0.4, "width": 5}, id="dann-dropout"),
    pytest.param("irm", {"anneal_steps": 3}, id="irm-stopped-at-the-jump"),
    pytest.param("fishr", {"anneal_steps": 4}, id="fishr-stopped-before-the-jump"),
]


@EVERY_READING
@pytest.mark.parametrize(("name", "options"), RESUMED)
def test_resuming_equals_going_on(name, options, tmp_path):
    """Stopped after three of six steps and continued by objects made from another seed.

    Nothing of those may be left: all that matters has to be in the checkpoint.
    """
    whole, records = train_in(tmp_path / "whole", name, options, seed=1)
    with pytest.raises(StoppedError):
        train_in(tmp_path / "parts", name, options, seed=1, stop_at=3)
    resumed, resumed_records = train_in(tmp_path / "parts", name, options, seed=2)
    assert_same_states(whole, resumed)
    assert records == resumed_records
    assert [step for step, _, _ in records] == list(range(6))


# ----------------------------------------------------------------------- configurations and the row

OUT_OF_RANGE = {
    "erm": [],
    "irm": [("penalty_weight", -1.0), ("anneal_steps", -1), ("fidelity", "released")],
    "vrex": [("penalty_weight", math.inf), ("anneal_steps", -1), ("fidelity", "cmnist")],
    "fishr": [("penalty_weight", math.nan), ("anneal_steps", -5), ("ema", 1.0), ("ema", -0.1)],
    "gradient": [("beta", -1.0), ("beta", 0.0), ("fidelity", "cmnist")],
    "hgp": [("alpha", -1.0), ("beta", math.nan), ("hessian", "exact")],
    "hutchinson": [("probes", 0), ("probes", 1.5), ("shared_probes", 1)],
    "expected": [("probes", -3), ("alpha", math.inf)],
    "diagonal": [("alpha", "much"), ("fidelity", "exact")],
    "full": [("beta", -math.inf), ("hessian", "Full")],
    "groupdro": [("eta", -1.0), ("eta", math.nan)],
    "mixup": [("alpha", 0.0), ("alpha", -1.0), ("fidelity", "released")],
    "mldg": [("beta", -1.0), ("meta_test_domains", 0), ("inner_lr", -0.1), ("fidelity", "Paper")],
    "coral": [("penalty_weight", -1.0), ("fidelity", "released")],
    "mmd": [("penalty_weight", -1.0), ("penalty_weight", math.nan)],
    "dann": [
        ("weight", -1.0), ("gradient_penalty", -1.0), ("discriminator_steps", 0), ("width", 0),
        ("depth", 1), ("dropout", 1.0), ("beta1", 1.0), ("network_lr", -1.0),
        ("network_weight_decay", -1.0), ("discriminator_lr", math.inf),
        ("discriminator_weight_decay", -1.0),
    ],
    "cdann": [("weight", math.nan), ("depth", 2.0), ("fidelity", "released")],
    "mtl": [("ema", 0.0), ("ema", 1.1), ("fidelity", "released")],
    "sagnet": [("adversary_weight", -1.0), ("fidelity", "released")],
    "arm": [("channels", 0), ("width", -1), ("fidelity", "released")],
    "rsc": [("feature_drop", -0.1), ("feature_drop", 1.1), ("batch_drop", 2.0)],
    "andmask": [("tau", -0.1), ("tau", 1.1), ("fidelity", "released")],
    "sandmask": [("tau", 1.1), ("tau", math.nan), ("k", 0.0)],
    "fish": [("meta_lr", 0.0), ("meta_lr", 1.1), ("fidelity", "released")],
    "iga": [("penalty_weight", -1.0), ("fidelity", "released")],
    "sd": [("penalty_weight", -1.0), ("fidelity", "released")],
    "eqrm": [("quantile", 0.0), ("quantile", 1.0), ("burn_in_steps", -1.0), ("late_lr", -1.0)],
    "rdm": [("matching_weight", -1.0), ("variance_weight", math.nan), ("anneal_steps", 1.5)],
    "ib_erm": [("penalty_weight", -1.0), ("anneal_steps", -1)],
    "ib_irm": [("irm_weight", -1.0), ("ib_weight", math.inf), ("ib_anneal_steps", -1)],
    "cad": [("temperature", 0.0), ("penalty_weight", -1.0)],
    "condcad": [("conditional", "yes"), ("fidelity", "released")],
    "causirl_coral": [("penalty_weight", -1.0), ("fidelity", "released")],
    "causirl_mmd": [("penalty_weight", math.nan)],
    "ddc": [("penalty_weight", -0.25)],
    "mdan": [("weight", -1.0), ("gamma", 0.0)],
    "urm": [("weight", -1.0), ("hidden_layers", -1), ("discriminator_lr", -1.0)],
    "selfreg": [("fidelity", "released")],
    "trm": [("weight", -1.0), ("transfer_start", -1), ("eta", math.inf), ("head_steps", 0)],
    "transfer": [("weight", -1.0), ("delta", -1.0), ("ascent_steps", 0), ("ascent_lr", math.nan)],
    "adrmx": [
        ("contrast_weight", -1.0), ("domain_weight", -1.0), ("adversary_weight", math.nan),
        ("remix_weight", -1.0), ("discriminator_steps", 0), ("beta1", 1.0), ("width", 0),
        ("depth", 1), ("dropout", 1.0), ("fidelity", "released"),
    ],
    "ermplusplus": [("probe_steps", -1), ("probe_lr", -1.0), ("sma_start", 1.5)],
    "agrsum": [("random", 1)],
    "agrrand": [("random", "yes")],
    "cma": [("alpha", -1.0), ("bias", 1), ("over_outputs", "yes")],
    "miro": [("weight", -1.0), ("rate_factor", math.inf)],
    "sagm": [("rho", -1.0), ("alpha", math.nan), ("fidelity", "released")],
}  # fmt: skip
"""Values that a configuration has to refuse when it is made, with the option's name in the text."""


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [(name, *each) for name, bad in OUT_OF_RANGE.items() for each in bad],
)
def test_values_out_of_range_are_refused(name, option, value):
    text = rf"(Expected|Unknown) .*{option}.* got {re.escape(repr(value))}"
    if isinstance(value, str) and option in {"fidelity", "hessian"}:
        text = rf"Unknown {option}.* '{value}'. Expected one of: .*'"
    elif (name, option, value) == ("gradient", "beta", 0.0):
        text = "Expected something to align, but the weights of both terms are 0"
    with pytest.raises(ValueError, match=text):
        make_config(name, {option: value})


def test_every_configuration_was_given_bad_values():
    assert set(OUT_OF_RANGE) == set(ALGORITHMS)
    for name, bad in OUT_OF_RANGE.items():
        assert bad or not dataclasses.fields(ALGORITHMS[name].config), name


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if ALGORITHMS[name].search])
def test_search_spaces_name_options(name):
    row = ALGORITHMS[name]
    options = {each.name for each in dataclasses.fields(row.config)}
    assert set(row.search) <= options
    assert set(row.search_small) <= set(row.search)


@EVERY_ALGORITHM
def test_the_row_is_complete(name):
    row = ALGORITHMS[name]
    assert row.name == name == name.lower()
    for text in (row.title, row.aligns, row.reference):
        assert text.strip() == text != ""
    assert dataclasses.is_dataclass(row.config)
    assert row.config.__dataclass_params__.frozen
    assert issubclass(row.make, AbstractAlgorithm)
    assert row.make.__doc__, "the class's docstring is the method's definition"
    module = __import__(row.make.__module__, fromlist=["__doc__"])
    assert module.__doc__, "the module's docstring says what its methods have in common"
    assert make_config(name, dict(row.released)) is not None
