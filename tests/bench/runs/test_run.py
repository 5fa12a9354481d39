"""Runs of the DomainBed protocol, against a plain loop written from the protocol."""

import json
import random

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from hessalign._errors import InputError, UnknownNameError
from hessalign._protocol import seed_hash
from hessalign.bench.algorithms import ALGORITHMS
from hessalign.bench.algorithms.search import run_hyper_parameters
from hessalign.bench.runs.domainbed import evaluation_interval
from hessalign.bench.runs.job import Job, job_from
from hessalign.bench.runs.plan import plan_job
from hessalign.bench.runs.run import load_run, train_job, trained_head
from hessalign.bench.runs.run_folder import RunFolderError
from hessalign.bench.sweep import list_jobs
from hessalign.bench.sweep.selection import read_runs
from hessalign.cli import main

WIDTH, CLASSES, SIZES = 12, 3, (40, 55, 33, 47)


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    """A feature bank of four domains, the last one far from the others."""
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.RandomState(0)
    domain = np.repeat(np.arange(4), SIZES)
    y = rng.randint(CLASSES, size=len(domain))
    x = rng.randn(len(domain), WIDTH).astype(np.float32)
    x[np.arange(len(y)), y] += 2
    x[:, 5] += domain
    np.savez(folder / "bank.npz", x=x, y=y, domain=domain, domains=["a", "b", "c", "d"])
    return folder


def job_of(data_dir, algorithm="ERM", test=(1,), hparams_seed=0, steps=21, **options):
    hparams = json.dumps(options, sort_keys=True) if options else None
    return Job(
        "bank", algorithm, test, hparams_seed, 0, str(data_dir), steps=steps, hparams=hparams
    )


