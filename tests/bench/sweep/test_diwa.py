"""DiWA over the runs of a sweep, against averages and a greedy choice written out."""

import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.colored import colored_job
from tests.sweep_jobs import write_bank

import hessalign as ha
from hessalign._errors import InputError, UnknownNameError
from hessalign._protocol import seed_hash
from hessalign.bench.algorithms import ALGORITHMS
from hessalign.bench.runs import Job, load_run, plan_job, train_job
from hessalign.bench.sweep import list_jobs
from hessalign.bench.sweep.diwa import average_sweep
from hessalign.bench.sweep.selection import collect
from hessalign.cli import main

SAMPLES = 60


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_bank(tmp_path_factory.mktemp("data"), samples=SAMPLES)


def sweep(data, folder, *, trials=1, draws=4, keep_model=True, algorithms=("ERM",), **options):
    """A sweep that tests on the domain Como; folders by trial and draw."""
    values = {"hidden": 8, "initial_seed": 0, **options}
    jobs = list_jobs(
        {"bank": 3}, algorithms, data_dir=str(data), n_hparams=draws, n_trials=trials, pairs=False,
        test_domains={"bank": [1]}, steps=15, hparams=json.dumps(values),
    )  # fmt: skip
    for job in jobs:
        train_job(job, folder / job.folder, keep_model=keep_model)
    return {(job.trial_seed, job.hparams_seed): folder / job.folder for job in jobs}


