"""What model selection takes from a sweep on features, trained again, attacked and measured."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from hessalign.bench.runs.plan import plan_job
from hessalign.bench.runs.run import train_job
from hessalign.bench.sweep import LocalLauncher, SerialLauncher, list_jobs
from hessalign.cli import main
from hessalign.paper import figure2, table1
from hessalign.paper.experiment import Options, plain
from hessalign.paper.sweeps import second_start, select_jobs, train_all, twin

DRAWS, TRIALS = 3, 2


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A bank of three domains and a sweep of two algorithms on it."""
    folder = tmp_path_factory.mktemp("sweep")
    rng = np.random.RandomState(0)
    domain = np.arange(150) % 3
    y = rng.randint(3, size=150)
    x = rng.randn(150, 5).astype(np.float32)
    x[np.arange(150), y] += 1.5
    x[:, 3] += domain
    np.savez(folder / "bank.npz", x=x, y=y, domain=np.array(["a", "b", "c"])[domain])
    jobs = list_jobs(
        {"bank": 3},
        ["ERM", "VREx"],
        data_dir=str(folder),
        n_hparams=DRAWS,
        n_trials=TRIALS,
        pairs=False,
        steps=11,
        hparams='{"hidden": 4}',
    )
    for job in jobs:
        train_job(job, folder / "runs" / job.folder)
    return folder


@pytest.fixture(scope="module")
def sweep(root):
    return make_sweep(root, root / "cache")


def make_sweep(root, cache):
    place = {"sweeps": (root / "runs",), "data_dir": str(root), "dataset": "bank"}
    return Options(SerialLauncher(), cache=cache, **place)


def test_the_best_draw_of_each_trial_and_test_domain(sweep, root):
    found = select_jobs(sweep, ["vrex"])["vrex"]
    pairs = [(job.trial_seed, job.test_domains[0]) for job in found]
    assert pairs == [(trial, test) for trial in range(TRIALS) for test in range(3)]
    for job, each in found.items():
        assert (each.trial, each.test_domain) == (job.trial_seed, job.test_domains[0])
        # By hand: the last record of every drawn run of the same trial and test domain.
        best = []
        for path in (root / "runs").glob("*/results.jsonl"):
            last = json.loads(path.read_text().splitlines()[-1])
            args, (test,) = last["args"], job.test_domains
            same = (args["algorithm"], args["test_envs"], args["trial_seed"]) == (
                "VREx", [test], job.trial_seed,
            )  # fmt: skip
            if same and args["hparams_seed"] > 0:
                kept = [last[f"env{e}_out_acc"] for e in range(3) if e != test]
                best.append((sum(kept) / 2, args["hparams_seed"], last[f"env{test}_in_acc"]))
        assert len(best) == each.draws == DRAWS - 1
        expected = max(best)
        assert each.validation == pytest.approx(expected[0])
        assert each.hparams_seed == job.hparams_seed
        assert (job.hparams_seed, each.test) == expected[1:]


def test_trained_again_a_run_is_the_same(sweep, root):
    (first, *_) = select_jobs(sweep, ["erm"])["erm"]
    run = train_all(sweep, [first])[first].load()
    lines = (root / "runs" / first.folder / "results.jsonl").read_text().splitlines()
    last = json.loads(lines[-1])
    assert run.algorithm is not None
    metrics = run.records[-1].metrics
    shared = metrics.keys() & last.keys()
    assert len(shared) >= 4
    for name in shared:
        assert metrics[name] == last[name]
    assert not train_all(dataclasses.replace(sweep, launcher=None), [twin_of(first)])


def twin_of(job):
    return dataclasses.replace(job, trial_seed=99)


