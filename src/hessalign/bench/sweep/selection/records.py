"""Runs and their records, reduced to what selection needs so that large sweeps fit in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, final

from hessalign._errors import InputError

NoteKind = Literal[
    "torn line",
    "unreadable line",
    "repeated record",
    "empty run",
    "run not started",
    "unfinished run",
    "repeated run",
    "unread run",
    "missing",
]
"""What can be odd about a sweep without making its tables wrong."""


@final
@dataclass(frozen=True, slots=True)
class Note:
    """Something the reader of a table should know.

    Attributes:
        kind: What it is about.
        text: A sentence that names the file.
    """

    kind: NoteKind
    text: str


@final
class Record(NamedTuple):
    """Accuracies of a run after one of its steps, by domain.

    Attributes:
        step: The step, from 0.
        inner: Accuracy on the larger part of each domain ("in"); None for training domains where
            it was not measured, since no selection reads it.
        outer: Accuracy on the part of each domain that was held out ("out"); NaN, as in `inner`,
            only where no selection reads it.
    """

    step: int
    inner: tuple[float | None, ...]
    outer: tuple[float, ...]

    def test(self, domain: int) -> float:
        """The accuracy on a test domain, on its larger part.

        Args:
            domain: The index of a domain that was not trained on.

        Returns:
            A share; reading made sure that it is there.

        Raises:
            InputError: If it was not measured.
        """
        value = self.inner[domain]
        if value is None:
            raise InputError(f"Expected env{domain}_in_acc at step {self.step}, found none.")
        return value


@final
class RunKey(NamedTuple):
    """What tells a run from the others of a sweep.

    Attributes:
        dataset: Name of the data set.
        algorithm: Name of the algorithm.
        test_domains: Indices of the domains that were not trained on, ascending.
        trial_seed: Which trial.
        hparams_seed: Which draw of hyper-parameters.
    """

    dataset: str
    algorithm: str
    test_domains: tuple[int, ...]
    trial_seed: int
    hparams_seed: int

    def __str__(self) -> str:
        return (
            f"{self.algorithm} on {self.dataset} with test domains {braces(self.test_domains)}, "
            f"trial seed {self.trial_seed}, hyper-parameter seed {self.hparams_seed}"
        )


@final
class RunProtocol(NamedTuple):
    """What all runs of a table must share, under the names that records give it.

    Attributes:
        task: What is learned.
        holdout_fraction: How much of each domain is held out.
        uda_holdout_fraction: How much is set aside without labels.
        steps: Steps of training; None for the data set's own.
        checkpoint_freq: Steps between evaluations; None for the data set's own.
    """

    task: str | None
    holdout_fraction: float | None
    uda_holdout_fraction: float | None
    steps: int | None
    checkpoint_freq: int | None


@final
@dataclass(frozen=True, slots=True)
class Run:
    """A training run.

    Attributes:
        path: The file its records were read from.
        key: What tells it from the others.
        protocol: What it must share with the others.
        hparams: Its hyper-parameters.
        records: Its records by ascending step, at least one and one per step.
        done: Whether it was marked as done.
        unreadable: Numbers of lines before the last that are not records.
        domain_names: Names of the domains, if its records tell them.
    """

    path: str
    key: RunKey
    protocol: RunProtocol
    hparams: Mapping[str, object]
    records: tuple[Record, ...]
    done: bool = True
    unreadable: tuple[int, ...] = ()
    domain_names: tuple[str, ...] = ()

    @property
    def domains(self) -> int:
        """Number of domains of the data set."""
        return len(self.records[0].inner)


def braces(domains: tuple[int, ...]) -> str:
    """A set of domains as messages show it.

    Args:
        domains: Indices.

    Returns:
        For example "{0,2}".

    Example:
        >>> braces((0, 2))
        '{0,2}'
    """
    return "{" + ",".join(map(str, domains)) + "}"
