"""Model selection: which step of which run stands for an algorithm on an unseen domain.

Three methods, as DomainBed defines them. Each looks at the runs of one hyper-parameter seed of one
trial and returns its candidate; `choose` then takes the best candidate over the seeds. Whatever the
method, the accuracy reported is that on the larger part ("in") of the test domain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, final

import numpy as np

from hessalign._names import check_name
from hessalign.bench.sweep.selection.reading import Record, Run, braces

Runs = Mapping[tuple[int, ...], Run]
"""Runs of one data set, algorithm, trial and hyper-parameter seed, by test domains."""

_NO_TRAINING_DOMAIN: Final = "no training domain"


@final
class Candidate(NamedTuple):
    """A step of a run.

    Attributes:
        validation: The accuracy it is judged by.
        test: The accuracy that is reported.
        step: The step.
        run: The run, which has one test domain.
    """

    validation: float
    test: float
    step: int
    run: Run


@final
@dataclass(frozen=True)
class Selection:
    """A method of model selection.

    Attributes:
        name: How it is called on the command line.
        title: How tables call it, in DomainBed's words.
        candidate: From the runs of one hyper-parameter seed, by their test domains, and a test
            domain to the candidate, or why there is none.
        pairs: Whether it needs runs that leave out two domains.
    """

    name: str
    title: str
    candidate: Callable[[Runs, int], Candidate | str]
    pairs: bool = False


def training_domain(runs: Runs, test_domain: int) -> Candidate | str:
    """Best mean accuracy on the held-out parts of the training domains, over all steps.

    Returns:
        As `Selection` says; the earliest of equals.
    """
    run = runs.get((test_domain,))
    if run is None:
        return _without([(test_domain,)])
    if run.domains < 2:
        return _NO_TRAINING_DOMAIN
    judged = [
        (record, record.outer[:test_domain] + record.outer[test_domain + 1 :])
        for record in run.records
    ]
    return _best(run, test_domain, judged)


def leave_one_out(runs: Runs, test_domain: int) -> Candidate | str:
    """Best mean accuracy on training domains that were left out in turn, over all steps.

    The accuracy on domain v comes from the run with test domains {t, v}, on the larger part of v.
    Steps that not all runs recorded are dropped.

    Returns:
        As `Selection` says; the earliest of equals.
    """
    single = runs.get((test_domain,))
    if single is None:
        return _without([(test_domain,)])
    if single.domains < 2:
        return _NO_TRAINING_DOMAIN
    pairs = {
        domain: (min(domain, test_domain), max(domain, test_domain))
        for domain in range(single.domains)
        if domain != test_domain
    }
    missing = [pair for pair in pairs.values() if pair not in runs]
    if missing:
        return _without(missing)
    left_out = [
        {record.step: record.test(domain) for record in runs[pair].records}
        for domain, pair in pairs.items()
    ]
    judged = [
        (record, [accuracies[record.step] for accuracies in left_out])
        for record in single.records
        if all(record.step in accuracies for accuracies in left_out)
    ]
    if not judged:
        return f"no step recorded by all of its {len(pairs) + 1} runs"
    return _best(single, test_domain, judged)


def oracle(runs: Runs, test_domain: int) -> Candidate | str:
    """Accuracy on the held-out part of the test domain itself, at the last step only."""
    run = runs.get((test_domain,))
    if run is None:
        return _without([(test_domain,)])
    last = run.records[-1]
    return Candidate(last.outer[test_domain], last.test(test_domain), last.step, run)


_ROWS = (
    Selection("training-domain", "training-domain validation set", training_domain),
    Selection("leave-one-out", "leave-one-domain-out cross-validation", leave_one_out, pairs=True),
    Selection("oracle", "test-domain validation set (oracle)", oracle),
)

SELECTIONS: Mapping[str, Selection] = {row.name: row for row in _ROWS}
"""The methods by name, in the order in which results list them."""


def find_selection(name: str) -> Selection:
    """A method by its name; another name raises an UnknownNameError."""
    check_name("selection method", name, SELECTIONS)
    return SELECTIONS[name]


def choose(candidates: Iterable[Candidate]) -> Candidate:
    """The best candidate; of equals the one with the largest hyper-parameter seed, as in DomainBed.

    Args:
        candidates: One per hyper-parameter seed, at least one.

    Returns:
        The best.
    """
    return max(
        candidates, key=lambda candidate: (candidate.validation, candidate.run.key.hparams_seed)
    )


def _best(
    run: Run, test_domain: int, judged: Iterable[tuple[Record, Sequence[float]]]
) -> Candidate:
    """The step with the best mean of accuracies, the earliest of equals."""
    candidates = (
        Candidate(float(np.mean(values)), record.test(test_domain), record.step, run)
        for record, values in judged
    )
    return max(candidates, key=lambda candidate: (candidate.validation, -candidate.step))


def _without(sets: Iterable[tuple[int, ...]]) -> str:
    return f"no run with test domains {', '.join(map(braces, sets))}"
