"""Averages of weights, against their definitions and against SWAD's Algorithm 1 written out."""

import json
import random

import pytest
import torch
from safetensors.torch import load_file
from tests.colored import colored_job
from tests.sweep_jobs import write_bank
from torch import nn

import hessalign as ha
from hessalign._errors import InputError, UnknownNameError
from hessalign.bench.algorithms import ALGORITHMS, make_algorithm
from hessalign.bench.models import FrozenBatchNorm, Network
from hessalign.bench.runs import (
    FullBatch,
    Job,
    LoopConfig,
    Minibatches,
    run_folder,
    train,
    train_job,
)
from hessalign.bench.runs.averaging import (
    AverageOptions,
    LossValley,
    Mean,
    RunningAverage,
    averaged,
    install,
)
from hessalign.testing import Situation

SITUATION = Situation((5, 4, 3), "cross_entropy")
STEPS = 6


# --- SWAD ----------------------------------------------------------------------------------------


def algorithm_1(losses, patience_start, patience_end, rate):
    """First and last evaluation of the valley, from 1, as the paper's Algorithm 1 finds them."""
    total = len(losses)
    val = dict(enumerate(losses, 1))
    t_s, t_e, threshold = 0, total, None
    for i in range(1, total + 1):
        if threshold is None:
            if i - patience_start + 1 < 1:
                continue
            window = [val[i - back] for back in range(patience_start)]
            if val[i - patience_start + 1] == min(window):
                t_s = i - patience_start + 1
                threshold = rate / patience_start * sum(window)
        elif threshold < min(val[i - back] for back in range(patience_end) if i - back >= 1):
            t_e = i - patience_end
            break
    return t_s, t_e


def curves(count):
    """Validation losses of many shapes: walks, valleys, stairs with ties, and descents."""
    source = random.Random(0)
    for number in range(count):
        length = source.randint(1, 30)
        kind = number % 4
        if kind == 0:
            losses = [2.0]
            for _ in range(length - 1):
                losses.append(max(0.05, losses[-1] + source.gauss(0, 0.3)))
        elif kind == 1:
            bottom = source.uniform(0, length)
            losses = [
                0.5 + 0.02 * (each - bottom) ** 2 + source.random() / 9 for each in range(length)
            ]
        elif kind == 2:
            losses = [float(source.randint(1, 3)) for _ in range(length)]
        else:
            losses = [1 / (each + 1) for each in range(length)]
        yield (
            losses,
            source.randint(1, 5),
            source.randint(1, 7),
            source.choice([0.0, 0.1, 0.3, 1.0]),
        )


def tiny_network():
    return Network(nn.Linear(2, 3).double(), nn.Linear(3, 2).double())


def flat(tensors):
    return torch.cat([each.detach().flatten() for each in tensors])


def test_swad_is_algorithm_1():
    network, generator = tiny_network(), torch.Generator().manual_seed(0)
    seen = {"never began": 0, "ended": 0, "went on": 0}
    for losses, converge, tolerance, ratio in curves(160):
        valley = LossValley(converge, tolerance, ratio)
        segments, step = [], 0
        for loss in losses:
            segments.append([])
            for _ in range(1 + int(torch.randint(4, (), generator=generator))):
                with torch.no_grad():
                    for each in network.parameters():
                        each.copy_(torch.randn(each.shape, generator=generator))
                segments[-1].append(flat(network.parameters()))
                valley.add(step, network)
                step += 1
            valley.judge({"validation_loss": loss})
        t_s, t_e = algorithm_1(losses, converge, tolerance, 1 + ratio)
        kept = [each for segment in segments[max(t_s, 1) - 1 : t_e] for each in segment]
        mean = valley.mean()
        assert mean.weight == len(kept)
        torch.testing.assert_close(flat(mean.tensors), torch.stack(kept).mean(0))
        held = len(valley.open) + 2
        assert held <= max(converge, tolerance) + 1
        seen["never began" if t_s == 0 else "ended" if t_e < len(losses) else "went on"] += 1
    assert min(seen.values()) > 12, seen


def test_swad_says_what_it_lacks():
    with pytest.raises(InputError, match="measure 'validation_loss'"):
        LossValley(3, 6, 0.3).judge({"accuracy": 0.5})