def test_a_twin_shares_what_algorithms_share(sweep):
    job = list(select_jobs(sweep, ["vrex"])["vrex"])[-1]
    ours, erm, again = (plan_job(each) for each in (job, twin(job), second_start(twin(job))))
    assert erm.job.algorithm == "ERM"
    shared = ("lr", "weight_decay", "batch_size", "resnet_dropout", "hidden")
    for plan in (erm, again):
        assert {k: plan.values[k] for k in shared} == {k: ours.values[k] for k in shared}
        for mine, theirs in zip(plan.inner, ours.inner, strict=True):
            assert np.array_equal(mine, theirs)
    assert again.job.seed != erm.job.seed


def test_a_second_start_trains_the_same_objective(sweep):
    job = second_start(twin(next(iter(select_jobs(sweep, ["vrex"])["vrex"]))))
    (run,) = train_all(sweep, [job]).values()
    record = run.records[-1]
    assert record.terms["loss"] == pytest.approx(record.terms["risk"])


def test_an_algorithm_that_the_sweep_lacks_gets_the_same_draws(sweep):
    without = dataclasses.replace(sweep, cache=sweep.cache / "other", launcher=None)
    assert select_jobs(without, ["fish"])["fish"] == {}
    found = select_jobs(dataclasses.replace(without, launcher=SerialLauncher()), ["fish"])["fish"]
    assert [each.draws for each in found.values()] == [DRAWS - 1] * 6
    assert {job.algorithm for job in found} == {"Fish"}


def test_several_processes_train_the_same_models(sweep):
    jobs = list(select_jobs(sweep, ["erm"])["erm"])[:2]
    here = train_all(sweep, jobs)
    other = dataclasses.replace(sweep, cache=sweep.cache / "two", launcher=LocalLauncher(2))
    found = train_all(other, jobs)
    assert found.keys() == here.keys() == {*jobs}
    for job, run in found.items():
        state = run.load().algorithm.state_dict()
        for name, value in here[job].load().algorithm.state_dict().items():
            assert torch.equal(state[name], value)


def test_what_is_wrong_with_a_sweep_is_named(sweep, tmp_path):
    with pytest.raises(ValueError, match=r"Expected complete runs of ERM on PACS .* found none"):
        select_jobs(dataclasses.replace(sweep, dataset="PACS"), ["vrex"])
    for steps in (2, 3):
        job = list_jobs(
            {"bank": 3}, ["ERM"], data_dir=sweep.data_dir, n_trials=1, n_hparams=2,
            first_hparams_seed=1, pairs=False, steps=steps,
        )[0]  # fmt: skip
        train_job(job, tmp_path / job.folder)
    with pytest.raises(ValueError, match=r"Expected runs with the same steps in .* found 2, 3"):
        select_jobs(dataclasses.replace(sweep, sweeps=(tmp_path,)), ["erm"])


def reproduce(name, root, tmp_path, *more):
    words = ["--restarts", "1", "--jobs", "1", "--output", str(tmp_path)]
    return main(["reproduce", name, *words, "--cache", str(root / "cmnist"), *more])


@pytest.fixture
def few(monkeypatch):
    """Two methods, of which one has no runs, and two radii."""
    methods = plain("vrex", "coral")
    monkeypatch.setattr(figure2, "METHODS", methods)
    monkeypatch.setattr(table1, "_METHODS", methods)
    monkeypatch.setattr(figure2, "_BANK_DELTAS", (0.1, 1.0))
    monkeypatch.setattr(figure2, "_BANK_SAMPLES", 20)


def bank_words(root):
    return ["--sweep", str(root / "runs"), "--data-dir", str(root), "--dataset", "bank"]


