"""Malformed inputs in worker processes: `python -m benchmarks.fuzz --inputs 1000000 --seed 0`.

Every input follows from the seed, its target and its number, so `--target npz --case 17` does one
again, in this process. Workers are replaced when they crash or hang, which is a finding, as is an
error that is not for users to mend, code that was run, or the acceptance of what another reader
refuses or reads differently. What was done is kept in the folder of work: the same command goes on.
The result keeps the runs of other seeds, and `notes` that were written into it.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import torch

from benchmarks.fuzz.findings import FindingError
from benchmarks.fuzz.functions import FUNCTIONS
from benchmarks.fuzz.readers import CANARY, READERS
from benchmarks.output import write_result
from hessalign._files import write_atomically
from hessalign.bench.runs.machine import describe_software
from hessalign.report.progress import Progress

_TARGETS: Final = {**READERS, **FUNCTIONS}
_CHUNK: Final = 200
_SECONDS: Final = 30
"""Of the processor, that one input may take; by the clock it is ten times as much."""

_MEMORY: Final = 6 * 2**30
"""Address space of a worker: what asks for more is refused, instead of filling the machine."""


class HangError(Exception):
    """An input that takes too long."""


def _too_long(*_: object) -> None:
    raise HangError(f"more than {_SECONDS} s")


def _try(attempt: Any, folder: Path, name: str, seed: int, number: int) -> str:
    """One input: its outcome, or the finding as an exception."""
    signal.setitimer(signal.ITIMER_PROF, _SECONDS)
    try:
        outcome: str = attempt(random.Random(f"{seed}/{name}/{number}"))
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    if (folder / CANARY).exists():
        (folder / CANARY).unlink()
        raise FindingError("code in a file was run")
    return outcome


def describe(error: BaseException) -> str:
    """A finding in a line: what was raised, and where in the package."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [each for each in frames if "hessalign" in each.filename] or frames
    where = f"{Path(ours[-1].filename).name}:{ours[-1].name}" if ours else "?"
    return f"{type(error).__name__} in {where}: {' '.join(str(error).split())[:160]}"


