"""How features are computed: precision, layout, compilation, and what of it is whose identity.

Here are no bfloat16 products: they are tried on tensors without numbers.
"""

import json

import pytest
import torch
from tests.sweep_jobs import make_jobs, results, write_bank
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from hessalign import load
from hessalign.bench.algorithms import (
    ALGORITHMS,
    AbstractObjective,
    DivergedError,
    Step,
    make_algorithm,
)
from hessalign.bench.algorithms.options import penalty_schedule
from hessalign.bench.models import Network
from hessalign.bench.runs import FullBatch, LoopConfig, RunFolder, computing, train
from hessalign.bench.runs.computing import Computing, computed
from hessalign.bench.runs.job import Job
from hessalign.bench.runs.loop import start_optimizers, update
from hessalign.bench.runs.plan import plan_job
from hessalign.bench.runs.run import train_job
from hessalign.bench.sweep.specification import make_specification
from hessalign.testing import Situation

SITUATION = Situation((5, 4, 6), "cross_entropy", dtype=torch.float32)
IMAGES = Situation((4, 4, 4), "cross_entropy", shape=(2, 3, 3), dtype=torch.float32)
USUAL = Computing()


def of_kind(name, options=None, situation=SITUATION, seed=0):
    return make_algorithm(name, options or {}, situation.setting(seed))


def config_of(algorithm, **loop):
    schedule = penalty_schedule(algorithm.config)
    usual = {"optimizer": "sgd", "momentum": 0.0, "schedule": schedule}
    return LoopConfig(3, 0.1, "cross_entropy", **usual | loop)


def trained(algorithm, precision=32, how=USUAL, warn=print, steps=1, situation=SITUATION):
    """The parameters after some steps."""
    config = config_of(algorithm)
    with computed(algorithm, precision, how, warn):
        optimizers = start_optimizers(algorithm, config)
        for number in range(steps):
            step = Step(algorithm.network, situation.batch(number), number, "cross_entropy")
            update(algorithm, step, optimizers, config)
    return torch.cat([each.detach().flatten() for each in algorithm.network.parameters()])


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_only_the_featurizer_meets_float16(name):
    algorithm, met = of_kind(name), {"featurizer": [], "head": []}
    network = getattr(algorithm, "trained", algorithm.network)  # another is its average
    for part, seen in met.items():
        module = getattr(network, part)
        module.register_forward_pre_hook(
            lambda _, inputs, seen=seen: seen.append(
                (torch.is_autocast_enabled("cpu"), inputs[0].dtype)
            )
        )
    products = []
    linear = next(each for each in network.featurizer.modules() if type(each) is nn.Linear)
    linear.register_forward_hook(lambda *given: products.append(given[-1].dtype))
    trained(algorithm, "fp16")
    assert {enabled for enabled, _ in met["featurizer"]} == {True}
    assert set(met["head"]) == {(False, torch.float32)}
    assert set(products) == {torch.float16}
    assert not torch.is_autocast_enabled("cpu")
    assert algorithm.network.compute is None
    assert not any("gradient_scale" in key for key in algorithm.state_dict())


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("erm", {}),
        ("andmask", {"tau": 0.0}),
        ("fish", {}),
        ("mldg", {"fidelity": "domainbed"}),
        ("sagnet", {}),
        ("arm", {"fidelity": "domainbed"}),
        ("full", {"alpha": 0.01, "beta": 0.01}),
    ],
)
def test_every_kind_moves_as_in_float32(name, options):
    """Gradients come out as they are, whatever factor they had on the way."""
    before = torch.cat([p.detach().flatten() for p in of_kind(name, options).network.parameters()])
    exact, half = (trained(of_kind(name, options), precision) for precision in (32, "fp16"))
    assert not torch.equal(exact, half)
    assert (half - exact).norm() < 3e-3 * (exact - before).norm()