def test_table1_on_a_bank(root, tmp_path, few, capsys):
    cached = root / "cmnist"
    assert reproduce("table1", root, tmp_path, "--finished", *bank_words(root)) == 0
    assert "No runs yet: V-REx, CORAL" in capsys.readouterr().out
    sweep = make_sweep(root, cached)
    chosen = select_jobs(dataclasses.replace(sweep, launcher=None), ["erm", "vrex"])
    jobs = list(chosen["vrex"])
    train_all(sweep, [*jobs, *map(twin, jobs)])
    assert reproduce("table1", root, tmp_path, "--finished", *bank_words(root)) == 0
    out = capsys.readouterr().out
    assert "### Relative, between all domains, the unseen one too" in out
    assert f"--finished --sweep {root / 'runs'} --data-dir {root} --dataset bank" in out
    content = json.loads((tmp_path / "table1" / "table1.json").read_text())
    (entry,) = content["data_sets"]["bank"]["methods"]
    assert (entry["method"], entry["runs"], entry["published"]) == ("V-REx", 6, ["loss"])
    # One attribute by its definition, from the trained networks.
    logs = {}
    for job in jobs:
        spreads = []
        for each in (job, twin(job)):
            plan = plan_job(each)
            state = load_file(cached / each.folder / "model.safetensors")
            weight, bias = (state[f"featurizer.{k}"] for k in first_layer(state))
            means = [
                (plan.data.domains[e].inputs[plan.outer[e]] @ weight.T + bias).relu().mean(0)
                for e in plan.sources
            ]
            spreads.append((means[0] - means[1]).square().sum() / 4)
        logs.setdefault(job.trial_seed, []).append(float((spreads[0] / spreads[1]).log()))
    trials = [sum(values) / 3 for values in logs.values()]
    found = entry["raw"]["sources"]["feature"]
    assert found["ratio"] == pytest.approx(np.exp(np.mean(trials)), rel=1e-4)
    assert found["low"] == pytest.approx(np.exp(min(trials)), rel=1e-4)
    assert (tmp_path / "table1" / "table1-bank.png").stat().st_size > 10_000


def first_layer(state):
    names = [name.removeprefix("featurizer.") for name in state if "featurizer" in name]
    return sorted(names, reverse=True)[:2]  # weight, bias


def test_figure2_on_a_bank(root, tmp_path, few, capsys):
    words = ["--finished", *bank_words(root)]
    sweep = make_sweep(root, root / "cmnist")
    train_all(sweep, select_jobs(sweep, ["vrex"])["vrex"])
    assert reproduce("figure2", root, tmp_path, *words) == 0
    out, err = capsys.readouterr()
    assert "6/6 heads" in err
    assert "cannot move further than about" in out
    assert "No runs yet: CORAL" in out
    content = json.loads((tmp_path / "figure2" / "figure2.json").read_text())["features"]
    assert (content["deltas"], content["domains"]) == ([0.0, 0.1, 1.0], ["a", "b", "c"])
    (entry,) = content["methods"]
    assert len(entry["heads"]) == 6
    for head in entry["heads"]:
        assert head["gap"] == sorted(head["gap"])
        assert all(p <= e + 1e-9 for p, e in zip(head["published_gap"], head["gap"], strict=True))
        # What is said of the trained head is what its losses say.
        assert head["gap"][0] == pytest.approx(max(head["losses"][0]) - min(head["losses"][0]))
        place = content["domains"].index(head["test_domain"])
        assert head["target_accuracy"] == [row[place] for row in head["accuracies"]]
    by_trial = [
        np.mean([head["gap"] for head in entry["heads"] if head["trial"] == trial], axis=0)
        for trial in range(TRIALS)
    ]
    assert np.allclose(entry["gap"], by_trial)
    for name in ("figure2-features", "figure2-features-accuracies", "figure2-features-losses"):
        assert (tmp_path / "figure2" / f"{name}.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--sweep", "x"], "Expected --data-dir beside --sweep, got none"),
        (["--data-dir", "x"], "Expected --sweep beside --data-dir, got none"),
    ],
)
def test_a_sweep_needs_its_data(words, text, tmp_path, capsys):
    assert reproduce("table1", Path("nowhere"), tmp_path, "--finished", *words) == 2
    assert text in capsys.readouterr().err
