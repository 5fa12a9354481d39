"""Runs on Colored MNIST in the form of version 0.1, made into folders as they are now.

They had a configuration of their own in `config.json`, `records.jsonl` instead of `results.jsonl`,
and `done.json` instead of `done`. What they did not measure, the accuracies of each domain's parts
by which sweeps select, they do not get.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from hessalign._errors import InputError, Warn
from hessalign._files import parse_json
from hessalign.bench.models.weights import DAMAGE, load_tensors
from hessalign.bench.runs.irm import irm_job
from hessalign.bench.runs.job import Job
from hessalign.bench.runs.plan import plan_job
from hessalign.bench.runs.records import Record
from hessalign.bench.runs.run import open_folder
from hessalign.bench.runs.run_folder import CONFIG, RunFolderError, TrainingState, read_config

_KEYS: Final = {
    "algorithm", "options", "seed", "imbalance", "train_images", "test_images", "steps", "jump",
    "penalty_weight", "learning_rate", "l2", "width", "evaluate_every", "hessian_distance",
}  # fmt: skip
"""What the configuration of such a run has."""


def is_old_run(folder: Path) -> bool:
    """Whether a folder holds a run in the form of version 0.1."""
    return (folder / CONFIG).exists() and read_config(folder).keys() >= _KEYS


def _old_job(config: Mapping[str, Any]) -> Job:
    """The job that is the same run as such a configuration."""
    rest = {key: value for key, value in config.items() if key in _KEYS}
    algorithm, seed, options = (rest.pop(key) for key in ("algorithm", "seed", "options"))
    return irm_job(algorithm, seed, {**options, **rest})


def convert_run(old: Path, output: Path, warn: Warn = lambda message: None) -> Path:
    """Make a complete run of version 0.1 into one of today below `output`; the old one stays."""
    if not is_old_run(old) or not (old / "done.json").exists():
        found = "one that is not complete" if is_old_run(old) else "none"
        raise RunFolderError(
            f"Expected a complete run on Colored MNIST of version 0.1 in {old}, found {found}. "
            "Have it ended by that version, or train it again."
        )
    job = _old_job(read_config(old))
    plan = plan_job(job)
    folder = output / job.folder
    records, software = _read(old / "records.jsonl")
    algorithm, generator = plan.protocol.start(plan)
    model = old / "model.pt"
    try:
        algorithm.load_state_dict(load_tensors(model))
    except DAMAGE as error:
        raise RunFolderError(f"Expected the model of the run in {model}: {error}") from error
    with open_folder(plan, folder, "all", warn, keep_model=True, software=software) as opened:
        if not opened.done:
            sampler = plan.protocol.sampler(plan, plan.protocol.inputs(plan, warn))
            state = TrainingState(algorithm, {}, sampler, generator)
            opened.resume(state)  # drops what an interrupted conversion has left
            for number in range(1, len(records) + 1):
                opened.append(records[:number])
            opened.finish(algorithm.network, records)
    return folder


def _read(path: Path) -> tuple[list[Record], Mapping[str, str]]:
    """The records of such a run, and what it was trained with."""
    records: list[Record] = []
    software: Mapping[str, str] = {}
    try:
        for line in path.read_text(encoding="utf-8").splitlines():
            entry = parse_json(line)
            software = entry["software"]
            values = (entry[key] for key in ("step", "seconds", "terms", "metrics"))
            records.append(Record(*values))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunFolderError(f"Expected the records of the run in {path}: {error!r}") from error
    if not records:
        raise InputError(f"Expected the records of the run in {path}, found none.")
    return records, software