class Tiny(AbstractObjective):
    """A loss whose gradients float16 cannot hold."""

    size = 1e-9

    def terms(self, step):
        from hessalign.bench.algorithms import ObjectiveTerms

        return ObjectiveTerms(self.size * step.z.sum())


def test_small_gradients_survive():
    algorithm = Tiny(None, SITUATION.setting())
    batch = SITUATION.batch(0)
    with computed(algorithm, "fp16", USUAL, print):
        algorithm.terms(Step(algorithm.network, batch, 0, "cross_entropy")).risk.backward()
    found = algorithm.network.featurizer[1].bias.grad.clone()
    algorithm.zero_grad()
    algorithm.terms(Step(algorithm.network, batch, 0, "cross_entropy")).risk.backward()
    exact = algorithm.network.featurizer[1].bias.grad
    assert float(exact.abs().max()) < 2e-8  # nothing of it is left in float16
    torch.testing.assert_close(found, exact, rtol=5e-3, atol=1e-12)


def test_gradients_of_inputs_are_as_they_are():
    network, x = SITUATION.setting().make_network(), SITUATION.batch(0).x.requires_grad_()
    holder = Tiny(None, SITUATION.setting())
    holder.network = network
    (exact,) = torch.autograd.grad(network.features(x).mean(), x)
    with computed(holder, "fp16", USUAL, print):
        (found,) = torch.autograd.grad(network.features(x).mean(), x)
        with torch.no_grad():
            assert not network.features(x).requires_grad
    torch.testing.assert_close(found, exact, rtol=1e-2, atol=1e-3)


def test_an_overflow_leaves_the_step_out_and_halves_the_factor(monkeypatch):
    monkeypatch.setattr(computing, "_STEPS_TO_GROWTH", 2)
    algorithm = Tiny(None, SITUATION.setting())
    config = config_of(algorithm, optimizer="adam", momentum=LoopConfig.momentum)
    with computed(algorithm, "fp16", USUAL, print):
        optimizers = start_optimizers(algorithm, config)
        factors = []
        for number, size in enumerate((1e3, 1e-3, 1e-3, 1e-3)):
            algorithm.size = size
            before = [each.detach().clone() for each in algorithm.parameters()]
            step = Step(algorithm.network, SITUATION.batch(0), number, "cross_entropy")
            update(algorithm, step, optimizers, config)
            same = [*map(torch.equal, before, algorithm.parameters())]
            assert all(same) if number == 0 else not all(same)
            factors.append(algorithm.gradient_scale.factor)
        moved = [each["step"] for each in optimizers["main"].state.values()]
    assert factors == [2.0**15, 2.0**15, 2.0**16, 2.0**16]
    assert moved
    assert {float(each) for each in moved} == {3.0}  # Adam has seen three


def test_what_is_not_finite_however_scaled_ends_the_run():
    algorithm = Tiny(None, SITUATION.setting())
    algorithm.size = float("inf")
    config = config_of(algorithm)
    with computed(algorithm, "fp16", USUAL, print):
        optimizers = start_optimizers(algorithm, config)

        def once():
            step = Step(algorithm.network, SITUATION.batch(0), 7, "cross_entropy")
            update(algorithm, step, optimizers, config)

        for _ in range(16):
            once()
        with pytest.raises(DivergedError, match="not finite at step 7, however they are scaled"):
            once()


