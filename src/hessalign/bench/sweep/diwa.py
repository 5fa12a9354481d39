"""DiWA: one network from the runs of a sweep, by averaging their weights (Ramé et al., 2022).

Runs of one data set, algorithm, test domain and trial, which differ in their hyper-parameters, are
averaged. What is averaged is decided on the held-out parts of training domains alone.
"""

from __future__ import annotations

import dataclasses
import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from pathlib import Path
from statistics import fmean
from typing import Any, Final, final

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from hessalign._errors import InputError, Warn, check_name
from hessalign._files import make_folder, parse_json, write_atomically
from hessalign.bench.models import Network
from hessalign.bench.runs.averaging import Mean, install
from hessalign.bench.runs.job import job_from
from hessalign.bench.runs.loop import measure
from hessalign.bench.runs.machine import find_device
from hessalign.bench.runs.model_description import (
    DESCRIPTION,
    load_weights,
    name_some,
    read_description,
    rebuild,
)
from hessalign.bench.runs.plan import Plan, plan_job
from hessalign.bench.runs.records import DONE, RESULTS, Record
from hessalign.bench.runs.run import load_run, open_folder
from hessalign.bench.runs.run_folder import read_config
from hessalign.bench.runs.sampling import Inputs, Sampler, accuracy_and_loss, in_use
from hessalign.bench.sweep.selection import Run, read_runs
from hessalign.bench.sweep.selection.collection import finished_runs
from hessalign.report.tables import grouped

_MEMBERS: Final = "average.json"  # what an average is of, in its folder
_RULES: Final = ("restricted", "uniform")  # which runs of a group: greedily chosen ones, or all

_ONE_ARCHITECTURE: Final = (
    "Only runs of one architecture can be averaged: sweep with the same options of it."
)


@final
@dataclass(frozen=True)
class WeightAverage:
    """An average of the weights of runs, in a folder like that of a run.

    Of all runs, the best on held-out parts of training domains first, the members are averaged, as
    the rule says. Accuracies, by the names of records, are those of the average, and those of the
    best run. Test domains are there by name and by number.
    """

    path: str
    dataset: str
    algorithm: str
    test_domains: tuple[str, ...]
    trials: tuple[int, ...]
    rule: str
    runs: tuple[str, ...]
    members: tuple[str, ...]
    accuracies: Mapping[str, float]
    best: Mapping[str, float]
    numbers: tuple[int, ...]

    def held_out(self, accuracies: Mapping[str, float]) -> float:
        """Mean accuracy on the held-out parts of the training domains, which selection reads."""
        tested = {f"env{domain}_out_acc" for domain in self.numbers}
        found = {name: value for name, value in accuracies.items() if name.endswith("_out_acc")}
        return fmean(value for name, value in found.items() if name not in tested)

    def test(self, accuracies: Mapping[str, float]) -> float:
        """Accuracy on the larger parts of the test domains, which tables report."""
        return fmean(accuracies[f"env{domain}_in_acc"] for domain in self.numbers)


def average_sweep(
    folder: Path,
    output: Path | None = None,
    *,
    rule: str = "restricted",
    across_trials: bool = False,
    data_dir: Path | None = None,
    warn: Warn = lambda message: None,
) -> list[WeightAverage]:
    """Average the weights of the runs of a sweep, group by group.

    Args:
        folder: The sweep, which has kept its models.
        output: Where the averages go; unless said, beside the sweep: SWEEP-restricted, for example.
        rule: "uniform" averages all runs of a group. "restricted" goes through them from the best
            on, and keeps each that does not make the average worse; both are judged on the held-out
            parts of training domains.
        across_trials: Whether a group has the runs of all trials. What one trial holds out others
            train on, so nothing can be chosen then.
        data_dir: Where the data are, if they were moved.
        warn: Called with what the user should know but need not act on.

    Returns:
        The averages, of which each has the folder of a run. Those that an interrupted attempt has
        finished are not made again.

    Raises:
        InputError: If runs are missing or kept no model, or do not belong together.
    """
    check_name("rule for members", rule, _RULES)
    if across_trials and rule != "uniform":
        raise InputError(
            "Expected --members uniform across trials: what one trial holds out, others train on, "
            "so it cannot choose among their runs."
        )
    kind = f"{rule}-across-trials" if across_trials else rule
    place = folder.parent / f"{folder.resolve().name}-{kind}" if output is None else output
    if place.resolve().is_relative_to(folder.resolve()):
        raise InputError(
            f"Expected a folder outside of the sweep {folder}, got {place}: its tables would mix "
            "runs and averages. Choose another with --output."
        )
    groups = _alike(_groups(folder, across_trials, warn), warn)
    make_folder(place)
    before = {path.parent for path in place.glob(f"*/{DONE}")}
    made = [_average(group, place, rule, data_dir, warn) for group in groups]
    if before.issuperset(Path(each.path) for each in made):
        raise InputError(_taken(made[0].path))
    return made