def test_an_evaluation_before_the_first_update_does_not_count():
    valley = LossValley(1, 1, 0.0)
    valley.judge({"validation_loss": 0.1})
    assert valley.losses == []
    assert valley.mean().weight == 0


# --- in the loop ---------------------------------------------------------------------------------


def trained(name="erm", situation=SITUATION, steps=STEPS, sampler=None, **averaging):
    """Train; the algorithm, the parameters after each step, and the records."""
    setting = situation.setting()
    algorithm = make_algorithm(name, {}, setting)
    config = LoopConfig(steps, 0.05, situation.loss, evaluate_every=1, **averaging)
    iterates = []

    def evaluate(network):
        iterates.append(flat(network.parameters()).clone())
        return {"validation_loss": float(iterates[-1].square().mean())}

    sampler = sampler or FullBatch(situation.batch(0))
    records = train(algorithm, sampler, evaluate, config, setting.generator)
    return algorithm, iterates, records


@pytest.mark.parametrize("name", ALGORITHMS)
def test_uniform_is_the_mean_of_the_iterates_of_every_algorithm(name):
    plain, iterates, _ = trained(name)
    algorithm, _, _ = trained(name, average="uniform", average_start=2)
    expected = torch.stack(iterates[2:]).mean(0)
    torch.testing.assert_close(flat(algorithm.network.parameters()), expected)
    for ours, theirs in zip(algorithm.network.buffers(), plain.network.buffers(), strict=True):
        assert torch.equal(ours, theirs)  # those of the last iterate


def test_ema_follows_its_definition():
    _, iterates, _ = trained()
    algorithm, _, _ = trained(average="ema", average_decay=0.7, average_start=1)
    expected = iterates[1]
    for each in iterates[2:]:
        expected = 0.7 * expected + 0.3 * each
    torch.testing.assert_close(flat(algorithm.network.parameters()), expected)


def test_by_default_uniform_begins_halfway_and_ema_at_once():
    halfway, at_once = (AverageOptions(average=rule).make_average(9) for rule in ("uniform", "ema"))
    assert isinstance(halfway, RunningAverage)
    assert (halfway.start, at_once.start) == (4, 0)
    assert AverageOptions().make_average(9) is None
    assert isinstance(AverageOptions(average="swad").make_average(9), LossValley)


@pytest.mark.parametrize(
    "options",
    [
        {"average": "ema", "average_start": 2},
        {"average": "swad", "n_converge": 1, "n_tolerance": 2},
        {"average": "uniform", "average_start": 2},
    ],
)
def test_training_and_its_records_are_those_without_an_average(options):
    _, iterates, plain = trained()
    _, both, records = trained(**options)
    for ours, theirs in zip(records, plain, strict=True):
        assert dict(ours.terms) == dict(theirs.terms)
        name = "validation_loss"
        assert ours.metrics[name] == theirs.metrics[name]
        assert set(ours.metrics) == {name, f"avg_{name}"}
    for each in iterates:  # each was met, and averages beside them
        assert any(torch.equal(each, other) for other in both)
    assert any(all(not torch.equal(each, other) for each in iterates) for other in both)


def test_what_is_measured_of_the_average_is_of_the_average():
    _, iterates, _ = trained()
    _, _, records = trained(average="uniform", average_start=2)
    for number, record in enumerate(records):
        mean = torch.stack(iterates[2 : number + 1]).mean(0) if number >= 2 else iterates[number]
        expected = float(mean.square().mean())
        assert record.metrics["avg_validation_loss"] == pytest.approx(expected)


# --- batch normalisation -------------------------------------------------------------------------


def test_statistics_of_batch_normalisation_are_those_of_training_inputs():
    situation = Situation((64, 64), "cross_entropy", normalized=True)
    batch = situation.batch(3)
    algorithm, _, _ = trained("erm", situation, average="uniform", sampler=FullBatch(batch))
    body = algorithm.network.featurizer
    with torch.no_grad():
        entering = body[:-1](batch.x)  # of the averaged weights
    norm = body[-1]
    torch.testing.assert_close(norm.running_mean, entering.mean(0))
    torch.testing.assert_close(norm.running_var, entering.var(0))
    assert norm.momentum == 0.1
    assert algorithm.network.training