@pytest.mark.parametrize("name", ["erm", "dann", "andmask"])
def test_a_restart_goes_on_with_the_factor(name, tmp_path, monkeypatch):
    monkeypatch.setattr(computing, "_STEPS_TO_GROWTH", 3)
    monkeypatch.setattr(computing, "_FIRST_FACTOR", 2.0)

    def run(folder=None, stop=None, seed=0):
        algorithm = of_kind(name, seed=seed)
        config = config_of(algorithm, evaluate_every=1, checkpoint_every=1)

        def report(record):
            if record.step == stop:
                raise KeyboardInterrupt

        sampler = FullBatch(SITUATION.batch(0))
        with computed(algorithm, "fp16", USUAL, print):
            generator = algorithm.generator
            train(algorithm, sampler, lambda network: {}, config, generator, folder, report)
            return algorithm.gradient_scale.factor, algorithm.network.state_dict()

    factor, whole = run()
    with pytest.raises(KeyboardInterrupt), RunFolder(tmp_path, {}, print) as folder:
        run(folder, stop=1)
    with RunFolder(tmp_path, {}, print) as folder:
        continued = run(folder, seed=1)
    assert factor == continued[0] == 4.0
    assert all(torch.equal(value, continued[1][key]) for key, value in whole.items())


@pytest.mark.parametrize(("precision", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.half)])
def test_precisions_where_there_are_no_numbers(precision, dtype):
    holder = Tiny(None, SITUATION.setting())
    with FakeTensorMode():
        holder.network = Network(nn.Sequential(nn.Linear(3, 4), nn.ReLU()), nn.Linear(4, 3))
        seen = []
        holder.network.featurizer.register_forward_hook(lambda *given: seen.append(given[-1].dtype))
        with computed(holder, precision, USUAL, print):
            z = holder.network.features(torch.randn(5, 3))
            z.sum().backward()
        assert seen == [dtype]
        assert z.dtype == torch.float32
        assert holder.network.featurizer[0].weight.grad.dtype == torch.float32


class Convolution(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU())
        self.strides = []

    def forward(self, x):
        self.strides.append(x.is_contiguous(memory_format=torch.channels_last))
        return self.layers(x).mean((2, 3))


def test_channels_come_last_in_inputs_and_weights_for_a_while():
    def convolved():
        algorithm = of_kind("erm", situation=IMAGES)
        algorithm.network = Network(Convolution(), nn.Linear(4, 3))
        return algorithm

    torch.manual_seed(0)
    plain = trained(convolved(), steps=2, situation=IMAGES)
    torch.manual_seed(0)
    algorithm = convolved()
    found = trained(algorithm, how=Computing(channels_last=True), steps=2, situation=IMAGES)
    torch.testing.assert_close(found, plain)
    assert algorithm.network.featurizer.strides == [True, True]
    assert all(each.is_contiguous() for each in algorithm.network.parameters())


def test_where_nothing_can_be_compiled_the_run_goes_on(monkeypatch):
    from torch._dynamo.exc import TorchDynamoException

    def broken(*_):
        raise TorchDynamoException("no compiler\nand more")

    monkeypatch.setattr(torch, "compile", lambda module: broken)
    said = []
    found = trained(of_kind("erm"), how=Computing(compile=True), warn=said.append, steps=2)
    assert torch.equal(found, trained(of_kind("erm"), steps=2))
    assert said == ["Not compiled, the run goes on without: no compiler"]


@pytest.mark.parametrize("name", ["iga", "mldg"])
def test_what_differentiates_twice_is_not_compiled(name):
    said = []
    found = trained(of_kind(name), how=Computing(compile=True), warn=said.append)
    assert torch.equal(found, trained(of_kind(name)))
    assert "differentiates twice" in said[0]


@pytest.mark.slow
@pytest.mark.parametrize("precision", [32, "fp16"])
@pytest.mark.parametrize("name", ["erm", "andmask", "fish", "arm"])
def test_compiled_features_are_the_same(name, precision, monkeypatch):
    from functools import partial

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    said = []
    options = {"fidelity": "domainbed"} if name == "arm" else {}
    found = trained(
        of_kind(name, options), precision, Computing(compile=True), said.append, steps=2
    )
    torch.testing.assert_close(found, trained(of_kind(name, options), precision, steps=2))
    assert said == []


