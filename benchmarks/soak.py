"""Sweeps whose processes are killed at random moments: `python -m benchmarks.soak --kills 1000`.

Sweep after sweep of nine short runs is begun by `hessalign sweep run`, killed with SIGKILL, begun
again, and so on until it is complete; then its records and tables are compared with those of a
sweep that nothing happened to, done one run after the other. Some sweeps have two drivers at a
time, some have workers, which are killed while their driver lives on. Checkpoints are written after
every step, so that every moment of writing one is met.

Drivers are forked from this process, which has done that sweep, so they cost no start of Python. A
sweep that is complete is kept as a line of `rounds.jsonl` in the folder of work; after an
interruption the same command goes on with the next. In the end there is a page in results/soak.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from benchmarks.output import write_result
from hessalign.bench.runs import run_folder
from hessalign.cli import main as hessalign_main
from hessalign.report.progress import Progress

_SWEEP: Final = (
    "sweep", "run", "--datasets", "bank", "--data-dir", "data", "--algorithms", "erm", "vrex",
    "hgp", "--trials", "1", "--draws", "1", "--steps", "16", "hidden=4", "evaluate_every=3",
)  # fmt: skip
_RUNS: Final = 9
_KINDS: Final = {"one driver": 7, "two drivers": 2, "workers": 1}
"""How sweeps are done, and how often each way is taken."""

_SERVERS: Final = 2
"""Processes of a driver beside its workers, which multiprocessing starts before these."""

_TIMES: Final = ("seconds", "step_time", "software")
"""Entries of a record that are no results."""

_LONGEST: Final = 180.0
"""Seconds after which a driver that does not end is a finding."""


class SoakError(AssertionError):
    """Something that a sweep must not do."""


def write_bank(folder: Path) -> None:
    """A data set of 180 samples in three classes and three domains."""
    source = np.random.default_rng(0)
    y, domain = source.integers(0, 3, 180), np.repeat(np.arange(3), 60)
    x = source.normal(size=(3, 8))[y] + source.normal(size=(180, 8))
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / "bank.npz", x=x.astype(np.float32), y=y, domain=domain)


def start_driver(work: Path, sweep: str, *flags: str) -> int:
    """A process, with a session of its own, that has a sweep done; its number."""
    process = os.fork()
    if process:
        return process
    code = 70
    try:
        os.setsid()
        with (work / f"{sweep}.log").open("a", encoding="utf-8") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        run_folder.SECONDS_BETWEEN_CHECKPOINTS = 0.0  # type: ignore[misc]
        code = hessalign_main([*_SWEEP, "--output", sweep, *flags])
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def wait_for(process: int, seconds: float) -> int | None:
    """The exit code of a child that ends within some seconds, negative for a signal; else None."""
    end = time.monotonic() + seconds
    while True:
        found, status = os.waitpid(process, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() >= end:
            return None
        time.sleep(0.002)


def kill(process: int) -> None:
    """Kill a child and all processes of its session, and wait until it is gone."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process, signal.SIGKILL)
    os.waitpid(process, 0)