@pytest.fixture(scope="module")
def made(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("made") / "sweep"
    return folder, sweep(data, folder, trials=2)


def predicted(state, x):
    """What the network of the bank says."""
    hidden = (x @ state["featurizer.0.weight"].T + state["featurizer.0.bias"]).relu()
    return (hidden @ state["head.weight"].T + state["head.bias"]).argmax(1)


def held_out(data, state, trial):
    """Mean accuracy on the held-out parts of Bern and Graz, from the protocol."""
    bank, found = np.load(data / "bank.npz"), []
    for domain in (0, 2):
        order = list(range(SAMPLES))
        np.random.RandomState(seed_hash(trial, domain)).shuffle(order)
        rows = np.flatnonzero(bank["domain"] == domain)[order[: SAMPLES // 5]]
        x, y = torch.from_numpy(bank["x"][rows]), torch.from_numpy(bank["y"][rows])
        found.append(float((predicted(state, x) == y).double().mean()))
    return sum(found) / 2


def mean_of(states):
    return {
        name: torch.stack([state[name].double() for state in states]).mean(0).float()
        for name in states[0]
    }


def greedy(data, paths, trial):
    """Folders in the order of DiWA's restricted choice, and those chosen."""
    states = {path: load_file(path / "model.safetensors") for path in sorted(paths)}
    ranked = sorted(states, key=lambda path: -held_out(data, states[path], trial))
    chosen, best = [], 0.0
    for path in ranked:
        score = held_out(data, mean_of([states[each] for each in [*chosen, path]]), trial)
        if score >= best:
            chosen, best = [*chosen, path], score
    return ranked, chosen, mean_of([states[each] for each in chosen]), best


def test_restricted_takes_the_best_and_what_does_not_make_it_worse(data, made, tmp_path):
    folder, paths = made
    found = average_sweep(folder, tmp_path, rule="restricted")
    assert [each.trials for each in found] == [(0,), (1,)]
    sizes = set()
    for trial, each in enumerate(found):
        group = [path for (number, _), path in paths.items() if number == trial]
        ranked, chosen, state, score = greedy(data, group, trial)
        assert each.runs == tuple(map(str, ranked))
        assert each.members == tuple(map(str, chosen))
        assert each.held_out(each.accuracies) == pytest.approx(score)
        written = load_file(tmp_path / f"bank-ERM-Como-trial-{trial}" / "model.safetensors")
        torch.testing.assert_close(written, state)
        best = load_run(ranked[0])
        assert each.best["env1_in_acc"] == best.final["env1_in_acc"]
        assert each.held_out(each.best) == max(
            held_out(data, load_file(path / "model.safetensors"), trial) for path in group
        )
        sizes.add(len(chosen))
    assert sizes - {1, 4}  # some were taken, some left out


def test_uniform_takes_all_of_a_trial_or_of_all_trials(made, tmp_path):
    folder, paths = made
    states = {key: load_file(path / "model.safetensors") for key, path in paths.items()}
    average_sweep(folder, tmp_path / "each", rule="uniform")
    (one,) = average_sweep(folder, tmp_path / "all", rule="uniform", across_trials=True)
    assert one.trials == (0, 1)
    assert len(one.members) == 8
    expected = {"each/bank-ERM-Como-trial-0": [0], "all/bank-ERM-Como-trial-0-1": [0, 1]}
    for name, trials in expected.items():
        mean = mean_of([state for (trial, _), state in states.items() if trial in trials])
        written = load_file(tmp_path / name / "model.safetensors")
        torch.testing.assert_close(written, mean, rtol=1e-5, atol=1e-6)


def test_an_average_is_a_run_like_others(data, made, tmp_path, monkeypatch, capsys):
    folder, _ = made
    monkeypatch.chdir(tmp_path)
    shutil.copytree(folder, "sweep")
    assert main(["average", "sweep"]) == 0
    shown = capsys.readouterr()
    assert "| bank     | ERM       | Como        |     0 |" in shown.out
    assert shown.err == ""
    run = tmp_path / "sweep-restricted" / "bank-ERM-Como-trial-0"
    assert f"Saved in sweep-restricted/{run.name}\n" in shown.out
    model, bank = ha.load(run), np.load(data / "bank.npz")
    told = json.loads((run / "average.json").read_text())
    record = json.loads((run / "results.jsonl").read_text())
    assert record["hparams"] == {"rule": "restricted"}  # tables refuse runs that differ in them
    read = load_run(run)
    assert dict(read.final) == told["accuracies"] == dict(model.description.accuracies)
    x = torch.from_numpy(bank["x"])
    state = load_file(run / "model.safetensors")
    assert np.array_equal(model.predict(x.numpy()), model.classes_[predicted(state, x)])
    assert main(["predict", str(run), str(data / "bank.npz"), "--output", "found.csv"]) == 0
    exported = ["--format", "safetensors", "--output", "model.safetensors"]
    assert main(["export", str(run), *exported]) == 0
    table = collect("sweep-restricted", ["training-domain"]).tables[0]
    cell = table.rows[0].cells[1]
    assert (cell.trials, cell.reasons) == ((0, 1), ())
    assert cell.values[0] == told["accuracies"]["env1_in_acc"]
    assert main(["average", "sweep"]) == 2
    assert (
        f"Expected no average in sweep-restricted/{run.name}, found one." in capsys.readouterr().err
    )


def test_what_was_interrupted_goes_on(made, tmp_path):
    folder, _ = made
    whole = average_sweep(folder, tmp_path, rule="restricted")
    first, second = (tmp_path / f"bank-ERM-Como-trial-{trial}" for trial in (0, 1))
    written = (first / "model.safetensors").stat().st_mtime_ns
    (second / "done").unlink()  # as a kill leaves it
    assert average_sweep(folder, tmp_path, rule="restricted") == whole
    assert (first / "model.safetensors").stat().st_mtime_ns == written
    (second / "done").unlink()
    with pytest.raises(InputError, match=r"Expected no average in .*trial-0, found one"):
        average_sweep(folder, tmp_path, rule="uniform")
    text = (first / "average.json").read_text()
    for other in ("{", "[]", "{}", text.replace('"runs": [', '"runs": ["elsewhere/0f", ')):
        (first / "average.json").write_text(other)
        with pytest.raises(InputError, match=r"Expected no average in .*trial-0, found one"):
            average_sweep(folder, tmp_path, rule="restricted")


def test_runs_that_were_killed_after_their_last_record_are_not_averaged(data, tmp_path):
    paths = sweep(data, tmp_path / "sweep", draws=3)
    (paths[0, 1] / "done").unlink()
    (paths[0, 1] / "model.json").unlink()
    warned = []
    (found,) = average_sweep(tmp_path / "sweep", rule="uniform", warn=warned.append)
    assert set(found.members) == {str(paths[0, 0]), str(paths[0, 2])}
    (text,) = warned
    assert text.startswith(f"{paths[0, 1] / 'results.jsonl'}: it is not marked as done.")


def test_different_initial_weights_are_told(data, tmp_path):
    sweep(data, tmp_path / "sweep", draws=2, initial_seed=None)
    warned = []
    average_sweep(tmp_path / "sweep", rule="uniform", warn=warned.append)
    (text,) = warned
    assert "began with different weights; DiWA wants a shared initialisation" in text


def test_runs_of_one_initial_seed_begin_alike(data):
    hparams = json.dumps({"hidden": 8, "initial_seed": 3})
    jobs = [Job("bank", "ERM", (1,), draw, 0, str(data), hparams=hparams) for draw in (0, 1)]
    for first, second in (jobs, [colored_job(seed=seed, initial_seed=5) for seed in (0, 1)]):
        plans = [plan_job(job) for job in (first, second)]
        begun = [plan.protocol.start(plan)[0].network.state_dict() for plan in plans]
        assert all(torch.equal(begun[0][name], begun[1][name]) for name in begun[0])
    follow = []
    for plan in map(plan_job, jobs):
        plan.protocol.start(plan)
        follow.append(torch.rand(2))  # dropout, for example, is the run's own
    assert not torch.equal(*follow)


def test_runs_begin_with_the_head_of_a_trained_model(data, tmp_path):
    probe = Job("bank", "ERM", (1,), 0, 0, str(data), steps=3)  # no hidden layer
    train_job(probe, tmp_path / "probe", keep_model=True)
    hparams = json.dumps({"initial_head": str(tmp_path / "probe")})
    plan = plan_job(Job("bank", "HGP", (1,), 2, 1, str(data), hparams=hparams))
    begun = plan.protocol.start(plan)[0].network.state_dict()
    torch.testing.assert_close(begun, load_file(tmp_path / "probe" / "model.safetensors"))
    hparams = json.dumps({"initial_head": str(tmp_path / "probe"), "hidden": 5})
    plan = plan_job(Job("bank", "ERM", (1,), 0, 0, str(data), hparams=hparams))
    with pytest.raises(
        InputError, match=r"with parameters .*\(3, 5\).*found one for 3 with .*\(3, 8\)"
    ):
        plan.protocol.start(plan)


@pytest.mark.slow
def test_runs_of_algorithms_with_more_than_a_network(data, tmp_path):
    names = ["ARM", "MTL", "Fish", "SagNet"]
    assert {ALGORITHMS[name.lower()].recorded for name in names} == {*names}
    sweep(data, tmp_path / "sweep", draws=2, algorithms=names)
    found = average_sweep(tmp_path / "sweep", tmp_path / "out", rule="uniform")
    assert [each.algorithm for each in found] == sorted(names)
    for each in found:
        assert ha.load(each.path).predict(np.ones((3, 8))).shape == (3,)


def test_layers_that_differ_without_weights_are_refused_but_for_dropout(data, tmp_path):
    paths = sweep(data, tmp_path / "drawn", draws=2, algorithms=("URM",))  # tanh, then ReLU
    assert [ha.load(path).network.featurizer[1].__class__.__name__ for path in paths.values()] == [
        "Tanh",
        "ReLU",
    ]
    with pytest.raises(InputError, match=r"got (Tanh|ReLU)\(\) in .* has (Tanh|ReLU)\(\)\. Only"):
        average_sweep(tmp_path / "drawn")
    sweep(data, tmp_path / "drawn", draws=2)
    warned = []
    (other,) = average_sweep(tmp_path / "drawn", warn=warned.append)
    assert other.algorithm == "ERM"
    assert [text[:24] for text in warned] == ["URM on bank is left out."]
    # Without hidden layer and dropout there is no layer before the head, with dropout there is.
    paths = sweep(data, tmp_path / "dropout", draws=3, hidden=0)
    models = [json.loads((path / "model.json").read_text()) for path in paths.values()]
    assert len({model["network"]["dropout"] for model in models}) > 1
    average_sweep(tmp_path / "dropout")


def test_what_cannot_be_averaged_is_refused(data, made, tmp_path):
    folder, _ = made
    sweep(data, tmp_path / "bare", draws=1, keep_model=False)
    with pytest.raises(InputError, match=r"found 1 of 1 that did not: .*--keep-models"):
        average_sweep(tmp_path / "bare")
    sweep(data, tmp_path / "mixed", draws=2)
    other = sweep(data, tmp_path / "mixed", draws=1, hidden=9)
    with pytest.raises(InputError, match=r"got Linear.* in .*mixed.* has Linear.*one architect"):
        average_sweep(tmp_path / "mixed")
    assert len(other) == 1
    with pytest.raises(InputError, match="Expected --members uniform across trials"):
        average_sweep(folder, across_trials=True)
    with pytest.raises(UnknownNameError, match="Did you mean 'uniform'"):
        average_sweep(folder, rule="unifrom")
    with pytest.raises(InputError, match="Expected a folder outside of the sweep"):
        average_sweep(folder, folder / "averaged")


def test_colored_mnist_of_several_seeds_is_other_data(tmp_path):
    for seed in (0, 1):
        job = colored_job(seed=seed)
        train_job(job, tmp_path / "sweep" / job.folder, keep_model=True)
    (first, second) = average_sweep(tmp_path / "sweep", tmp_path / "out")
    assert (first.trials, second.trials) == ((0,), (1,))
    assert first.accuracies["test_accuracy"] == first.best["test_accuracy"]
    with pytest.raises(InputError, match="Expected runs on the same data"):
        average_sweep(tmp_path / "sweep", tmp_path / "all", rule="uniform", across_trials=True)