def _groups(folder: Path, across_trials: bool, warn: Warn) -> list[list[Run]]:
    """The finished runs that are to be averaged with one another."""
    runs, notes = read_runs(folder)
    runs, unfinished = finished_runs(runs)
    for note in (*notes, *unfinished):
        warn(note.text)
    for run in runs:
        if not run.done:  # killed after its last record
            warn(f"{run.path}: it is not marked as done. The sweep goes on where it stopped.")
    runs = [run for run in runs if run.done]
    if not runs:
        raise InputError(f"Expected finished runs below {folder}, found none.")
    without = [path for path in map(_folder, runs) if not (path / DESCRIPTION).exists()]
    if without:
        raise InputError(
            f"Expected runs that kept their models below {folder}, found {len(without)} of "
            f"{len(runs)} that did not: {name_some(without)}. Sweeps keep them with --keep-models, "
            "or `keep_models: true` in the specification; train these again."
        )
    kept = 3 if across_trials else 4  # of data set, algorithm, test domains and trial
    groups = grouped(runs, lambda run: run.key[:kept])
    return [groups[key] for key in sorted(groups, key=repr)]


def _folder(run: Run) -> Path:
    return Path(run.path).parent


def _average(
    group: Sequence[Run], output: Path, rule: str, data_dir: Path | None, warn: Warn
) -> WeightAverage:
    """Average the runs of a group, measure, and write the folder."""
    began, key = time.perf_counter(), group[0].key
    trials = {_folder(run): run.key.trial_seed for run in group}
    folders, numbers = list(trials), sorted(set(trials.values()))
    _check_data(folders)
    first = load_run(folders[0], data_dir)
    network, place = first.network.to(find_device()), first.plan.data_dir
    tested = tuple(first.plan.data.domain_names[domain] for domain in key.test_domains)
    target = output / _name(key.dataset, key.algorithm, *tested, "trial", *numbers)
    if (target / DONE).exists():
        return _made_before(target, rule, folders)
    _check_starts(first.plan, folders, warn)
    some = {trial: path for path, trial in trials.items()}  # a run of each, for its splits
    plans = {trial: _plan(path, place) for trial, path in some.items()}
    inputs = first.plan.protocol.inputs(first.plan, warn)
    scores = {}
    for path in folders:
        _load(network, path, folders[0])
        scores[path] = _held_out(network, plans[trials[path]], inputs)
    ranked = sorted(folders, key=lambda path: -scores[path])
    plan = _plan(ranked[0], place)
    sampler = plan.protocol.sampler(plan, inputs)
    with in_use(sampler):
        score = partial(_held_out, network, plan, inputs) if rule == "restricted" else None
        mean, members = _choose(network, ranked, score, sampler)
        evaluate = plan.protocol.evaluation(plan, inputs, "all")
        best = measure(_load(network, ranked[0], folders[0]), evaluate, 0)
        install(network, mean, sampler)
        accuracies = measure(network, evaluate, 0)
    made = WeightAverage(
        str(target), key.dataset, key.algorithm, tested, tuple(numbers), rule,
        tuple(map(str, ranked)), tuple(map(str, members)), accuracies, best, key.test_domains,
    )  # fmt: skip
    _write(made, plan, network.cpu(), time.perf_counter() - began)
    return made


def _made_before(target: Path, rule: str, folders: Sequence[Path]) -> WeightAverage:
    """What an earlier attempt has finished; an average of other runs is refused."""
    with suppress(OSError, ValueError, TypeError):
        values = parse_json((target / _MEMBERS).read_text(encoding="utf-8"))
        texts: dict[str, Any] = {
            key: tuple(each) if isinstance(each, list) else each
            for key, each in dict(values).items()
        }
        made = WeightAverage(**texts | {"path": str(target)})
        if made.rule == rule and {Path(run).name for run in made.runs} == {p.name for p in folders}:
            return made
    raise InputError(_taken(target))


def _taken(target: str | Path) -> str:
    return (
        f"Expected no average in {target}, found one. Remove it, or choose another folder with "
        "--output."
    )


def _plan(folder: Path, data_dir: Path) -> Plan:
    """What the run in a folder is."""
    return plan_job(job_from(read_config(folder)), data_dir)


def _name(*parts: object) -> str:
    """The name of a folder; data sets and algorithms may be paths."""
    return re.sub(r"[^\w.+-]+", "-", "-".join(map(str, parts)))


