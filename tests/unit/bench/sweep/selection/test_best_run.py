"""The run that predicts for a sweep."""

import json
from pathlib import Path

import pytest
from tests.sweeps import record, write

from hessalign._errors import InputError, UnknownNameError
from hessalign.bench.sweep.selection.collection import best_run

NAMES = ["art", "cartoon", "photo"]


def put(folder, test_envs, validation, *, algorithm="ERM", seed=0, trial=0, dataset="mine"):
    """A run whose training domains have these validation accuracies, step by step."""
    records = []
    for step, level in enumerate(validation):
        made = record(
            step, test_envs, seed=seed, trial=trial, algorithm=algorithm, dataset=dataset,
            level=level, args={"steps": len(validation), "checkpoint_freq": 1}.items(),
        )  # fmt: skip
        for domain in test_envs:
            made[f"env{domain}_in_acc"], made[f"env{domain}_out_acc"] = 0.1, 1 - level
        records.append({**made, "domain_names": NAMES})
    return write(folder / f"{dataset}-{algorithm}-{test_envs}-{trial}-{seed}", records)


@pytest.fixture
def sweep(tmp_path):
    put(tmp_path, (2,), [0.5, 0.6])
    put(tmp_path, (2,), [0.9, 0.7], seed=1)
    put(tmp_path, (2,), [0.6, 0.8], algorithm="HGP", trial=1)
    return tmp_path


def test_the_best_over_algorithms_trials_and_draws(sweep):
    chosen = best_run(sweep, "training-domain")
    assert (chosen.run.key.algorithm, chosen.run.key.hparams_seed, chosen.step) == ("ERM", 1, 0)
    assert chosen.validation == pytest.approx(0.9)
    assert Path(chosen.run.path).name == "results.jsonl"


def test_the_oracle_and_a_named_algorithm(sweep):
    assert best_run(sweep, "oracle").validation == pytest.approx(0.4)  # the last steps
    assert best_run(sweep, "training-domain", algorithm="hgp").run.key.algorithm == "HGP"
    assert best_run(sweep, "training-domain", algorithm="HGP").run.key.trial_seed == 1


def test_several_domains_or_data_sets_have_to_be_told_apart(sweep):
    put(sweep, (0,), [0.95, 0.95])
    with pytest.raises(InputError, match=r"Expected --test-domain .* has several: art, photo"):
        best_run(sweep, "training-domain")
    assert best_run(sweep, "training-domain", test_domain="art").run.key.test_domains == (0,)
    assert best_run(sweep, "training-domain", test_domain="2").validation == pytest.approx(0.9)
    put(sweep, (0,), [0.2, 0.2], dataset="other")
    with pytest.raises(InputError, match=r"Expected --dataset .* has several: mine, other"):
        best_run(sweep, "training-domain", test_domain="art")
    chosen = best_run(sweep, "training-domain", test_domain="art", dataset="other")
    assert chosen.run.key.dataset == "other"


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ({"selection": "oracl"}, UnknownNameError, "Did you mean 'oracle'"),
        ({"dataset": "PACS"}, UnknownNameError, "Unknown dataset of the sweep 'PACS'"),
        ({"algorithm": "irm"}, UnknownNameError, "Unknown algorithm of the sweep 'IRM'"),
        ({"test_domain": "phot"}, UnknownNameError, "Did you mean 'photo'"),
        ({"test_domain": "art"}, InputError, r"for art .* found none: .*no run with test domains"),
        ({"selection": "leave-one-out", "test_domain": "photo"}, InputError, "no run with test"),
    ],
)
def test_what_is_not_there(sweep, given, error, text):
    with pytest.raises(error, match=text):
        best_run(sweep, **{"selection": "training-domain", **given})


def test_runs_that_are_not_finished_are_passed_over(sweep):
    for path in sweep.glob("*ERM*1/results.jsonl"):
        path.write_text(json.dumps(json.loads(path.read_text().splitlines()[0])) + "\n")
    assert best_run(sweep, "training-domain").run.key.algorithm == "HGP"
