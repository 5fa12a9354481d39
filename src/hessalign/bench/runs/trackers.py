"""Runs followed elsewhere: in TensorBoard, MLflow, Weights & Biases, trackio, or what users bring.

A tracker is named `NAME` or `NAME=WHERE`; NAME is one of `TRACKERS`, the name by which an installed
package offers one (entry points, group hessalign.trackers), or `package.module:Name`. What is found
is called with WHERE, or None, and gives a `Tracker`. One that fails does not stop a run.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, Final, Literal, Protocol, final

from hessalign._errors import BUG, InputError, UnknownNameError, describe_error
from hessalign._plugins import call_plugin, entry_point_names, find_plugin, import_optional
from hessalign.bench.runs.averaging import AVERAGED
from hessalign.bench.runs.job import Job
from hessalign.bench.runs.plan import Plan, plan_job
from hessalign.bench.runs.processes import leads
from hessalign.bench.runs.records import Record
from hessalign.report.progress import warn

_GROUP: Final = "hessalign.trackers"
_PROJECT: Final = "hessalign"  # what runs belong to where nothing else is said
_Status = Literal["done", "failed", "interrupted"]
"""How a run ended."""


class Tracker(Protocol):
    """Follows one run, in the process that trains it.

    It is made before anything is trained; what it needs from outside, such as a package, is looked
    for then, and nothing is written yet. A run that is continued has the same `Job.folder`.
    """

    def start(self, job: Job, config: Mapping[str, object]) -> None:
        """Begin, just before the first record; `config` has the settings of the run by name."""

    def log(self, record: Record) -> None:
        """Take a record; metrics include the means over domains."""

    def finish(self, status: _Status) -> None:
        """End."""


def run_name(job: Job) -> str:
    """A name for a run, of letters that folders may have.

    Returns:
        What people tell it by, and the beginning of its folder's name, so that no other has it.

    Example:
        >>> run_name(Job("VLCS", "ERM", (1, 2), hparams_seed=1, trial_seed=0, data_dir="data"))
        'ERM-VLCS-test1_2-trial0-draw1-74b108'
    """
    tested = "_".join(map(str, job.test_domains))
    place = f"test{tested}-trial{job.trial_seed}-draw{job.hparams_seed}-{job.folder[:6]}"
    return re.sub(r"[^\w.@+-]", "_", f"{job.algorithm}-{job.dataset}-{place}")


def _values(record: Record) -> dict[str, float]:
    """The numbers of a record, by name."""
    groups = (("terms", record.terms), ("metrics", record.metrics))
    return {f"{group}/{name}": value for group, found in groups for name, value in found.items()}


def _load(package: str, module: str | None = None) -> Any:  # noqa: ANN401
    lacking = f"Logging to {package} needs {package}: pip install 'hessalign[{package}]'."
    return import_optional(module or package, lacking)


@final
class _TensorBoard:
    """Writes curves into a folder that `tensorboard --logdir WHERE` shows, one for each run."""

    def __init__(self, where: str | None) -> None:
        self._make = _load("tensorboard", "torch.utils.tensorboard").SummaryWriter
        if not where:
            raise InputError("Expected a folder for TensorBoard, as tensorboard=DIR, got none.")
        self._where = Path(where)
        self._writer: Any = None

    def start(self, job: Job, config: Mapping[str, object]) -> None:
        self._folder, self._config = str(self._where / run_name(job)), dict(config)

    def log(self, record: Record) -> None:
        """Write a record; what a run that is continued wrote after its checkpoint is dropped."""
        if self._writer is None:
            self._writer = self._make(self._folder, purge_step=record.step)
            text = json.dumps(self._config, indent=2, default=str)
            self._writer.add_text("config", f"```json\n{text}\n```", record.step)
        for name, value in _values(record).items():
            self._writer.add_scalar(name, value, record.step)
        self._writer.flush()

    def finish(self, status: _Status) -> None:
        self._writer.close()


@final
class _Mlflow:
    """Logs to MLflow; WHERE is a tracking URI, by default that of the environment."""

    _ended: Final = {"done": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}

    def __init__(self, where: str | None) -> None:
        mlflow = _load("mlflow")
        self._client, self._entities = mlflow.MlflowClient(tracking_uri=where), mlflow.entities

    def start(self, job: Job, config: Mapping[str, object]) -> None:
        """Begin a run of the experiment "hessalign", or go on with that of the same job."""
        experiment = self._experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME", _PROJECT))
        same = f"tags.`hessalign.job` = '{job.folder}'"
        found = self._client.search_runs([experiment], same, max_results=1)
        if found:
            self._run = found[0].info.run_id
            self._client.update_run(self._run, status="RUNNING")
            return
        tags = {"hessalign.job": job.folder, "dataset": job.dataset, "algorithm": job.algorithm}
        made = self._client.create_run(experiment, tags=tags, run_name=run_name(job))
        self._run = made.info.run_id
        params = [self._entities.Param(name, str(value)[:500]) for name, value in config.items()]
        self._client.log_batch(self._run, params=params)

    def _experiment(self, name: str) -> str:
        found = self._client.get_experiment_by_name(name)
        if found is None:
            try:
                return str(self._client.create_experiment(name))
            except Exception:  # another process was faster
                found = self._client.get_experiment_by_name(name)
                if found is None:
                    raise
        return str(found.experiment_id)

    def log(self, record: Record) -> None:
        now = int(1000 * time.time())
        found = _values(record).items()
        metrics = [self._entities.Metric(name, value, now, record.step) for name, value in found]
        self._client.log_batch(self._run, metrics=metrics)

    def finish(self, status: _Status) -> None:
        self._client.set_terminated(self._run, self._ended[status])


@final
class _WandbLike:
    """Logs by a package with the interface of wandb; WHERE is a project."""

    def __init__(self, package: str, where: str | None) -> None:
        self._package, self._wandb = _load(package), package == "wandb"
        self._project = where or _PROJECT

    def start(self, job: Job, config: Mapping[str, object]) -> None:
        """Begin a run, or go on with that of the same job, told by its id or name."""
        identity = {"id": job.folder} if self._wandb else {}
        group = f"{job.dataset} {job.algorithm}"
        self._run: Any = self._package.init(
            project=self._project,
            name=run_name(job),
            group=group,
            config=dict(config),
            resume="allow",
            **identity,
        )

    def log(self, record: Record) -> None:
        self._run.log(_values(record), step=record.step)

    def finish(self, status: _Status) -> None:
        self._run.finish(**({"exit_code": int(status != "done")} if self._wandb else {}))


TRACKERS: Final[Mapping[str, Callable[[str | None], Tracker]]] = {
    "tensorboard": _TensorBoard,
    "mlflow": _Mlflow,
    "wandb": partial(_WandbLike, "wandb"),
    "trackio": partial(_WandbLike, "trackio"),
}
"""What makes trackers, by name."""


def find_tracker(text: str) -> Tracker:
    """A tracker by `NAME` or `NAME=WHERE`, as the module says, which has not begun."""
    name, _, where = text.partition("=")
    make = TRACKERS.get(name) or find_plugin(_GROUP, name, "tracker")
    if make is None:
        known = [*TRACKERS, *entry_point_names(_GROUP), "package.module:Name"]
        raise UnknownNameError("tracker", name, known)
    tracker: Tracker = call_plugin(name, "tracker", make, where or None)
    return tracker


def named_trackers(names: Sequence[str] | None, tensorboard: Path | None) -> list[str]:
    """The trackers that a command line names; what is wrong is told before anything is trained."""
    found = [*(names or ()), *([] if tensorboard is None else [f"tensorboard={tensorboard}"])]
    for name in found:
        find_tracker(name)
    return found


_failed: Final[set[str]] = set()
"""Trackers that failed in this process, which follow no more runs here: each may take its time."""


@contextmanager
def tracking(
    names: Sequence[str], plan: Plan, show: Callable[[Record], None] = lambda record: None
) -> Iterator[Callable[[Record], None]]:
    """Show a run and have trackers follow it, from its first record; not one that is complete."""
    config = {**plan.job.args, "steps": plan.steps, **plan.values}
    config.pop("hparams", None)
    begun: dict[str, Tracker] = {}

    def start(name: str) -> None:
        tracker = find_tracker(name)
        tracker.start(plan.job, dict(config))
        begun[name] = tracker

    def log(record: Record) -> None:
        whole = _with_means(plan, record)
        show(whole)
        for name in names if leads() else ():
            if name not in begun:
                _attempt(name, start, name)
            if name in begun:
                _attempt(name, begun[name].log, copy.deepcopy(whole))  # theirs to change

    status: _Status = "failed"
    try:
        yield log
        status = "done"
    except KeyboardInterrupt:
        status = "interrupted"
        raise
    finally:
        for name, tracker in begun.items():
            _attempt(name, tracker.finish, status)


def _attempt(name: str, do: Callable[..., object], *given: object) -> None:
    """Do something by a tracker that has not failed; if it fails, say so once."""
    if name in _failed:
        return
    try:
        do(*given)
    except (Exception, SystemExit) as error:  # whatever it is, training goes on
        _failed.add(name)
        reason = " ".join(describe_error(error).removeprefix(BUG).split())
        warn(f"the tracker {name!r} failed and follows no more runs of this process: {reason}")


def _with_means(plan: Plan, record: Record) -> Record:
    """A record with the mean accuracies over training and test domains, if it lacks them."""
    found = record.metrics
    if "test_accuracy" in found:
        return record
    validation = fmean(found[f"env{domain}_out_acc"] for domain in plan.sources)
    test = fmean(found[f"env{domain}_in_acc"] for domain in plan.job.test_domains)
    means = {"validation_accuracy": validation, "test_accuracy": test}
    if plan.options.average is not None:
        names = [f"{AVERAGED}env{domain}_in_acc" for domain in plan.job.test_domains]
        means[f"{AVERAGED}test_accuracy"] = fmean(found[name] for name in names)
    return dataclasses.replace(record, metrics={**found, **means})


def tracked_work(
    work: Callable[..., object], trackers: Sequence[str], data_dir: Path, job: Job, folder: Path
) -> None:
    """Do a job of a sweep by `work`, which takes `report`, and have it followed; see `Work`."""
    with tracking(trackers, plan_job(job, data_dir)) as log:
        work(job, folder, report=log)
