"""Is a diagnosis right where the answer is known? `python -m benchmarks.known_shifts`.

Makes sites that differ in a known way, or do not, and compares what the diagnosis says: which kind
of shift it names, how good the remedy is that it recommends, and whether the held-out accuracies of
its page are those of a refit by hand. How good a remedy is, is measured on further samples of the
same sites: of several remedies the luckiest looks best on the few at hand.

Every run is kept as a line of `runs.jsonl` in the folder of work: after an interruption the same
command does what is missing. Remove that folder to begin anew.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from benchmarks.output import add_output, write_result
from benchmarks.report import table
from benchmarks.shift_cases import CASES, Case, Draws, Sites
from hessalign._errors import check_name
from hessalign.diagnosis.causes import cause_report
from hessalign.diagnosis.remedies import RemedyModels, remedy_report, right_answers
from hessalign.diagnosis.transfer import Sites as Samples

MOST_ALARMS = 0.05
LEAST_RIGHT = {"mild": 0.70, "strong": 0.95}
LEAST_REMEDIES = 0.90
POINT = 0.01
QUIET = 5  # times as many data sets without shift: 20 do not tell how rare false alarms are
FRESH = 20  # further samples of each site, as many as are at hand each time

Part = Literal["kinds", "remedies"]


class Task(NamedTuple):
    """One data set, and what is asked about it."""

    case: str
    seed: int
    part: Part


def run(task: Task) -> dict[str, Any]:
    """Make the data of a case and diagnose them.

    Args:
        task: The case, the seed of data and diagnosis, and the question.

    Returns:
        What came out.
    """
    torch.set_num_threads(1)
    (case,) = (case for case in CASES if case.name == task.case)
    return {**task._asdict(), **(kinds if task.part == "kinds" else remedies)(case, task.seed)}


def kinds(case: Case, seed: int) -> dict[str, Any]:
    """Whether the kinds of shift are named.

    Args:
        case: The known answer.
        seed: Of the data and of the diagnosis.

    Returns:
        The causes found; whether all there are were named, and the site if it is a single one;
        whether nothing else was; whether one is said to cost accuracy; what it took.
    """
    data = case.make(_draws(case, seed))
    start = time.process_time()
    report = cause_report(*_tensors(data), classes=data.classes, seed=seed)
    seconds = time.process_time() - start
    causes = [found.cause for found in report.findings]
    sites = {found.domain for found in report.findings if found.cause in case.causes}
    return {
        "causes": causes,
        "named": case.causes <= set(causes) and (case.site is None or sites == {case.site}),
        "only": set(causes) <= case.causes,
        "harmful": any(found.harmful for found in report.findings),
        "seconds": seconds,
    }


def remedies(case: Case, seed: int) -> dict[str, Any]:
    """Whether the remedy is a good one, and held-out accuracies are those of a refit.

    Args:
        case: The known answer.
        seed: Of the data and of the diagnosis.

    Returns:
        The remedy recommended; by remedy the accuracy at sites left out, of further samples and of
        those at hand; the largest difference of a held-out accuracy from that of a refit by hand;
        what trying took.
    """
    data = case.make(_draws(case, seed))
    sites = Samples(*_tensors(data), data.classes, seed=seed)
    start = time.process_time()
    models = RemedyModels(sites)
    report = remedy_report(models)
    seconds = time.process_time() - start
    right: dict[str, list[float]] = {remedy: [] for remedy in models.remedies}
    for again in range(1, FRESH + 1):
        fresh = Samples(*_tensors(case.make(_draws(case, seed, again))), data.classes)
        for e in range(sites.count):
            rows = fresh.rows([e])
            for remedy in models.remedies:
                said = models.answer(remedy, e, fresh.z[rows])[0]
                right[remedy].append(float(right_answers(said, fresh.y[rows]).mean()))
    plain = report.trials[0].sites
    differences = [abs(plain[e] - _by_hand(data, e)) for e in range(sites.count)]
    return {
        "recommended": report.recommended,
        "fresh": {remedy: float(np.mean(values)) for remedy, values in right.items()},
        "here": {trial.remedy: trial.accuracy for trial in report.trials},
        "refit": max(differences),
        "seconds": seconds,
    }


def _draws(case: Case, seed: int, again: int = 0) -> Draws:
    return Draws.seeded(seed, CASES.index(case), again=again)


def _tensors(data: Sites) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    x, y, domain = (torch.from_numpy(part) for part in (data.x, data.y, data.domain))
    return x, y, domain


def _by_hand(data: Sites, site: int) -> float:
    """Accuracy on a site of scikit-learn's logistic regression of all others, at its minimum."""
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    there = data.domain == site
    model = make_pipeline(
        SimpleImputer(strategy="median", add_indicator=True),
        StandardScaler(),
        LogisticRegression(tol=1e-8, max_iter=10_000),
    )
    return float(model.fit(data.x[~there], data.y[~there]).score(data.x[there], data.y[there]))