COMPILED = """
import torch
from hessalign.bench.algorithms import make_algorithm, Step
from hessalign.bench.runs.computing import Computing, computed
from hessalign.testing import Situation

situation = Situation((5, 4, 6), "cross_entropy", dtype=torch.float32)
algorithm = make_algorithm("erm", {}, situation.setting())
plain = algorithm.network(situation.batch(0).x)
with computed(algorithm, 32, Computing(compile=True), print):
    torch.testing.assert_close(algorithm.network(situation.batch(0).x), plain)
print("the same")
"""


@pytest.mark.slow
@pytest.mark.parametrize("compiler", [True, False])
def test_with_and_without_a_compiler(compiler, python, monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    if not compiler:
        monkeypatch.setenv("CXX", "nowhere")
    printed = python(COMPILED)
    assert printed.endswith("the same\n")
    assert printed.startswith("Not compiled, the run goes on without: ") != compiler


# ------------------------------------------------------------------------- what a run is


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_bank(tmp_path_factory.mktemp("data"))


def test_precision_is_a_part_of_a_run_and_recorded(data, tmp_path):
    (job,) = make_jobs(data, 1)
    half = Job(**{**vars(job), "hparams": json.dumps({"hidden": 4, "precision": "fp16"})})
    plain = Job(**{**vars(job), "hparams": json.dumps({"hidden": 4})})
    assert half.folder != plain.folder
    assert json.loads(plain.hparams) == {"hidden": 4}
    for each in (half, plain):
        train_job(each, tmp_path / each.folder, keep_model=True)
    found = results(tmp_path, [half, plain])
    assert found[half.folder][-1]["hparams"]["precision"] == "fp16"
    assert "precision" not in found[plain.folder][-1]["hparams"]
    assert load(tmp_path / half.folder).network.compute is None


def test_what_changes_speed_alone_is_not(data, tmp_path):
    (job,) = make_jobs(data, 1)
    usual = {"datasets": ["bank"], "algorithms": ["erm"]}
    spec = make_specification({**usual, "overrides": {"lr": 0.1}})
    fast = {"lr": 0.1, "compile": True, "workers": 3, "channels_last": True}
    other = make_specification({**usual, "overrides": fast})
    assert other.hparams == spec.hparams == '{"lr": 0.1}'
    assert other.protocol == spec.protocol
    assert other.computing == Computing(compile=True, workers=3, channels_last=True)
    assert "workers: 3" in other.to_yaml()
    for name, how in (("a", USUAL), ("b", Computing(channels_last=True, workers=1))):
        train_job(job, tmp_path / name / job.folder, computing=how)
    assert results(tmp_path / "a", [job]) == results(tmp_path / "b", [job])


@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        ({"workers": -1}, "Expected workers of 0 or more, got -1"),
        ({"compile": "yes"}, "Expected compile as true or false, got 'yes'"),
    ],
)
def test_what_cannot_be_is_refused(overrides, text):
    with pytest.raises(ValueError, match=text):
        make_specification({"datasets": "x", "algorithms": "erm", "overrides": overrides})


@pytest.mark.parametrize(
    ("algorithm", "options", "text"),
    [
        ("ERM", {"precision": 16}, r"Unknown precision 16\. Expected one of: 32, 'bf16', 'fp16'"),
        ("IGA", {"precision": "fp16"}, "Expected precision=32 or bf16 for IGA, which"),
        ("MLDG", {"precision": "fp16"}, "differentiates the network twice"),
    ],
)
def test_precisions_that_cannot_be_are_refused(algorithm, options, text, data):
    job = Job("bank", algorithm, (0,), 0, 0, str(data), steps=3, hparams=json.dumps(options))
    with pytest.raises(ValueError, match=text):
        plan_job(job)


def test_first_order_mldg_has_float16(data):
    options = json.dumps({"precision": "fp16", "fidelity": "domainbed"})
    job = Job("bank", "MLDG", (0,), 0, 0, str(data), steps=3, hparams=options)
    assert plan_job(job).precision == "fp16"
