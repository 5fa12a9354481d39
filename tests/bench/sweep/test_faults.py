"""Sweeps to which anything may happen, in any order: a machine that hypothesis drives.

A driver is a process of its own, forked from this one, in which the n-th write fails or is the last
thing it does. `HESSALIGN_FAULTS=200 pytest tests/bench/sweep/test_faults.py` tries many sequences;
`python -m benchmarks.soak` kills at moments of its own.
"""

import errno
import io
import json
import os
import shutil
import signal
import tempfile
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.sweep_jobs import CIRCUMSTANCES, write_bank

from hessalign.bench.runs import run_folder
from hessalign.cli import main

pytestmark = pytest.mark.slow

RUNS = 3
SWEEP = [
    "sweep", "run", "--datasets", "bank", "--data-dir", "data", "--algorithms", "erm", "vrex",
    "hgp", "--trials", "1", "--draws", "1", "--test-domains", "0", "--launcher", "serial",
    "--retry-failed", "--output", "out", "hidden=4", "evaluate_every=3",
]  # fmt: skip
STEPS = ["--steps", "9"]
FAULTS = {"killed": None, "full": errno.ENOSPC, "read-only": errno.EROFS, "failing": errno.EIO}


class Fault:
    """Lets the n-th write of this process fail after half of it, or be the end of the process."""

    def __init__(self, kind, at):
        self.kind, self.left, self.met = kind, at, False

    def hit(self, write_half):
        self.left -= 1
        if self.left >= 0 or (self.left < -1 and self.kind in {"killed", "failing"}):
            return
        self.met = True
        write_half()
        if self.kind == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        raise OSError(FAULTS[self.kind], os.strerror(FAULTS[self.kind]))

    def install(self):
        write_bytes, write_text = Path.write_bytes, Path.write_text
        replace, link, fsync, opened = Path.replace, os.link, os.fsync, Path.open
        fault = self

        class Appending(io.StringIO):
            """What is appended to a file, written when it is closed, perhaps half."""

            def __init__(self, path):
                super().__init__()
                self.path = path

            def __exit__(self, *error):
                text = self.getvalue()

                def append(part):
                    with opened(self.path, "a", encoding="utf-8") as file:
                        file.write(part)

                fault.hit(lambda: append(text[: len(text) // 2]))
                append(text)

        def bytes_in_halves(path, content):
            fault.hit(lambda: write_bytes(path, content[: len(content) // 2]))
            return write_bytes(path, content)

        def text_in_halves(path, text, *rest, **options):
            fault.hit(lambda: write_text(path, text[: len(text) // 2], *rest, **options))
            return write_text(path, text, *rest, **options)

        def before(call):
            def changed(*arguments, **options):
                fault.hit(lambda: None)
                return call(*arguments, **options)

            return changed

        def opening(path, mode="r", *rest, **options):
            return Appending(path) if mode == "a" else opened(path, mode, *rest, **options)

        Path.write_bytes, Path.write_text, Path.open = bytes_in_halves, text_in_halves, opening
        Path.replace, os.link, os.fsync = before(replace), before(link), before(fsync)


def driver(folder, *, fault=None, clock=0.0, steps=STEPS):
    """Begin a process that does what `hessalign sweep run` does; its number."""
    process = os.fork()
    if process:
        return process
    code = 70
    try:
        os.chdir(folder)
        run_folder.SECONDS_BETWEEN_CHECKPOINTS = 0.0
        now = time.time
        time.time = lambda: now() + clock
        if fault is not None:
            fault.install()
        with (
            open(folder / "log", "a") as log,
            redirect_stdout(log),
            redirect_stderr(log),
        ):
            code = main([*SWEEP, *steps])
    finally:
        os._exit(code)


def ended(process):
    """The exit code of a process, negative for a signal, which comes within two minutes."""
    end = time.monotonic() + 120
    while time.monotonic() < end:
        found, status = os.waitpid(process, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(process, signal.SIGKILL)
    raise AssertionError("a driver did not end")


def results(folder):
    """Records of complete runs, without times."""
    found = {}
    for done in sorted(folder.glob("out/*/done")):
        records = [
            json.loads(line) for line in (done.parent / "results.jsonl").read_text().splitlines()
        ]
        for record in records:
            record["args"].pop("output_dir")
            for name in CIRCUMSTANCES:
                record.pop(name, None)
        found[done.parent.name] = records
    return found


_EXPECTED = {}


def expected():
    """What a sweep gives to which nothing happens; also a start for all processes to come."""
    if not _EXPECTED:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            write_bank(folder / "data")
            assert ended(driver(folder)) == 0, (folder / "log").read_text()
            _EXPECTED.update(results(folder))
        assert len(_EXPECTED) == RUNS
    return _EXPECTED


class Sweeps(RuleBasedStateMachine):
    """One sweep, from its beginning to its end."""

    @initialize()
    def begin(self):
        expected()
        self.folder = Path(tempfile.mkdtemp())
        write_bank(self.folder / "data")
        self.seen = {}

    def teardown(self):
        if not hasattr(self, "folder"):
            return
        assert ended(driver(self.folder)) == 0, (self.folder / "log").read_text()[-3000:]
        self.complete_runs_stay()
        assert results(self.folder) == expected()
        assert not list(self.folder.glob("out/*/*.partial"))
        shutil.rmtree(self.folder)

    def runs(self, mark):
        return [path.parent for path in self.folder.glob(f"out/*/{mark}")]

    def check_code(self, code):
        done, failed = len(self.runs("done")), set(self.runs("err.txt")) - set(self.runs("done"))
        log = (self.folder / "log").read_text()[-2000:]
        assert code in {0, 1, 2}, (code, log)
        assert (code == 0) == (done == RUNS), (code, done, log)
        assert code != 1 or failed or "could not be kept" in log, log
        assert "unexpected" not in log, log

    @rule(kind=st.sampled_from(sorted(FAULTS)), at=st.integers(0, 120))
    def a_write_goes_wrong(self, kind, at):
        code = ended(driver(self.folder, fault=Fault(kind, at)))
        if code != -signal.SIGKILL:
            self.check_code(code)
        else:
            assert kind == "killed"

    @rule(at=st.integers(0, 120))
    def two_drivers_of_which_one_is_killed(self, at):
        one = driver(self.folder, fault=Fault("killed", at))
        other = driver(self.folder)
        codes = [ended(one), ended(other)]
        assert codes[0] in {0, -signal.SIGKILL}
        assert codes[1] == 0, (self.folder / "log").read_text()[-2000:]

    @rule(share=st.floats(0, 1), newest=st.booleans(), which=st.integers(0, 20))
    def a_file_is_torn(self, share, newest, which):
        """Of runs that are not complete: a power failure takes what was not yet on the disk."""
        files = [
            path
            for run in sorted(self.folder.glob("out/*/"))
            if not (run / "done").exists()
            for path in sorted(run.iterdir())
            if path.name not in {"lock", "config.json"}
        ]
        if files:
            path = files[-1] if newest else files[which % len(files)]
            os.truncate(path, int(share * path.stat().st_size))

    @rule()
    def another_configuration(self):
        before = results(self.folder)
        if not any(self.folder.glob("out/*/")):
            return
        assert ended(driver(self.folder, steps=["--steps", "7"])) == 2
        assert results(self.folder) == before

    @rule(days=st.sampled_from([-4000, -1, 1, 4000]))
    def the_clock_jumps(self, days):
        """Files get other times, and the next driver has another clock."""
        for path in self.folder.glob("out/*/*"):
            if not (path.parent / "done").exists():
                moved = path.stat().st_mtime + 86400.0 * days
                os.utime(path, (moved, moved))
        code = ended(driver(self.folder, fault=Fault("killed", 40), clock=86400.0 * days))
        assert code in {0, -signal.SIGKILL}

    @invariant()
    def complete_runs_stay(self):
        if not hasattr(self, "folder"):
            return
        found = {
            str(path): (path.stat().st_ino, path.stat().st_mtime_ns, path.read_bytes())
            for run in self.runs("done")
            for path in (run / "done", run / "results.jsonl")
        }
        assert all(found.get(path) == stamp for path, stamp in self.seen.items())
        self.seen = found


Sweeps.TestCase.settings = settings(
    max_examples=int(os.environ.get("HESSALIGN_FAULTS", "4")),
    stateful_step_count=8,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
TestSweeps = Sweeps.TestCase