def short(outcome: dict[str, Any], where: str = "fresh") -> float:
    """How much less accurate the remedy recommended is than the best in hindsight.

    Args:
        outcome: Of remedies.
        where: On which samples, "fresh" or "here".

    Returns:
        The share of cases.
    """
    accuracy = outcome[where]
    return float(max(accuracy.values()) - accuracy[outcome["recommended"]])


def summarise(case: Case, outcomes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The rates of a case.

    Args:
        case: The known answer.
        outcomes: Of all seeds.

    Returns:
        What goes into the record.
    """
    found = [each for each in outcomes if each["part"] == "kinds"]
    tried = [each for each in outcomes if each["part"] == "remedies"]
    answers = Counter(" + ".join(each["causes"]) or "nothing" for each in found)

    def share(values: Sequence[bool]) -> float:
        return sum(values) / len(values)

    return {
        "case": case.name,
        "strength": case.strength,
        "causes": sorted(case.causes),
        "site": case.site,
        "runs": len(found),
        "tries": len(tried),
        "named": share([each["named"] for each in found]),
        "only": share([each["only"] for each in found]),
        "harmful": share([each["harmful"] for each in found]),
        "answers": dict(answers.most_common()),
        "remedy": share([short(each) <= POINT for each in tried]),
        "remedy_here": share([short(each, "here") <= POINT for each in tried]),
        "shortest": max(short(each) for each in tried),
        "recommended": dict(Counter(each["recommended"] for each in tried).most_common()),
        "refit": max(each["refit"] for each in tried),
        "seconds": {
            "kinds": float(np.median([each["seconds"] for each in found])),
            "remedies": float(np.median([each["seconds"] for each in tried])),
        },
    }


def targets(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Each target with what was reached.

    Args:
        rows: The cases.

    Returns:
        Lines of Markdown.
    """
    lines = []
    quiet = [row for row in rows if row["strength"] == "none"]
    if quiet:
        runs = sum(row["runs"] for row in quiet)
        alarms = round(sum((1 - row["only"]) * row["runs"] for row in quiet))
        verdict = "met" if alarms / runs <= MOST_ALARMS else "**missed**"
        lines.append(
            f"- False alarms without shift: {alarms} of {runs} runs, to be ≤ 5 %: {verdict}"
        )
    for strength, least in LEAST_RIGHT.items():
        shifted = [row for row in rows if row["strength"] == strength]
        missed = [row["case"] for row in shifted if row["named"] < least]
        if shifted:
            mean = sum(row["named"] for row in shifted) / len(shifted)
            verdict = f"**missed** by {', '.join(missed)}" if missed else "met"
            lines.append(
                f"- Right kind named, {strength} shift: {mean:.0%} on average, to be ≥ {least:.0%} "
                f"in each: {verdict}"
            )
    mean, here = (sum(row[key] for row in rows) / len(rows) for key in ("remedy", "remedy_here"))
    worst = max(row["refit"] for row in rows)
    return [
        *lines,
        f"- Remedy within 1 point of the best in hindsight: {mean:.0%}, to be ≥ 90 %: "
        f"{'met' if mean >= LEAST_REMEDIES else '**missed**'} (by the samples at hand, which "
        f"flatter the luckiest: {here:.0%})",
        f"- Held-out accuracy against a refit by hand: at most {100 * worst:.1f} points off, "
        f"to be ≤ 1: {'met' if worst <= POINT else '**missed**'}",
    ]


def page(rows: Sequence[dict[str, Any]], command: str) -> str:
    """The result as Markdown.

    Args:
        rows: The cases.
        command: What makes it.

    Returns:
        The text.
    """
    cells = []
    for row in rows:
        answers, recommended = (
            ", ".join(f"{name} {count}" for name, count in row[key].items())
            for key in ("answers", "recommended")
        )
        rates = [f"{row[key]:.0%}" for key in ("named", "only")]
        helped = [f"{row['remedy']:.0%}", f"{100 * row['shortest']:.1f}"]
        refit = f"{100 * row['refit']:.1f}"
        cells.append([row["case"], str(row["runs"]), *rates, answers, recommended, *helped, refit])
    header = ["case", "runs", "named", "nothing else", "answers"]
    header += ["recommended", "remedy", "short", "refit"]
    return "\n".join(
        [
            "# Known shifts",
            "",
            "What a diagnosis says of sites that differ in a known way "
            "(`benchmarks/shift_cases.py`). Named: all kinds of shift there are, and the site if "
            "it is a single one. Nothing else: no other kind. Remedy (of "
            f"{max(row['tries'] for row in rows)} runs each): how often the recommended "
            "one is within 1 point of the best in hindsight, that is of the accuracy of models "
            "fitted to the samples at hand without a site, on further samples of that site, "
            f"{FRESH} times as many as are at hand; short: by how many points it is worse, at "
            "most. Refit: largest difference of a held-out accuracy from a refit by hand, in "
            f"points. Made by `{command}`.",
            "",
            *targets(rows),
            "",
            table(header, cells),
        ]
    )


def plan(cases: Sequence[Case], seeds: int) -> list[Task]:
    """What is to be done: seed by seed, and kinds before remedies.

    Args:
        cases: The known answers.
        seeds: Data sets of each; without shift there are more of which kinds are asked.

    Returns:
        The tasks.
    """
    most = {case.name: seeds * (QUIET if case.strength == "none" else 1) for case in cases}
    kinds_of = [
        Task(name, seed, "kinds")
        for seed in range(seeds * QUIET)
        for name, count in most.items()
        if seed < count
    ]
    return kinds_of + [Task(case.name, seed, "remedies") for seed in range(seeds) for case in cases]


def run_all(tasks: Sequence[Task], log: Path, processes: int) -> Iterator[dict[str, Any]]:
    """Run what is not in the log yet, and add it there.

    Args:
        tasks: What is wanted.
        log: Lines of JSON.
        processes: How many run at a time.

    Yields:
        Every outcome, also those of before.
    """
    before = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    known = {Task(each["case"], each["seed"], each["part"]): each for each in before}
    wanted = [task for task in tasks if task not in known]
    if known:
        sys.stderr.write(f"{len(tasks) - len(wanted)} of {len(tasks)} runs are in {log}.\n")
    yield from (known[task] for task in tasks if task in known)
    log.parent.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(processes) as pool, log.open("a", encoding="utf-8") as file:
        for done in as_completed([pool.submit(run, task) for task in wanted]):
            outcome = done.result()
            file.write(json.dumps(outcome) + "\n")
            file.flush()
            yield outcome


def main(arguments: list[str]) -> int:
    """Run all cases and report.

    Args:
        arguments: The command line.

    Returns:
        The exit status, 0 also if a target is missed: that is a finding, not an error.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.known_shifts", description=__doc__)
    parser.add_argument("--seeds", type=int, default=20, metavar="N", help="data sets of each case")
    parser.add_argument("--cases", nargs="+", metavar="NAME", help="all by default")
    parser.add_argument("--processes", type=int, default=1, metavar="N", help="at a time")
    parser.add_argument("--work", type=Path, default=Path("outputs/known_shifts"), metavar="DIR")
    add_output(parser)
    options = parser.parse_args(arguments)
    names = [case.name for case in CASES]
    for name in options.cases or ():
        check_name("case", name, names)
    cases = [case for case in CASES if case.name in (options.cases or names)]
    tasks = plan(cases, options.seeds)
    found = list(run_all(tasks, options.work / "runs.jsonl", options.processes))
    rows = [
        summarise(case, [each for each in found if each["case"] == case.name]) for case in cases
    ]
    command = ["python -m benchmarks.known_shifts"]
    command += [f"--seeds {options.seeds}"] if options.seeds != parser.get_default("seeds") else []
    command += [" ".join(["--cases", *map(repr, options.cases)])] if options.cases else []
    write_result(options.output, "known_shifts", {"cases": rows}, page(rows, " ".join(command)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
