"""Specifications: read with all errors at once, written so that they can be read again."""

import dataclasses
import json
from pathlib import Path

import pytest
import yaml
from tests.sweep_jobs import write_bank

from hessalign._errors import ConfigurationError
from hessalign.bench.algorithms import ALGORITHMS
from hessalign.bench.sweep import SweepSpec, check_jobs, make_specification, open_sweep, sweep_jobs
from hessalign.bench.sweep.selection import SELECTIONS

PACS = {"datasets": "PACS", "algorithms": ["erm", "hgp"]}


def jobs_of(**entries):
    return sweep_jobs(make_specification(PACS | entries), without_data=True)


def test_the_defaults_are_domainbeds_without_pairs():
    spec = make_specification(PACS)
    assert (spec.trials, spec.draws, spec.steps, spec.preset) == (3, 20, None, "domainbed-2022")
    jobs = sweep_jobs(spec, without_data=True)
    assert len(jobs) == 2 * 4 * 20 * 3
    assert {job.hparams for job in jobs} == {None}
    assert {len(job.test_domains) for job in jobs} == {1}


def test_leave_one_out_brings_pairs():
    # The protocol: 600 jobs for each algorithm on four domains, of which 240 leave out one.
    assert len(jobs_of(selections=["leave-one-out"])) == 2 * 600
    assert len(jobs_of(selections=["training-domain", "oracle"])) == 2 * 240


@pytest.mark.parametrize("domains", ["sketch", ["sketch"], [3], {"PACS": [3, "sketch"]}])
def test_test_domains_by_name_or_number(domains):
    assert {job.test_domains for job in jobs_of(test_domains=domains)} == {(3,)}
    with_pairs = jobs_of(test_domains=domains, selections="all")
    assert {job.test_domains for job in with_pairs} == {(3,), (0, 3), (1, 3), (2, 3)}


def test_each_data_set_may_have_test_domains_of_its_own():
    spec = make_specification(
        {**PACS, "datasets": ["PACS", "VLCS"], "test_domains": {"VLCS": ["SUN09"]}}
    )
    found = {(job.dataset, job.test_domains) for job in sweep_jobs(spec, without_data=True)}
    assert found == {("VLCS", (2,)), *(("PACS", (domain,)) for domain in range(4))}


def test_jobs_carry_names_of_records_and_what_is_overridden():
    spec = make_specification(
        {**PACS, "algorithms": "all", "preset": "hgp-2023", "overrides": {"hidden": 8, "lr": 0.1}}
    )
    jobs = sweep_jobs(spec, without_data=True)
    assert {job.algorithm for job in jobs} == {info.recorded for info in ALGORITHMS.values()}
    (hparams,) = {job.hparams for job in jobs}
    assert hparams == '{"hidden": 8, "lr": 0.1, "preset": "hgp-2023"}'
    assert hparams == json.dumps(json.loads(hparams), sort_keys=True)


def test_algorithms_are_known_by_either_name():
    assert make_specification(PACS | {"algorithms": ["vrex", "VREx", "ERM"]}).algorithms == (
        "vrex",
        "erm",
    )


@pytest.mark.parametrize(
    "entries",
    [
        PACS,
        {
            "datasets": ["PACS", "VLCS"], "algorithms": "all", "data_dir": "d", "trials": 1,
            "draws": 2, "test_domains": {"PACS": ["sketch", 0]}, "preset": "hgp-2023", "steps": 9,
            "selections": list(SELECTIONS), "overrides": {"hidden": 8}, "evaluate": "all",
            "keep_models": True, "output": "o",
        },
    ],
)  # fmt: skip
def test_what_is_written_is_read_again(entries):
    spec = make_specification(entries)
    assert make_specification(yaml.safe_load(spec.to_yaml())) == spec


def test_all_mistakes_are_told_at_once():
    entries = {
        "datasets": [], "algorithms": ["erm", "corral", "hpg"], "trails": 3, "draws": 0,
        "trials": True, "steps": 1.5, "preset": "domainbed-2023", "selections": ["oracel"],
        "test_domains": [-1], "overrides": {"lr": [1]}, "evaluate": "some", "keep_models": "yes",
        "data_dir": 3,
    }  # fmt: skip
    with pytest.raises(ConfigurationError) as caught:
        make_specification(entries)
    text = str(caught.value)
    for part in (
        "Expected datasets as one or more names, got [].",
        "Unknown algorithm 'corral'.",
        "Did you mean 'coral'?",
        "Unknown algorithm 'hpg'.",
        "Unknown key of a sweep 'trails'.",
        "Did you mean 'trials'?",
        "Expected draws of 1 or more, got 0.",
        "Expected trials as a whole number of 1 or more, got True",
        "Expected steps as a whole number of 1 or more, got 1.5.",
        "Unknown preset 'domainbed-2023'.",
        "Did you mean 'oracle'?",
        "Expected test_domains as names or numbers from 0, 'all', or a mapping",
        "Expected overrides as names with one value each, got lr: [1].",
        "Unknown evaluate 'some'.",
        "Expected keep_models as true or false, got 'yes'.",
        "Expected data_dir as a path, got 3.",
    ):
        assert part in text
    assert text.startswith("14 problems")
    with pytest.raises(ConfigurationError, match=r"Expected datasets\.\n- Expected algorithms\."):
        make_specification({})