def sampler_of(seed):
    source = torch.Generator().manual_seed(0)
    x = [torch.randn(9, 4, generator=source), 3 + torch.randn(7, 4, generator=source)]
    return Minibatches(x, [torch.zeros(9).long(), torch.ones(7).long()], 5, seed)


def test_statistics_are_taken_without_moving_the_sampler_or_the_randomness():
    frozen = FrozenBatchNorm(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)))
    body = nn.Sequential(frozen, nn.BatchNorm1d(4), nn.Dropout(0.5))
    network, sampler = Network(body, nn.Linear(4, 2)).train(), sampler_of(1)
    mean = Mean()
    mean.add(list(network.parameters()))
    before, state = sampler.state_dict(), torch.get_rng_state()
    kept = {name: value.clone() for name, value in network.state_dict().items()}
    with averaged(network, mean, sampler):
        assert not torch.equal(network.featurizer[1].running_mean, torch.zeros(4))
        assert torch.equal(frozen.inner[1].running_mean, torch.zeros(4))
    assert all(torch.equal(value, kept[name]) for name, value in network.state_dict().items())
    assert torch.equal(sampler.state_dict()["generator"], before["generator"])
    assert torch.equal(torch.get_rng_state(), state)
    assert network.training
    assert not frozen.inner[1].training
    install(network, mean, sampler)
    seen = torch.cat([draw.x for draw in iter_draws(1, 200)])  # 2,000 samples, 10 at a time
    with torch.no_grad():
        expected = frozen.inner(seen).mean(0)
    torch.testing.assert_close(network.featurizer[1].running_mean, expected, rtol=1e-4, atol=1e-4)


def iter_draws(seed, count):
    sampler = sampler_of(seed)
    return [sampler.draw() for _ in range(count)]


# --- runs ----------------------------------------------------------------------------------------

SWAD = {"average": "swad", "n_converge": 2, "n_tolerance": 2, "tolerance_ratio": 0.01}
RULES = {
    "ema": {"average": "ema", "average_decay": 0.9},
    "swad": SWAD,
    "uniform": {"average": "uniform"},
}

in_both_protocols = pytest.mark.parametrize(
    ("rule", "protocol"),
    [
        *((rule, "domainbed") for rule in RULES),
        ("swad", "irm"),
        *(pytest.param(rule, "irm", marks=pytest.mark.slow) for rule in ("ema", "uniform")),
    ],
)


@pytest.fixture(scope="module")
def bank(tmp_path_factory):
    return write_bank(tmp_path_factory.mktemp("data"))


def bank_job(bank, algorithm="ERM", steps=24, **options):
    values = {"hidden": 8, "resnet_dropout": 0.1, "lr": 0.05, "evaluate_every": 3, **options}
    hparams = json.dumps(values, sort_keys=True)
    return Job("bank", algorithm, (1,), 0, 0, str(bank), steps=steps, hparams=hparams)


def jobs(bank, rule):
    options = RULES[rule]
    return {
        "domainbed": bank_job(bank, "Fish", **options),
        "irm": colored_job("hgp", steps=24, evaluate_every=3, learning_rate=0.05, **options),
    }


def outcome(folder):
    lines = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    for line in lines:
        del line["seconds"], line["step_time"], line["args"]["output_dir"]
    return lines, load_file(folder / "model.safetensors")


@in_both_protocols
def test_a_run_that_was_stopped_ends_bit_identical(rule, protocol, bank, tmp_path, monkeypatch):
    monkeypatch.setattr(run_folder, "SECONDS_BETWEEN_CHECKPOINTS", 0.0)
    job = jobs(bank, rule)[protocol]
    train_job(job, tmp_path / "whole", keep_model=True)

    def stop(record):
        if record.step in {9, 18} and record.step not in stopped:
            stopped.append(record.step)
            raise KeyboardInterrupt

    stopped = []
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            train_job(job, tmp_path / "stopped", keep_model=True, report=stop)
    train_job(job, tmp_path / "stopped", keep_model=True)
    (lines, model), (other_lines, other) = (
        outcome(tmp_path / each) for each in ("whole", "stopped")
    )
    assert lines == other_lines
    assert all(torch.equal(model[name], other[name]) for name in model)


