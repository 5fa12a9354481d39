"""Small sweeps: runs as objects, and as the files that DomainBed would write."""

from __future__ import annotations

import json
from itertools import combinations

from hessalign.bench.sweep.selection import Record, Run, RunKey, RunProtocol

PROTOCOL = RunProtocol("domain_generalization", 0.2, 0, 2, 1)


def run(test_domains, accuracies, *, seed=0, trial=0, dataset="PACS", algorithm="ERM", **changes):
    """A run from (in, out) pairs by step and domain; steps count from 0 unless given as a dict."""
    steps = accuracies if isinstance(accuracies, dict) else dict(enumerate(accuracies))
    records = tuple(
        Record(step, tuple(a for a, _ in domains), tuple(b for _, b in domains))
        for step, domains in steps.items()
    )
    key = RunKey(dataset, algorithm, tuple(test_domains), trial, seed)
    path = f"{dataset}-{algorithm}-{test_domains}-{trial}-{seed}/results.jsonl"
    values = {
        "path": path, "key": key, "protocol": PROTOCOL, "hparams": {"lr": seed}, "records": records
    }  # fmt: skip
    return Run(**{**values, **changes})


def record(
    step, test_envs, *, seed=0, trial=0, domains=3, level=0.5, dataset="Debug28", algorithm="ERM",
    args=(), **fields,
):  # fmt: skip
    """One record as DomainBed writes it; accuracies are `level` unless given as fields."""
    found = {
        "args": {
            "algorithm": algorithm, "checkpoint_freq": 1, "data_dir": "data", "dataset": dataset,
            "holdout_fraction": 0.2, "hparams": None, "hparams_seed": seed, "output_dir": "x",
            "seed": 0, "steps": 2, "task": "domain_generalization", "test_envs": list(test_envs),
            "trial_seed": trial, "uda_holdout_fraction": 0, **dict(args),
        },
        "epoch": 0.0, "hparams": {"lr": 0.1 * seed, "batch_size": 8}, "loss": 1.5, "step": step,
        "step_time": 0.1,
    }  # fmt: skip
    for domain in range(domains):
        found[f"env{domain}_in_acc"] = level
        found[f"env{domain}_out_acc"] = level
    return {**found, **fields}


def write(folder, records, *, done=True):
    """Write one run."""
    folder.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(item, sort_keys=True) + "\n" for item in records)
    (folder / "results.jsonl").write_text(text)
    if done:
        (folder / "done").write_text("done")
    return folder / "results.jsonl"


def all_sets(domains):
    singles = [(i,) for i in range(domains)]
    return singles + list(combinations(range(domains), 2))


def write_sweep(root, *, trials=2, seeds=2, without=(), algorithms=("ERM",), dataset="Debug28"):
    """A complete sweep of three domains and two steps, except the runs (trial, sets) in `without`.

    Accuracies grow with the step and the hyper-parameter seed, so that the last of both is chosen,
    and differ between domains and trials: 0.5 + 0.1 domain + 0.01 trial + 0.04 seed + 0.02 step.
    """
    for algorithm in algorithms:
        for trial in range(trials):
            for domains in all_sets(3):
                if (trial, domains) in without:
                    continue
                for seed in range(seeds):
                    name = f"{algorithm}-{trial}-{seed}-{'_'.join(map(str, domains))}"
                    records = [
                        record(
                            step, domains, seed=seed, trial=trial, dataset=dataset,
                            algorithm=algorithm, **levels(step, seed, trial),
                        )
                        for step in range(2)
                    ]  # fmt: skip
                    write(root / name, records)
    return root


def levels(step, seed, trial):
    return {
        f"env{domain}_{part}_acc": round(
            0.5 + 0.1 * domain + 0.01 * trial + 0.04 * seed + 0.02 * step, 6
        )
        for domain in range(3)
        for part in ("in", "out")
    }