@pytest.mark.parametrize(
    ("entries", "text"),
    [
        ({"overrides": {"preset": "x"}}, "Expected preset as a key of the sweep, not among its"),
        ({"overrides": 3}, "Expected overrides as a mapping of names to values, got 3"),
        ({"test_domains": {"VLCS": [0]}}, "Unknown data set of test_domains 'VLCS'"),
    ],
)
def test_further_mistakes(entries, text):
    with pytest.raises(ConfigurationError, match=text):
        make_specification(PACS | entries)


def test_what_does_not_fit_the_data_is_told_at_once(tmp_path):
    write_bank(tmp_path, domains=2)
    entries = {
        "datasets": ["bank", "nowhere"], "data_dir": str(tmp_path), "algorithms": "erm",
        "selections": "leave-one-out", "test_domains": {"bank": ["sketch", 7]},
    }  # fmt: skip
    with pytest.raises(ConfigurationError) as caught:
        sweep_jobs(make_specification(entries))
    text = str(caught.value)
    assert "Expected 3 or more domains in bank for leave-one-out, found ('Bern', 'Como')." in text
    assert "Unknown domain of bank 'sketch'. Expected one of: 'Bern', 'Como'." in text
    assert "Unknown domain of bank 7." in text
    assert "Expected the data set 'nowhere'" in text


def test_overrides_that_no_run_understands_are_refused_before_any_is_begun(tmp_path):
    write_bank(tmp_path)
    entries = {"datasets": "bank", "data_dir": str(tmp_path), "algorithms": ["erm", "vrex"]}
    check_jobs(sweep_jobs(make_specification(entries | {"overrides": {"lr": 0.1}})))
    jobs = sweep_jobs(make_specification(entries | {"overrides": {"vrex_lamda": 1.0}}))
    with pytest.raises(ConfigurationError, match="Did you mean 'vrex_lambda'") as caught:
        check_jobs(jobs)
    assert len(caught.value.problems) == 2
    assert "hyper-parameter of ERM" in caught.value.problems[0]


def spec_with(**entries) -> SweepSpec:
    return make_specification(PACS | entries)


def test_a_sweep_may_grow_but_not_change_its_protocol(tmp_path):
    folder = open_sweep(tmp_path / "new" / "sweep", spec_with(trials=1))
    assert make_specification(yaml.safe_load((folder / "sweep.yaml").read_text())).trials == 1
    grown = spec_with(trials=2, draws=30, algorithms="all", datasets=["PACS", "VLCS"])
    assert open_sweep(folder, grown) == folder
    kept = make_specification(yaml.safe_load((folder / "sweep.yaml").read_text()))
    assert kept.data_folder == str(Path(grown.data_dir).absolute())
    assert dataclasses.replace(kept, data_folder=None) == grown
    before = (folder / "sweep.yaml").read_bytes()
    open_sweep(folder, spec_with(trials=1), keep=True)
    with pytest.raises(
        ValueError, match=r"another protocol: steps is None there and 10 here; overrides is \{\} th"
    ):
        open_sweep(folder, spec_with(steps=10, overrides={"lr": 1.0}))
    for change in ({"data_dir": "x"}, {"preset": "hgp-2023"}, {"evaluate": "all"}):
        with pytest.raises(ValueError, match=f"another protocol: {next(iter(change))} is"):
            open_sweep(folder, spec_with(**change))
    assert (folder / "sweep.yaml").read_bytes() == before


def test_a_folder_that_cannot_be_made_or_written_is_named(tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.touch()
    with pytest.raises(PermissionError, match=r"can be written to, got .*file/x: Not a directory"):
        open_sweep(blocked / "x", spec_with())
    # Root may write to folders of any mode, so the system's answer is replaced.
    monkeypatch.setattr("os.access", lambda path, mode: False)
    with pytest.raises(PermissionError, match=r"Permission denied\. Choose another with --output"):
        open_sweep(tmp_path / "read-only", spec_with())
    assert not (tmp_path / "read-only" / "sweep.yaml").exists()


def test_relative_folders_become_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert open_sweep(Path("out"), spec_with()) == tmp_path / "out"