def _check_data(folders: Sequence[Path]) -> None:
    """Refuse runs that were trained on different data."""
    prints = {path: read_description(path).data_sha256 for path in folders}
    other = [path for path in folders if prints[path] != prints[folders[0]]]
    if other:
        raise InputError(
            f"Expected runs on the same data, got other data in {other[0]} than in {folders[0]}: "
            "what one holds out, another may train on. Data that each seed makes anew cannot be "
            "averaged across seeds."
        )


def _alike(groups: Sequence[list[Run]], warn: Warn) -> list[list[Run]]:
    """The groups of which the networks are of one architecture; without any they are refused."""
    problems = [_other_layers([_folder(run) for run in group]) for group in groups]
    if all(problems):
        raise InputError(problems[0])
    for (run, *_), problem in zip(groups, problems, strict=True):
        if problem:
            warn(f"{run.key.algorithm} on {run.key.dataset} is left out. {problem}")
    return [group for group, problem in zip(groups, problems, strict=True) if not problem]


def _other_layers(folders: Sequence[Path]) -> str:
    """Which networks differ in more than weights, even if these fit one another; if some do."""
    layers = {path: _layers(rebuild(read_description(path))) for path in folders}
    for path, found in layers.items():
        for ours, theirs in zip_longest(found, layers[folders[0]], fillvalue="no layer"):
            if ours != theirs:
                return (
                    f"Expected runs of one architecture, got {ours} in {path} where {folders[0]} "
                    f"has {theirs}. {_ONE_ARCHITECTURE}"
                )
    return ""


def _layers(network: nn.Module) -> list[str]:
    """The layers of a network, but for those that do nothing in predictions."""
    parts = [each for each in network.modules() if not [*each.children()]]
    return [repr(each) for each in parts if not isinstance(each, _DropoutNd | nn.Identity)]


def _check_starts(plan: Plan, folders: Sequence[Path], warn: Warn) -> None:
    """Say so if runs began with different weights, of which an average may mean nothing."""
    first: list[Tensor] = []
    for path in folders:
        start = _plan(path, plan.data_dir)
        begun: list[Tensor] = [*start.protocol.start(start)[0].network.parameters()]
        first = first or begun
        if not all(map(torch.equal, first, begun)):
            warn(
                f"{folders[0].name} and {path.name} ({plan.info.name} on {plan.data.name}) began "
                "with different weights; DiWA wants a shared initialisation, without which "
                "averages of networks with hidden layers may be useless. Sweep with initial_seed=0."
            )
            return


def _load(network: Network, path: Path, first: Path) -> Network:
    """Give a network, in place, the weights of a run."""
    device = next(network.parameters()).device
    load_weights(network, path, f"the network of {first}", _ONE_ARCHITECTURE)
    return network.to(device)


@torch.no_grad()
def _held_out(network: Network, plan: Plan, inputs: Inputs) -> float:
    """Mean accuracy on the held-out parts of the training domains."""
    network.eval()
    found = []
    for domain in plan.sources:
        rows = plan.outer[domain]
        labels = plan.data.domains[domain].labels[torch.from_numpy(rows)]
        found.append(accuracy_and_loss(network, inputs.chunks(domain, rows), labels)[0])
    return fmean(found)


def _choose(
    network: Network, ranked: Sequence[Path], score: Callable[[], float] | None, sampler: Sampler
) -> tuple[Mean, list[Path]]:
    """The average of the best run and, in turn, of those that do not lower its score, if any."""
    kept, members, best = Mean(), list[Path](), -1.0
    for path in ranked:
        tried = Mean()
        tried.merge(kept)
        tried.add(list(_load(network, path, ranked[0]).parameters()))
        if score is not None:
            install(network, tried, sampler)
            found = score()
            if found < best:
                continue
            best = found
        kept, members = tried, [*members, path]
    return kept, members


def _write(found: WeightAverage, plan: Plan, network: Network, seconds: float) -> None:
    """The folder of a run that has one record, with what it is an average of."""
    target = Path(found.path)
    with open_folder(plan, target, "all", lambda message: None, keep_model=True) as folder:
        hparams = {"rule": found.rule}  # which all averages of a table share
        # In tables it is one run of one step, and the only draw.
        seeds = {"trial_seed": found.trials[0], "hparams_seed": 0}
        args = {**folder.form.args, **seeds, "steps": 1, "checkpoint_freq": 1}
        folder.form = dataclasses.replace(folder.form, hparams=hparams, args=args)
        (target / RESULTS).unlink(missing_ok=True)  # of an attempt that was interrupted
        records = [Record(0, seconds, {}, found.accuracies)]
        folder.append(records)
        text = json.dumps(dataclasses.asdict(found), indent=2)
        write_atomically(target / _MEMBERS, f"{text}\n".encode())
        folder.finish(network, records)
