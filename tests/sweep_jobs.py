"""Short real jobs on a synthetic feature bank, and what goes wrong with them, for launchers' tests.

Worker processes import this module, so what jobs do is here and not in the tests.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import time
from functools import partial
from pathlib import Path

import numpy as np

from hessalign.bench.runs import run_folder
from hessalign.bench.runs.run import train_job
from hessalign.bench.sweep import Task, list_jobs

DOMAINS = 3
CIRCUMSTANCES = ("seconds", "step_time", "mem_gb", "software")
"""Entries of a record that are not results: how long it took, and the commit, which may change."""


def write_bank(folder, *, name="bank", samples=60, features=8, classes=3, domains=DOMAINS):
    """Gaussian classes whose means move from domain to domain."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, classes, domains * samples)
    domain = np.repeat(np.arange(domains), samples)
    means, moves = rng.normal(size=(classes, features)), rng.normal(size=(domains, features))
    x = means[y] + 0.5 * moves[domain] + rng.normal(size=(len(y), features))
    folder.mkdir(parents=True, exist_ok=True)
    names = ["Bern", "Como", "Graz", "Lyon"][:domains]
    np.savez(folder / f"{name}.npz", x=x.astype(np.float32), y=y, domain=domain, domains=names)
    return folder


def wait_until(condition, seconds=300):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def make_jobs(data, count, *, algorithms=("ERM", "VREx"), steps=11):
    found = list_jobs(
        {"bank": DOMAINS}, algorithms, data_dir=str(data), n_hparams=5, n_trials=2, pairs=False,
        steps=steps,
    )  # fmt: skip
    assert len(found) >= count, len(found)
    return found[:count]


def make_tasks(sweep, jobs, launcher="one"):
    sweep.mkdir(parents=True, exist_ok=True)
    (sweep / "sweep.yaml").touch()
    return [Task(job, sweep, launcher) for job in jobs]


def log(folder, text):
    """Append a line, all at once, beside the folders of the jobs."""
    with (folder.parent / "log").open("a") as file:
        file.write(text + "\n")


def logged(sweep):
    path = sweep / "log"
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def train(job, folder):
    """Train, and log the steps and the end."""
    train_job(job, folder, report=lambda record: log(folder, f"step {job.folder} {record.step}"))
    log(folder, f"done {job.folder}")


def train_together(job, folder, launcher, launchers):
    """As `train`, but no job ends before every launcher has begun one."""
    log(folder, f"launcher {launcher}")
    wait_until(lambda: {each[1] for each in logged(folder.parent) if each[0] == "launcher"}
               >= set(launchers))  # fmt: skip
    train(job, folder)


def train_slowly(job, folder, seconds=0.1):
    run_folder.SECONDS_BETWEEN_CHECKPOINTS = 0.0
    log(folder, f"begun {job.folder}")

    def report(record):
        log(folder, f"step {job.folder} {record.step}")
        time.sleep(seconds)

    train_job(job, folder, report=report)
    log(folder, f"done {job.folder}")


def train_in_sight(job, folder):
    """As `train`, slowly, with a checkpoint after every step, and telling which process it is."""
    run_folder.SECONDS_BETWEEN_CHECKPOINTS = 0.0
    log(folder, f"process {job.folder} {os.getpid()}")

    def report(record):
        time.sleep(0.02)

    train_job(job, folder, report=report)


def train_patiently(job, folder, seconds):
    """As `train`, slowly, and telling which process it is."""
    run_folder.SECONDS_BETWEEN_CHECKPOINTS = 0.0
    log(folder, f"process {job.folder} {os.getpid()}")

    def report(record):
        log(folder, f"step {job.folder} {record.step}")
        time.sleep(seconds)

    train_job(job, folder, report=report)


def train_on_ray(job, folder, seconds=0.1):
    """As `train_slowly`, and telling which machine of a cluster and which GPUs it has."""
    import ray

    here, devices = ray.get_runtime_context().get_node_id(), ray.get_gpu_ids()
    log(folder, f"machine {job.folder} {here} {','.join(map(str, devices)) or 'none'}")
    train_slowly(job, folder, seconds)


def kill_workers(sweep, count, ended):
    """Kill whatever process began a job last, at random moments; the processes killed."""
    source, killed = random.Random(0), []
    while len(killed) < count and not ended.wait(source.uniform(0.02, 0.3)):
        processes = [int(each[2]) for each in logged(sweep) if each[0] == "process"]
        for process in reversed(processes[-2:]):
            if process not in killed:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
                    killed.append(process)
                break
    return killed


def train_among_killers(job, folder, victims=()):
    """As `train`, but workers that come to the middle of some jobs are killed, once per job."""
    mark = folder / "killed"
    often = job.folder in victims and not mark.exists()
    run_folder.SECONDS_BETWEEN_CHECKPOINTS = 0.0 if often else 30.0

    def report(record):
        log(folder, f"step {job.folder} {record.step}")
        if job.folder in victims and record.step >= 5 and not mark.exists():
            mark.touch()
            log(folder, f"killed {job.folder}")
            os.kill(os.getpid(), signal.SIGKILL)

    train_job(job, folder, report=report)
    log(folder, f"done {job.folder}")


def die(job, folder):
    os.kill(os.getpid(), signal.SIGKILL)


def fail_for(job, folder, algorithm="VREx"):
    if job.algorithm == algorithm:
        log(folder, f"failing {job.folder}")
        raise ZeroDivisionError("deliberately")
    train(job, folder)


def forget(job, folder):
    """A job that ends without saying that it is done."""


def killing(jobs, count):
    """Work that is killed in the middle of every other job, and how often that will be."""
    victims = frozenset(job.folder for job in jobs[:: max(1, len(jobs) // count)][:count])
    return partial(train_among_killers, victims=victims), len(victims)


def results(sweep, jobs):
    """Records by job without the circumstances in which they were made, and where they are."""
    found = {}
    for job in jobs:
        text = (Path(sweep) / job.folder / "results.jsonl").read_text()
        records = [json.loads(line) for line in text.splitlines()]
        for record in records:
            for name in CIRCUMSTANCES:
                record.pop(name, None)
            record["args"].pop("output_dir")
        found[job.folder] = records
    return found


def interrupt_when_begun(sweep):
    """Send this process what Ctrl-C sends it, once a job has made its second record."""
    wait_until(lambda: any((each[0], each[2:]) == ("step", ["1"]) for each in logged(sweep)))
    os.kill(os.getpid(), signal.SIGINT)
