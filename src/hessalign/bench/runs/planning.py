"""From a job to its plan: which protocol carries it out, and everything that does not fit."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from hessalign._errors import ConfigurationError, UserError, attempt, describe_error
from hessalign._names import UnknownNameError
from hessalign.bench.algorithms import find_algorithm
from hessalign.bench.data.catalog import COLORED_MNIST
from hessalign.bench.models.backbones import MNIST_CNN, describe_random_weights
from hessalign.bench.runs.domainbed import DomainBed, network_spec
from hessalign.bench.runs.irm import Irm
from hessalign.bench.runs.job import Job
from hessalign.bench.runs.plan import AbstractProtocol, Plan


def find_protocol(dataset: str) -> AbstractProtocol:
    """How runs on a data set are carried out: all but one as in DomainBed."""
    return Irm() if dataset == COLORED_MNIST else DomainBed()


def plan_job(job: Job, data_dir: Path | None = None) -> Plan:
    """Find the data of a job and settle its options.

    Args:
        job: The job.
        data_dir: The folder that holds the data set, if it is not where the job says.

    Returns:
        Everything that is needed to train it.

    Raises:
        UserError: If something does not fit.
        ConfigurationError: With everything that is wrong, if it is more than one thing.
    """
    place = Path(job.data_dir) if data_dir is None else data_dir
    protocol = find_protocol(job.dataset)
    try:
        return protocol.plan(job, place)
    except UserError as error:
        problems = _problems_one_by_one(job, protocol, place)
        if len(problems) < 2:
            raise
        raise ConfigurationError(problems) from error


def _problems_one_by_one(job: Job, protocol: AbstractProtocol, data_dir: Path) -> list[str]:
    """What is wrong with a job, and with each of its options on its own."""
    problems: list[str] = []
    bare = dataclasses.replace(job, steps=None, hparams=None)
    attempt(problems, protocol.plan, bare, data_dir)
    algorithm = attempt(problems, find_algorithm, job.algorithm)
    # The parts that are tried one by one stand beside what fits: neither hides the other.
    bare = dataclasses.replace(bare, test_domains=(0,))
    if algorithm is None:
        bare = dataclasses.replace(bare, algorithm=find_algorithm("erm").recorded)
    parts = [dataclasses.replace(bare, steps=job.steps)]
    overrides = json.loads(job.hparams) if job.hparams else {}
    parts += [
        dataclasses.replace(bare, hparams=json.dumps({key: value}))
        for key, value in overrides.items()
    ]
    for part in parts:
        try:
            protocol.plan(part, data_dir)
        except UserError as error:
            # Of an unknown algorithm nobody knows which hyper-parameters it has.
            if algorithm is not None or not isinstance(error, UnknownNameError):
                problems.append(str(error))
        except OSError as error:
            problems.append(describe_error(error))
    return list(dict.fromkeys(problems))


def describe_untrained(plan: Plan) -> str | None:
    """A warning if a backbone has random weights, unless it has to: those for digits."""
    if not isinstance(plan.protocol, DomainBed):
        return None
    spec = network_spec(plan)
    if not isinstance(spec.backbone, str) or spec.backbone == MNIST_CNN:
        return None
    return describe_random_weights(spec.backbone, spec.weights)


def lone_domain_warning(jobs: Iterable[Job], domains: Mapping[str, int]) -> str | None:
    """What to tell about runs that align domains but have a single one to train on.

    Returns:
        The warning, or None if there is no such run.

    Example:
        >>> job = Job("bank", "HGP", (1,), hparams_seed=0, trial_seed=0, data_dir="data")
        >>> lone_domain_warning([job], {"bank": 3}) is None
        True
        >>> str(lone_domain_warning([job], {"bank": 2})).split(":")[0]
        '1 run has only one domain to train on (bank'
    """
    lone = [
        job
        for job in jobs
        if domains[job.dataset] - len(job.test_domains) == 1
        and find_algorithm(job.algorithm).compares_domains
    ]
    if not lone:
        return None
    which = {f"{job.dataset}: {job.algorithm}": None for job in lone}
    runs = "1 run has" if len(lone) == 1 else f"{len(lone)} runs have"
    return (
        f"{runs} only one domain to train on ({', '.join(which)}): methods that align domains have "
        "nothing to align there. Leave fewer domains out, or use data with more domains."
    )