def children(process: int) -> list[int]:
    """Processes that another one has, and theirs."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(path.read_text().rpartition(")")[2].split()[1]) == process:
                found += [int(path.parent.name), *children(int(path.parent.name))]
    return found


def results(sweep: Path) -> dict[str, list[str]]:
    """The records of complete runs, as text without times and places."""
    found = {}
    for done in sorted(sweep.glob("*/done")):
        lines = (done.parent / "results.jsonl").read_text(encoding="utf-8").splitlines()
        records = [json.loads(line) for line in lines]
        for record in records:
            record["args"].pop("output_dir")
            for name in _TIMES:
                record.pop(name, None)
        found[done.parent.name] = [json.dumps(record, sort_keys=True) for record in records]
    return found


def stamps(sweep: Path) -> dict[str, tuple[int, int, int]]:
    """Which files complete runs consist of: another file, or another time, is another run."""
    found = {}
    for path in [
        *sweep.glob("*/done"),
        *(p.parent / "results.jsonl" for p in sweep.glob("*/done")),
    ]:
        status = path.stat()
        found[str(path)] = status.st_ino, status.st_size, status.st_mtime_ns
    return found


def tables(sweep: Path) -> str:
    """What `hessalign collect` says of a sweep."""
    with contextlib.redirect_stdout(io.StringIO()) as output:
        code = hessalign_main(["collect", str(sweep)])
    if code != 0:
        raise SoakError(f"`hessalign collect` of {sweep} ended with {code}.")
    return output.getvalue().replace(str(sweep), "SWEEP")


def moment(sweep: Path) -> str:
    """Where a kill has met a sweep, by what it left."""
    runs = [path for path in sweep.glob("*/") if not (path / "done").exists()]
    if any(list(path.glob("*.partial")) for path in runs):
        return "while a file was written"
    if any(list(path.glob("checkpoint-*.pt")) for path in runs):
        return "in a run with a checkpoint"
    return "in a run without one" if runs else "between runs, or before the first"


class _Round:
    """One sweep that is killed until it is complete."""

    def __init__(self, work: Path, number: int, seed: int, limit: int) -> None:
        self.work, self.name, self.limit = work, f"round-{number:04d}", limit
        self.sweep = work / self.name
        self.source = random.Random(f"{seed}/{number}")
        self.kind = self.source.choices(list(_KINDS), list(_KINDS.values()))[0]
        self.kills = 0
        self.seen: dict[str, tuple[int, int, int]] = {}
        self.moments: Counter[str] = Counter()
        shutil.rmtree(self.sweep, ignore_errors=True)
        (work / f"{self.name}.log").unlink(missing_ok=True)

    def flags(self) -> list[str]:
        workers = ["--launcher", "local", "--jobs", "2"]
        return [
            "--retry-failed",
            *(workers if self.kind == "workers" else ["--launcher", "serial"]),
        ]

    def look(self) -> None:
        """No complete run is lost, or done again."""
        found = stamps(self.sweep)
        for path, stamp in self.seen.items():
            if found.get(path) != stamp:
                raise SoakError(f"{path} was complete; it is now lost or another.")
        self.seen = found

    def count(self) -> None:
        self.kills += 1
        self.moments[moment(self.sweep)] += 1
        self.look()

    def disturb(self) -> None:
        """Begin drivers and kill them, or their workers, unless they end before."""
        many = 2 if self.kind == "two drivers" else 1
        drivers = [start_driver(self.work, self.name, *self.flags()) for _ in range(many)]
        for driver in self.source.sample(drivers, many):
            if self.kind == "workers" and self.kill_workers(driver):
                continue
            code = wait_for(driver, self.source.uniform(0.0, 0.5))
            if code is None:
                kill(driver)
                self.count()
            else:
                self.check_code(code)

    def kill_workers(self, driver: int) -> bool:
        """Kill a driver's workers, or the server they come from; whether it has ended then."""
        for _ in range(self.source.randint(1, 8)):
            end = time.monotonic() + 10.0
            while (code := wait_for(driver, 0.02)) is None and time.monotonic() < end:
                if len(victims := children(driver)) > _SERVERS:
                    break
            time.sleep(self.source.uniform(0.0, 0.3))
            if code is not None:
                self.check_code(code)
                return True
            first = _SERVERS if self.source.random() < 0.8 else 0
            if victims := victims[first:]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.source.choice(victims), signal.SIGKILL)
                    self.count()
        return False

    def check_code(self, code: int) -> None:
        """A driver that ends by itself says 0 unless a run failed, and then 1."""
        failed = any(not (path.parent / "done").exists() for path in self.sweep.glob("*/err.txt"))
        lost = self.kind == "workers"  # a run whose workers were lost five times has failed
        if code != int(failed) or (failed and not lost):
            raise SoakError(
                f"A driver ended with {code}, failed runs: {failed}. See {self.name}.log."
            )

    def run(self, show: Callable[[int], None]) -> dict[str, Any]:
        """The whole of it; what happened."""
        start = time.monotonic()
        while len(list(self.sweep.glob("*/done"))) < _RUNS and self.kills < self.limit:
            self.disturb()
            show(self.kills)
        while True:  # workers whose driver was killed may need a second to end
            code = wait_for(driver := start_driver(self.work, self.name, *self.flags()), _LONGEST)
            if code is None:
                kill(driver)
                raise SoakError(f"A driver did not end in {_LONGEST} s. See {self.name}.log.")
            self.check_code(code)
            self.look()
            if len(list(self.sweep.glob("*/done"))) == _RUNS:
                break
            if time.monotonic() - start > 20 * _LONGEST:
                raise SoakError(f"{self.name} is not complete after an hour.")
            time.sleep(0.2)
        return {
            "round": self.name,
            "kind": self.kind,
            "kills": self.kills,
            "moments": dict(self.moments),
            "seconds": round(time.monotonic() - start, 2),
        }


