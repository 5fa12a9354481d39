"""The head of any trained run, from its folder."""

import json

import numpy as np
import pytest
import torch
from tests.colored import colored_job
from torch import nn

from hessalign.bench.runs import Job, RunFolderError, load_run, train_job
from hessalign.bench.runs.run import trained_head
from hessalign.bench.runs.run_folder import find_run

JOB = colored_job("erm", test_images=90, steps=2)


def load_trained_head(folder, samples=None):
    return trained_head(load_run(find_run(folder)), samples)


@pytest.fixture(scope="module")
def colored(tmp_path_factory):
    folder = tmp_path_factory.mktemp("colored")
    train_job(JOB, folder, keep_model=True)
    return folder


@pytest.fixture(scope="module")
def features(tmp_path_factory):
    """A run on a small feature bank, and its folder."""
    root = tmp_path_factory.mktemp("features")
    rng = np.random.RandomState(0)
    x, y = rng.randn(60, 4).astype(np.float32), rng.randint(3, size=60)
    np.savez(root / "bank.npz", x=x, y=y, domain=np.array(["a", "b", "c"])[np.arange(60) % 3])
    job = Job("bank", "ERM", (1,), 0, 2, str(root), steps=3, hparams='{"hidden": 5}')
    train_job(job, root / "run", keep_model=True)
    return root


def test_the_head_of_a_run_on_features(features):
    trained = load_trained_head(features / "run")
    assert trained.names == ("a", "b", "c")
    assert (trained.targets, trained.sources) == ((1,), (0, 2))
    assert (trained.algorithm, trained.seed, trained.loss) == ("erm", 2, "cross_entropy")
    bank = np.load(features / "bank.npz")
    network = load_run(features / "run").algorithm.network.eval()
    for number, name in enumerate(trained.names):
        x = torch.from_numpy(bank["x"][bank["domain"] == name])
        with torch.no_grad():
            expected = network(x)
        mine = trained.logits[trained.domain == number]
        # The same rows in another order.
        order, found = (torch.argsort(rows[:, 0]) for rows in (expected, mine))
        torch.testing.assert_close(mine[found], expected[order])
        labels = torch.from_numpy(bank["y"][bank["domain"] == name])
        assert torch.equal(trained.y[trained.domain == number][found], labels[order])
    assert load_trained_head(features / "run", 7).domain.bincount().tolist() == [7, 7, 7]


def test_held_out_samples_are_those_of_the_split(features):
    run = load_run(features / "run")
    trained = trained_head(run, held_out=True)
    network = run.algorithm.network.eval()
    for number, rows in enumerate(run.plan.outer):
        with torch.no_grad():
            expected = network.features(run.plan.data.domains[number].inputs[rows])
        mine = trained.z[trained.domain == number]
        assert len(rows) == 4
        torch.testing.assert_close(mine.sum(0), expected.sum(0))


def test_the_head_of_a_colored_mnist_run(colored):
    trained = load_trained_head(colored, 30)
    assert trained.names == ("source 1", "source 2", "target")
    assert trained.targets == (2,)
    assert trained.loss == "binary"
    assert trained.domain.bincount().tolist() == [30, 30, 30]
    run = load_run(colored)
    torch.testing.assert_close(trained.logits, run.network.head(trained.z).detach())


def test_held_out_images_are_thirds_of_the_unseen_ones(colored):
    assert trained_head(load_run(colored), held_out=True).domain.bincount().tolist() == [30] * 3


def test_folders_without_such_a_run_are_named(features, tmp_path):
    with pytest.raises(RunFolderError, match=r"Expected a complete run in .* found none"):
        load_trained_head(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(RunFolderError, match="Expected a configuration in"):
        load_trained_head(tmp_path)
    (tmp_path / "config.json").write_text('{"test_envs": [0]}')
    with pytest.raises(RunFolderError, match="found a run that is not complete"):
        load_trained_head(tmp_path)
    (tmp_path / "done").write_text("")
    with pytest.raises(RunFolderError, match=r"Expected a run in .* arguments of a job, missing"):
        load_trained_head(tmp_path)
    config = json.loads((features / "run" / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(RunFolderError, match="Expected the trained model in"):
        load_trained_head(tmp_path)


def test_a_head_that_is_not_linear_is_refused(colored):
    run = load_run(colored)
    run.network.head = nn.Sequential(run.network.head)
    with pytest.raises(ValueError, match="Expected a run with a linear head, got Sequential"):
        trained_head(run)
