"""The jobs of a sweep, against those of a real one."""

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sweep_data import SWEEP, needs_sweep

from hessalign.bench.algorithms.search import common_space, hyper_parameters
from hessalign.bench.sweep import Job, held_out_sets, list_jobs

REAL = {"data_dir": "/checkpoint/dlp/datasets_new", "steps": 1001}


@pytest.mark.parametrize(
    ("test_domains", "hparams_seed", "trial_seed", "folder", "seed"),
    [
        ((1, 2), 1, 0, "0657090f9a83ff76efe083a104fde93a", 360234358),
        ((0, 1), 0, 1, "24c1684361b7442877526ab118da7117", 845862410),
        ((0, 3), 1, 0, "4ccfd57ae38cfc8fd5fba4293614ab26", 225583337),
        ((1, 2), 1, 1, "728347e87d1c533379956bf94dca6fef", 876870413),
        ((2,), 0, 1, "bfce2823ee1c49ab624fde5c5e2c1143", 729020776),
    ],
)
def test_real_folders(test_domains, hparams_seed, trial_seed, folder, seed):
    job = Job("VLCS", "ERM", test_domains, hparams_seed, trial_seed, **REAL)
    assert (job.folder, job.seed) == (folder, seed)


@needs_sweep
def test_every_job_of_a_real_sweep():
    jobs = list_jobs({"VLCS": 4}, ["ERM"], n_hparams=2, n_trials=2, **REAL)
    folders = {path.parent.name: path for path in (SWEEP / "runs").glob("*/results.jsonl")}
    assert len(jobs) == 40
    assert {job.folder for job in jobs} == folders.keys()
    for job in jobs:
        record = json.loads(folders[job.folder].read_text().splitlines()[0])
        assert job.args.items() <= record["args"].items()
        drawn = hyper_parameters(common_space("big"), job.hparams_seed, job.trial_seed)
        assert drawn == record["hparams"]


@pytest.mark.parametrize(
    ("domains", "pairs", "count"),
    [(4, True, 600), (4, False, 240), (6, True, 1260), (3, True, 360)],
)
def test_published_number_of_jobs(domains, pairs, count):
    jobs = list_jobs({"PACS": domains}, ["ERM"], data_dir="data", pairs=pairs)
    assert len({job.folder for job in jobs}) == len(jobs) == count


def test_order_is_trial_data_set_algorithm_domains_seed():
    jobs = list_jobs(
        {"VLCS": 3, "PACS": 4}, ["ERM", "IRM"], data_dir="d", n_trials=2, n_hparams=3, pairs=False,
        first_hparams_seed=1,
    )  # fmt: skip
    found = [
        (job.trial_seed, job.dataset, job.algorithm, job.test_domains, job.hparams_seed)
        for job in jobs
    ]
    assert found[:5] == [
        (0, "VLCS", "ERM", (0,), 1),
        (0, "VLCS", "ERM", (0,), 2),
        (0, "VLCS", "ERM", (1,), 1),
        (0, "VLCS", "ERM", (1,), 2),
        (0, "VLCS", "ERM", (2,), 1),
    ]
    assert found[-1] == (1, "PACS", "IRM", (3,), 2)
    assert len(set(found)) == len(found) == 2 * (3 + 4) * 2 * 2


@given(st.integers(3, 12))
def test_every_domain_is_left_out_alone_and_once_with_every_other(domains):
    sets = held_out_sets(domains)
    counts = Counter(domain for pair in sets if len(pair) == 2 for domain in pair)
    assert [item for item in sets if len(item) == 1] == [(i,) for i in range(domains)]
    assert all(counts[i] == domains - 1 for i in range(domains))
    assert len(set(sets)) == len(sets) == domains + domains * (domains - 1) // 2


def test_optional_arguments_identify_a_job_only_where_they_are_given():
    plain = Job("VLCS", "ERM", (0,), 0, 0, "data")
    assert {"steps", "hparams"}.isdisjoint(plain.args)
    longer = Job("VLCS", "ERM", (0,), 0, 0, "data", steps=10, hparams='{"lr": 1}')
    assert (longer.args["steps"], longer.args["hparams"]) == (10, '{"lr": 1}')
    assert longer.seed == plain.seed
    assert longer.folder != plain.folder


def test_mistakes_are_explained():
    for domains in ((), (1, 0), (1, 1), (-1,)):
        with pytest.raises(ValueError, match="Expected test_domains as one or more indices, each"):
            Job("VLCS", "ERM", domains, 0, 0, "data")
    with pytest.raises(ValueError, match=r"Expected 3 or more domains .* got 2\. Leave out"):
        held_out_sets(2)
    with pytest.raises(ValueError, match=r"Expected 2 or more domains .* got 1\.$"):
        held_out_sets(1, pairs=False)
    for change in (
        {"domains": {}}, {"algorithms": []}, {"n_trials": 0}, {"first_hparams_seed": 20}
    ):  # fmt: skip
        with pytest.raises(ValueError, match="Expected one or more data sets, algorithms, trials"):
            list_jobs(**{"domains": {"PACS": 4}, "algorithms": ["ERM"], "data_dir": "d", **change})