def _serve(pipe: Connection, current: Any, name: str, seed: int, first: int, last: int) -> None:
    """In a worker: inputs of a target by their numbers, told of in chunks."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGPROF, _too_long)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    with tempfile.TemporaryDirectory(prefix="hessalign-fuzz-") as place:
        folder = Path(place)
        attempt = _TARGETS[name][1](folder)
        current.value = first
        for start in range(first, last, _CHUNK):
            counts: Counter[str] = Counter()
            findings: list[tuple[int, str]] = []
            end = min(last, start + _CHUNK)
            for number in range(start, end):
                current.value = number
                try:
                    counts[_try(attempt, folder, name, seed, number)] += 1
                except Exception as error:
                    counts["findings"] += 1
                    findings.append((number, describe(error)))
            pipe.send((end, counts, findings))


class _State:
    """What was done so far, by which states of the code, kept in a file."""

    def __init__(self, path: Path, seed: int) -> None:
        self.path = path
        self.next: dict[str, int] = {}
        self.counts: dict[str, dict[str, int]] = {}
        self.findings: list[list[Any]] = []
        self.code: dict[str, list[str]] = {}
        if path.exists():
            found = json.loads(path.read_text(encoding="utf-8"))
            if found.pop("seed") == seed:
                self.__dict__.update(found)
        self.seed = seed

    def add(self, name: str, end: int, counts: Counter[str], findings: Sequence[Any]) -> None:
        self.next[name] = end
        code = describe_software().get("git", "unknown")
        self.code[name] = [*dict.fromkeys([*self.code.get(name, []), code])]
        self.counts[name] = dict(Counter(self.counts.get(name, {})) + counts)
        self.findings += [[name, number, text] for number, text in findings]
        fields = {key: value for key, value in self.__dict__.items() if key != "path"}
        write_atomically(self.path, json.dumps(fields).encode())


def run_target(state: _State, name: str, last: int, show: Any) -> None:
    """All inputs of a target up to a number, by workers one after the other."""
    context = multiprocessing.get_context("fork")
    while (first := state.next.get(name, 0)) < last:
        ours, theirs = context.Pipe(duplex=False)
        current = context.Value("q", -1, lock=False)
        worker = context.Process(
            target=_serve, args=(theirs, current, name, state.seed, first, last)
        )
        worker.start()
        theirs.close()
        seen, since = -1, time.monotonic()
        try:
            while True:
                if ours.poll(1.0):
                    state.add(name, *ours.recv())
                    show()
                if current.value != seen:
                    seen, since = current.value, time.monotonic()
                elif time.monotonic() - since > 10 * _SECONDS:
                    worker.kill()
                if not worker.is_alive() and not ours.poll():
                    break
        except EOFError:
            pass
        worker.join()
        if worker.exitcode != 0:
            number = int(current.value)
            if number < 0:
                raise RuntimeError(f"The target {name} cannot be set up.")
            text = f"the worker ended with {worker.exitcode}"
            state.add(name, number + 1, Counter(findings=1), [(number, text)])


def shares(inputs: int, chosen: Sequence[str]) -> dict[str, int]:
    """How many of all inputs each target gets."""
    total = sum(_TARGETS[name][0] for name in chosen)
    return {name: round(inputs * _TARGETS[name][0] / total) for name in chosen}


def _totals(runs: Sequence[Mapping[str, Any]]) -> Counter[str]:
    counted = (Counter(counts) for run in runs for counts in run["targets"].values())
    return sum(counted, Counter[str]())


def report(runs: Sequence[Mapping[str, Any]]) -> str:
    """The page: all runs, each with its targets, findings, and what is to be said of them."""
    sums = _totals(runs)
    lines = [
        "# Malformed inputs",
        "",
        f"{sums.total():,} inputs: {sums['refused']:,} were refused with an error that says what "
        f"to mend, {sums['accepted']:,} accepted and found equal to what an independent reader "
        f"finds; {sums['findings']:,} findings (crashes, hangs, code that was run, other errors, "
        "silent acceptance of damage).",
    ]
    for run in runs:
        lines += ["", *_report_run(run)]
    return "\n".join(lines)


def _report_run(run: Mapping[str, Any]) -> list[str]:
    targets, total = run["targets"], _totals([run]).total()
    lines = [
        f"## Seed {run['seed']}",
        "",
        f"{total:,} inputs, from number 0 of each target, {_totals([run])['findings']:,} findings;",
        "one is done again by",
        f"`python -m benchmarks.fuzz --seed {run['seed']} --target NAME --case NUMBER`.",
        "",
        "| target | inputs | refused | accepted | findings | code |",
        "|:--|--:|--:|--:|--:|:--|",
    ]
    for name, counts in targets.items():
        kinds = ("refused", "accepted", "findings")
        cells = [sum(counts.values()), *(counts.get(kind, 0) for kind in kinds)]
        code = ", ".join(each[:7] + "*" * each.endswith("-dirty") for each in run["code"][name])
        lines.append(f"| {name} | {' | '.join(f'{cell:,}' for cell in cells)} | {code} |")
    found = [f"- {name} {number}: {text}" for name, number, text in run["findings"][:50]]
    notes = ["\n".join(found)] if found else []
    return [*lines, *(line for note in (*notes, *run["notes"]) for line in ("", note))]


def _with_others(path: Path, state: _State) -> list[dict[str, Any]]:
    """This run among those of other seeds in a result, by seed, with the notes on each."""
    found = json.loads(path.read_text(encoding="utf-8"))["runs"] if path.exists() else []
    runs = {run["seed"]: run for run in found}
    runs[state.seed] = {
        "seed": state.seed,
        "targets": state.counts,
        "code": state.code,
        "findings": state.findings,
        "notes": runs.get(state.seed, {}).get("notes", []),
    }
    return [runs[seed] for seed in sorted(runs)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Have inputs done, and write the page.

    Args:
        arguments: The command line; that of the process if None.

    Returns:
        0, or 1 if there were findings.
    """
    parser = argparse.ArgumentParser(prog="benchmarks.fuzz", description="Malformed inputs.")
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", action="append", choices=list(_TARGETS))
    parser.add_argument("--case", type=int, help="do one input of a target again")
    parser.add_argument("--work", type=Path, default=Path("outputs/fuzz"), metavar="DIR")
    parser.add_argument("--output", type=Path, default=Path("results/fuzz"), metavar="DIR")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    chosen = options.target or list(_TARGETS)
    options.work.mkdir(parents=True, exist_ok=True)
    if options.case is not None:
        folder = options.work / "case"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        attempt = _TARGETS[chosen[0]][1](folder.absolute())
        sys.stdout.write(_try(attempt, folder, chosen[0], options.seed, options.case) + "\n")
        return 0
    state, counts = (
        _State(options.work / "state.json", options.seed),
        shares(options.inputs, chosen),
    )
    with Progress("fuzz", "inputs", bar=True) as progress:
        for name, count in counts.items():
            run_target(
                state, name, count, lambda: progress(sum(state.next.values()), options.inputs)
            )
    runs = _with_others(options.output / "fuzz.json", state)
    write_result(options.output, "fuzz", {"runs": runs}, report(runs))
    return 1 if state.findings else 0


if __name__ == "__main__":
    sys.exit(main())