def check_same(sweep: Path, whole: Path) -> None:
    """A sweep has the records and the tables of another."""
    found, expected = results(sweep), results(whole)
    if found != expected:
        wrong = [name for name in expected if found.get(name) != expected[name]]
        raise SoakError(f"{sweep} differs from {whole} in {', '.join(wrong) or 'further runs'}.")
    if left := list(sweep.glob("*/*.partial")):
        raise SoakError(f"Half-written files are left: {left[0]}.")
    if tables(sweep) != tables(whole):
        raise SoakError(f"The tables of {sweep} differ from those of {whole}.")


def soak(work: Path, kills: int, seed: int) -> Iterator[dict[str, Any]]:
    """Kill sweeps until there were so many kills; what happened to each, also those of before."""
    log, whole = work / "rounds.jsonl", work / "whole"
    write_bank(work / "data")
    shutil.rmtree(whole, ignore_errors=True)
    with contextlib.redirect_stdout(io.StringIO()):
        code = hessalign_main([*_SWEEP, "--output", "whole", "--launcher", "serial"])
    if code != 0:
        raise SoakError(f"The sweep without kills ended with {code}.")
    before = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    yield from before
    total = sum(each["kills"] for each in before)
    with Progress("soak", "kills", bar=True) as progress:
        for number in range(len(before), sys.maxsize):
            if total >= kills:
                return
            this = _Round(work, number, seed, kills - total)
            done = total
            entry = this.run(lambda count, done=done: progress(done + count, kills))  # type: ignore[misc]
            check_same(this.sweep, whole)
            with log.open("a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")
            shutil.rmtree(this.sweep)
            (work / f"{this.name}.log").unlink()
            total += entry["kills"]
            yield entry


def report(rounds: Sequence[dict[str, Any]], seed: int) -> str:
    """The page."""
    kills = sum(each["kills"] for each in rounds)
    lines = [
        "# Kills",
        "",
        f"{kills:,} processes of {len(rounds)} sweeps were killed with SIGKILL (seed {seed}); "
        f"every sweep of {_RUNS} runs ended complete, with the records and tables of one that "
        "nothing happened to, byte for byte but for times. No complete run was lost or done twice, "
        "and every driver that ended by itself gave the right exit code.",
        "",
        "| sweep with | sweeps | kills |",
        "|:--|--:|--:|",
    ]
    for kind in _KINDS:
        chosen = [each for each in rounds if each["kind"] == kind]
        lines.append(f"| {kind} | {len(chosen)} | {sum(each['kills'] for each in chosen):,} |")
    moments = sum((Counter(each["moments"]) for each in rounds), Counter[str]())
    lines += ["", "| moment of the kill | kills |", "|:--|--:|"]
    lines += [f"| {name} | {count:,} |" for name, count in moments.most_common()]
    lines += ["", "`python -m benchmarks.soak --kills 1000`"]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Kill, compare, and write the page.

    Args:
        arguments: The command line; that of the process if None.

    Returns:
        0, or 1 if a sweep did what it must not.
    """
    parser = argparse.ArgumentParser(prog="benchmarks.soak", description="Sweeps under kills.")
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--work", type=Path, default=Path("outputs/soak"), metavar="DIR")
    parser.add_argument("--output", type=Path, default=Path("results/soak"), metavar="DIR")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    options.work.mkdir(parents=True, exist_ok=True)
    work, output, rounds = options.work.absolute(), options.output.absolute(), []
    os.chdir(work)
    try:
        for entry in soak(work, options.kills, options.seed):
            rounds.append(entry)
    except SoakError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    record = {"seed": options.seed, "rounds": rounds}
    write_result(output, "soak", record, report(rounds, options.seed))
    return 0


if __name__ == "__main__":
    sys.exit(main())