def timeless(folder):
    """Records without what depends on the clock or on the place."""
    lines = (folder / "results.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    for record in records:
        for name in ("seconds", "step_time"):
            del record[name]
        del record["args"]["output_dir"]
    return records


def test_a_run_equals_a_plain_loop(data_dir, tmp_path):
    job = job_of(data_dir, test=(1, 3), hidden=8, lr=0.02, batch_size=5)
    run = train_job(job, tmp_path / "run", evaluate="all", keep_model=True)

    bank = np.load(data_dir / "bank.npz")
    x, y, domain = (torch.from_numpy(bank[name]) for name in ("x", "y", "domain"))
    parts = []
    for number, size in enumerate(SIZES):
        order = list(range(size))
        np.random.RandomState(seed_hash(0, number)).shuffle(order)
        rows = (domain == number).nonzero().squeeze(1)[order]
        parts.append((rows[int(size * 0.2) :], rows[: int(size * 0.2)]))
    torch.manual_seed(job.seed)
    network = torch.nn.Sequential(
        torch.nn.Linear(WIDTH, 8), torch.nn.ReLU(), torch.nn.Linear(8, CLASSES)
    )
    optimizer = torch.optim.Adam(network.parameters(), lr=0.02)
    draws = torch.Generator().manual_seed(seed_hash(job.seed, "batches"))
    expected = {}
    for step in range(21):
        batch = [
            parts[d][0][torch.randint(len(parts[d][0]), (5,), generator=draws)] for d in (0, 2)
        ]
        loss = sum(cross_entropy(network(x[rows]), y[rows]) for rows in batch) / 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 2 == 0:
            with torch.no_grad():
                expected[step] = {
                    f"env{d}_{name}_acc": float((network(x[r]).argmax(1) == y[r]).float().mean())
                    for d, both in enumerate(parts)
                    for name, r in zip(("in", "out"), both, strict=True)
                }
    assert [record.step for record in run.records] == list(expected)
    for record in run.records:
        assert dict(record.metrics) == pytest.approx(expected[record.step])
    assert run.records[-1].metrics["env0_in_acc"] > 0.8  # it learned
    trained = list(run.algorithm.network.parameters())
    for ours, theirs in zip(trained, network.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_a_record_has_everything_domainbed_writes(data_dir, tmp_path):
    job = job_of(data_dir, "IRM", (0,), hparams_seed=2)
    train_job(job, tmp_path / job.folder)
    record = json.loads((tmp_path / job.folder / "results.jsonl").read_text().splitlines()[-1])
    assert set(record["args"]) == {
        "algorithm", "checkpoint_freq", "data_dir", "dataset", "holdout_fraction", "hparams",
        "hparams_seed", "output_dir", "save_model_every_checkpoint", "seed", "skip_model_save",
        "steps", "task", "test_envs", "trial_seed", "uda_holdout_fraction",
    }  # fmt: skip
    assert {key: record["args"][key] for key in job.args} == job.args
    assert {"irm_lambda", "irm_penalty_anneal_iters", "lr", "batch_size"} <= set(record["hparams"])
    assert {"step", "epoch", "step_time", "loss", "penalty"} <= set(record)
    inner = min(SIZES) - int(min(SIZES) * 0.2)
    assert record["epoch"] == pytest.approx(20 * record["hparams"]["batch_size"] / inner)
    assert (tmp_path / job.folder / "done").exists()
    # What selection reads, and nothing else.
    accuracies = {key for key in record if key.startswith("env")}
    assert accuracies == {"env0_in_acc", *(f"env{d}_out_acc" for d in range(4))}


def test_evaluating_less_changes_nothing_else(data_dir, tmp_path):
    job = job_of(data_dir, "HGP", (2,), hparams_seed=1)
    for name in ("needed", "all"):
        train_job(job, tmp_path / name, evaluate=name)
    needed, everything = timeless(tmp_path / "needed"), timeless(tmp_path / "all")
    for less, more in zip(needed, everything, strict=True):
        assert len(more) == len(less) + 3
        assert less.items() <= more.items()


def test_the_hessian_distance_is_the_largest_between_training_domains(data_dir, tmp_path):
    """Against dense Hessians by autograd, on the samples of training domains that are held out."""
    options = {"hidden": 4, "hessian_distance": True}
    run = train_job(job_of(data_dir, "ERM", (1,), **options), tmp_path, keep_model=True)
    head, z, hessians = run.network.head, {}, []
    for domain in (0, 2, 3):
        rows = run.plan.outer[domain]
        with torch.no_grad():
            z[domain] = run.network.features(run.plan.data.domains[domain].inputs[rows]).double()
        labels = run.plan.data.domains[domain].labels[rows]

        def loss(parameters, domain=domain, labels=labels):
            weight, bias = parameters[:-CLASSES].view(CLASSES, -1), parameters[-CLASSES:]
            return cross_entropy(z[domain] @ weight.T + bias, labels)

        flat = torch.cat([head.weight.detach().flatten(), head.bias.detach()]).double()
        hessians.append(torch.func.hessian(loss)(flat))
    largest = max((a - b).norm() for a in hessians for b in hessians)
    assert run.final["hessian_distance"] == pytest.approx(float(largest), rel=1e-5)
    (kept,), _ = read_runs(tmp_path)
    assert kept.distances[-1] == run.final["hessian_distance"]
    with pytest.raises(InputError, match="Expected a linear head for hessian_distance=true, got"):
        train_job(job_of(data_dir, hessian_distance=True, nonlinear_classifier=True))


@pytest.mark.parametrize("algorithm", ["ERM", "Fish", "DANN", "Hutchinson", "ANDMask"])
def test_an_interrupted_run_ends_as_if_it_had_not_been(data_dir, tmp_path, algorithm):
    job = job_of(data_dir, algorithm, (1,), hparams_seed=1, hidden=4)
    train_job(job, tmp_path / "whole")

    def stop(record):
        if record.step == 10:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_job(job, tmp_path / "parts", report=stop)
    assert not (tmp_path / "parts" / "done").exists()
    random.seed(5)
    torch.manual_seed(5)
    train_job(job, tmp_path / "parts")
    assert timeless(tmp_path / "parts") == timeless(tmp_path / "whole")


def test_a_complete_run_is_read_not_repeated(data_dir, tmp_path):
    job = job_of(data_dir, hidden=4)
    first = train_job(job, tmp_path, keep_model=True)
    before = (tmp_path / "results.jsonl").stat().st_mtime_ns
    second = train_job(job, tmp_path, keep_model=True)
    assert (tmp_path / "results.jsonl").stat().st_mtime_ns == before
    assert second.records == first.records
    for a, b in zip(first.algorithm.parameters(), second.algorithm.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_run_is_loaded_from_its_folder(data_dir, tmp_path):
    job = job_of(data_dir, test=(1,), hidden=4)
    first = train_job(job, tmp_path / "kept", keep_model=True)
    again = load_run(tmp_path / "kept")
    assert again.plan.job == job
    few = trained_head(again, samples=10)
    assert few.z.shape == (40, 4)
    assert few.domain.bincount().tolist() == [10] * 4
    every = trained_head(again)
    whole, labels, numbers = every.z, every.y, every.domain
    assert numbers.bincount().tolist() == list(SIZES)
    right = first.algorithm.network.head(whole).argmax(1) == labels
    rows = numbers == 1  # the accuracy of both parts of the test domain, from the features
    inner, outer = (first.records[-1].metrics[f"env1_{part}_acc"] for part in ("in", "out"))
    assert float(right[rows].double().mean()) == pytest.approx((44 * inner + 11 * outer) / 55)


def test_runs_without_what_is_needed_are_named(data_dir, tmp_path):
    with pytest.raises(RunFolderError, match=r"Expected a complete run in .*, found none"):
        load_run(tmp_path / "none")
    bare = train_job(job_of(data_dir), tmp_path / "bare")
    with pytest.raises(RunFolderError, match=r"Expected the trained model .* `hessalign train`"):
        load_run(tmp_path / "bare")
    assert bare.algorithm is not None
    with pytest.raises(ValueError, match="got one that kept no model"):
        trained_head(train_job(job_of(data_dir), tmp_path / "bare"))
    (tmp_path / "bare" / "done").unlink()
    with pytest.raises(RunFolderError, match="found a run that is not complete"):
        load_run(tmp_path / "bare")


def test_jobs_come_back_from_their_arguments(data_dir):
    for job in (job_of(data_dir), job_of(data_dir, "IRM", (0, 2), 3, None, hidden=4)):
        assert job_from(json.loads(json.dumps(job.args))) == job
    with pytest.raises(ValueError, match="missing: dataset, data_dir"):
        job_from({k: v for k, v in job.args.items() if k not in {"dataset", "data_dir"}})
    with pytest.raises(ValueError, match=r"Expected the seed .* got 1"):
        job_from({**job.args, "seed": 1})


def test_the_collector_reads_a_small_sweep(data_dir, tmp_path, capsys):
    jobs = list_jobs({"bank": 4}, ["ERM", "VREx"], data_dir=str(data_dir), n_hparams=2, n_trials=2,
                     steps=11)  # fmt: skip
    for job in jobs:
        train_job(job, tmp_path / job.folder)
    runs, notes = read_runs(tmp_path)
    assert len(runs) == len(jobs) == 80
    assert not notes
    assert main(["collect", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert text.count("Dataset: bank") == 3
    assert " X " not in text


# --- hyper-parameters -----------------------------------------------------------------------------


def test_draws_are_those_of_the_protocol():
    erm = run_hyper_parameters(ALGORITHMS["erm"], "big", 1, 0).values
    assert erm["lr"] == 2.7028930742148706e-05
    assert erm["weight_decay"] == 0.00044832883881609976
    assert (erm["batch_size"], erm["resnet_dropout"]) == (39, 0.5)
    hgp = run_hyper_parameters(ALGORITHMS["hgp"], "big", 1, 0, preset="hgp-2023")
    assert hgp.values["penalty_alpha"] == hgp.options["alpha"] == 4.243422978317943e-05
    assert hgp.values["penalty_beta"] == hgp.options["beta"] == 0.04201632158543692
    assert hgp.values["batch_size"] == 41


def test_every_algorithm_can_be_drawn_for_every_family():
    for info in ALGORITHMS.values():
        for family in ("small", "big", "DomainNet", "features"):
            for seed in range(3):
                drawn = run_hyper_parameters(info, family, seed, 0)
                config = info.config.__class__
                assert set(drawn.options) <= set(config.__dataclass_fields__)
                assert {"lr", "batch_size", "resnet_dropout"} <= set(drawn.values)


def test_annealing_keeps_its_share_of_a_short_run_on_features():
    long = run_hyper_parameters(ALGORITHMS["fishr"], "big", 1, 0, steps=501).options
    short = run_hyper_parameters(ALGORITHMS["fishr"], "features", 1, 0, steps=501).options
    assert short["anneal_steps"] == round(long["anneal_steps"] * 501 / 5001)
    assert run_hyper_parameters(ALGORITHMS["fishr"], "features", 0, 0, steps=501).options[
        "anneal_steps"
    ] == round(1500 * 501 / 5001)


def test_overrides_by_either_name(data_dir):
    for name in ("vrex_lambda", "penalty_weight"):
        plan = plan_job(job_of(data_dir, "VREx", (0,), 1, **{name: 7.0}))
        assert plan.algorithm.penalty_weight == plan.values["vrex_lambda"] == 7.0
    plan = plan_job(job_of(data_dir, "MTL", (0,), 1, fidelity="domainbed"))
    assert plan.algorithm.fidelity == "domainbed"
    with pytest.raises(UnknownNameError, match=r"hyper-parameter of ERM 'hiden'.*mean 'hidden'"):
        plan_job(job_of(data_dir, hiden=3))
    with pytest.raises(UnknownNameError, match="preset 'domainbed-2023'"):
        plan_job(job_of(data_dir, preset="domainbed-2023"))


def test_evaluation_intervals():
    assert evaluation_interval("PACS", "big", 5001) == 300
    assert evaluation_interval("DomainNet", "DomainNet", 5001) == 1000
    assert evaluation_interval("PACS@resnet18", "features", 301) == 30
    assert evaluation_interval("mine", "big", 3) == 1


# --- what can be wrong ----------------------------------------------------------------------------


@pytest.mark.parametrize("test", [(4,), (0, 1, 2, 3)])
def test_test_domains_must_exist_and_leave_one(data_dir, tmp_path, test):
    text = r"Expected test domains of bank that leave .* It has: 0 a, 1 b, 2 c, 3 d\."
    with pytest.raises(ValueError, match=text):
        train_job(job_of(data_dir, test=test), tmp_path / "run")


def test_a_missing_data_set_says_what_was_looked_for(tmp_path):
    job = Job("nothing", "ERM", (0,), 0, 0, str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"'nothing' in .*found none of: nothing.npz, .*"):
        train_job(job, tmp_path / "run")


def test_unknown_names_are_refused(data_dir, tmp_path):
    with pytest.raises(UnknownNameError, match="Unknown algorithm 'VRex'"):
        train_job(job_of(data_dir, "VRex"), tmp_path / "run")
    with pytest.raises(UnknownNameError, match="Unknown evaluate 'al'"):
        train_job(job_of(data_dir), tmp_path / "run", evaluate="al")


def test_a_folder_of_another_job_is_refused(data_dir, tmp_path):
    train_job(job_of(data_dir), tmp_path)
    with pytest.raises(RunFolderError, match="steps is 21 there and 31 here"):
        train_job(job_of(data_dir, steps=31), tmp_path)


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_every_algorithm_trains_a_linear_head_on_features(data_dir, tmp_path, algorithm):
    name = ALGORITHMS[algorithm].recorded
    run = train_job(job_of(data_dir, name, steps=3, batch_size=4), tmp_path)
    assert [record.step for record in run.records] == [0, 1, 2]


def test_the_network_of_small_images_has_no_dropout(data_dir, tmp_path):
    images = np.zeros((20, 2, 28, 28), np.uint8)
    np.savez(tmp_path / "bank.npz", x=images, y=np.arange(20) % 2, domain=np.arange(20) // 10)
    for folder, shape in ((tmp_path, (2, 28, 28)), (data_dir, (WIDTH,))):
        plan = plan_job(job_of(folder, hparams_seed=2))
        spec = plan.protocol.network(plan)
        assert spec.input_shape == shape
        assert plan.options.resnet_dropout > 0
        assert spec.dropout == (0 if len(shape) == 3 else plan.options.resnet_dropout)