@in_both_protocols
def test_the_model_of_a_run_is_the_average_and_records_have_both(rule, protocol, bank, tmp_path):
    job = jobs(bank, rule)[protocol]
    run = train_job(job, tmp_path / "averaged", evaluate="all", keep_model=True)
    plain = json.loads(job.hparams)
    for name in RULES[rule]:
        del plain[name]
    without = Job(**{**vars(job), "hparams": json.dumps(plain, sort_keys=True)})
    expected = train_job(without, evaluate="all")
    for ours, theirs in zip(run.records, expected.records, strict=True):
        kept = {name: ours.metrics[name] for name in theirs.metrics}
        assert kept == dict(theirs.metrics)
        more = {f"avg_{name}" for name in ours.metrics if not name.startswith("avg_")}
        extra = {"validation_loss"} if rule == "swad" else set()
        assert set(ours.metrics) == {*theirs.metrics, *more, *extra}
    state = load_file(tmp_path / "averaged" / "model.safetensors")
    for name, value in run.network.state_dict().items():
        assert torch.equal(state[name], value)
    last = expected.network.state_dict()
    assert any(not torch.equal(state[name], last[name]) for name in state)
    model = ha.load(tmp_path / "averaged")
    if protocol == "domainbed":  # it evaluates after updates
        domain = run.plan.data.domains[1]
        rows = torch.from_numpy(run.plan.inner[1])
        found = torch.from_numpy(model.predict_proba(domain.inputs[rows])).argmax(1)
        right = float((found == domain.labels[rows]).double().mean())
        assert run.final["avg_env1_in_acc"] == pytest.approx(right)
    read = train_job(job, tmp_path / "averaged", evaluate="all", keep_model=True)  # from its folder
    assert dict(read.final) == dict(run.final)
    assert all(torch.equal(value, state[name]) for name, value in read.network.state_dict().items())


def test_the_validation_loss_is_that_of_held_out_training_domains(bank):
    run = train_job(bank_job(bank, **SWAD), evaluate="all")
    plan, risks = run.plan, []
    for number in (0, 2):
        domain, rows = plan.data.domains[number], torch.from_numpy(plan.outer[number])
        with torch.no_grad():
            logits = run.network(domain.inputs[rows].float())
        risks.append(nn.functional.cross_entropy(logits, domain.labels[rows]))
    expected = float(torch.stack(risks).mean())
    assert run.final["avg_validation_loss"] == pytest.approx(expected, rel=1e-5)


def test_jobs_without_an_average_are_what_they_were(bank, tmp_path):
    job = colored_job("hgp", steps=4)
    assert job.folder == "15a5e202dacf5b0fdd0cbb2f77d6cd9c"
    train_job(job, tmp_path)
    record = json.loads((tmp_path / "results.jsonl").read_text().splitlines()[-1])
    assert not [name for name in (*record, *record["hparams"]) if "av" in name[:2]]
    assert "n_converge" not in record["hparams"]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"average": "swa"}, UnknownNameError, "Unknown average 'swa'.*Did you mean 'swad'"),
        ({"average": "uniform", "average_start": 24}, InputError, "average_start below the 24 st"),
        ({"average": "ema", "average_decay": 1}, InputError, "average_decay as a number.*below 1"),
        ({"average": "swad", "n_converge": 0}, InputError, "n_converge of 1 or more, got 0"),
        ({"average_decay": 0.9}, InputError, "average=ema only, got average_decay=0.9 with no av"),
        (
            {"average": "swad", "average_start": 0},
            InputError,
            "average_start with average=ema or uniform only, got average_start=0 with average=swad",
        ),
        ({"average": "ema", "n_tolerance": 2}, InputError, "n_tolerance with average=swad only"),
    ],
)
def test_options_that_do_not_fit_are_refused(options, error, message, bank):
    with pytest.raises(error, match=message):
        train_job(bank_job(bank, **options))
    with pytest.raises(error, match=message):
        train_job(colored_job(steps=24, **options))
