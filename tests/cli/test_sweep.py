"""`hessalign sweep` as a user meets it."""

import io
import re
import shlex
import signal
import subprocess
import sys

import pytest
import yaml
from tests.conftest import python_environment
from tests.sweep_jobs import make_jobs, wait_until, write_bank

from hessalign.bench.runs import read_records
from hessalign.bench.sweep import JobStatus, LocalLauncher, Outcome, SerialLauncher, Task
from hessalign.bench.sweep.progress import SweepProgress
from hessalign.cli import main

SWEEP = {
    "datasets": "bank", "data_dir": "data", "algorithms": ["erm", "vrex"], "trials": 1, "draws": 2,
    "steps": 21, "output": "out", "overrides": {"hidden": 4},
}  # fmt: skip


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a data set and the file of a sweep of 12 runs, in which commands are given."""
    monkeypatch.chdir(tmp_path)
    write_bank(tmp_path / "data")
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(SWEEP))
    return tmp_path


def test_plan_run_status_and_collect(folder, capsys):
    assert main(["sweep", "plan", "sweep.yaml", "--jobs", "4"]) == 0
    planned = capsys.readouterr().out
    assert re.search(r"\| bank +\| ERM +\| +6 \|", planned)
    assert re.search(r"\| all +\| +\| +12 \|", planned)
    assert re.search(r"\| leave-one-out +\| no +\| +24 \| +12 \|", planned)
    assert re.search(r"\| oracle +\| yes +\| +12 \| +0 \|", planned)
    assert re.search(r"About \d+ s in 4 processes and \d+ MB of disk", planned)
    assert not (folder / "out").exists()

    assert main(["sweep", "status", "sweep.yaml"]) == 2
    assert "found no sweep.yaml in out. Begin it with" in capsys.readouterr().err

    assert main(["sweep", "run", "sweep.yaml", "--launcher", "serial", "--draws", "1"]) == 0
    assert "6 runs in out: 6 done. `hessalign collect out` shows" in capsys.readouterr().out

    assert main(["sweep", "status", "sweep.yaml"]) == 0
    found = capsys.readouterr().out
    assert re.search(r"\| bank +\| VREx +\| +3 \| +0 \| +0 \| +3 \| +[\d.]+ s \|", found)
    assert re.search(r"12 runs in out: 6 done, 6 left\. About .* to go, 1 at a time", found)

    assert main(["sweep", "run", "--launcher", "local", "--jobs", "2", "sweep.yaml"]) == 0
    captured = capsys.readouterr()
    assert re.search(r"^6/12 runs  (\d+ s left  )?2 running  4 waiting", captured.err, re.MULTILINE)
    assert "12 runs in out: 12 done." in captured.out
    assert main(["sweep", "status", "out"]) == 0
    assert "12 runs in out: 12 done." in capsys.readouterr().out
    assert main(["collect", "out", "--selection", "training-domain", "oracle"]) == 0
    collected = capsys.readouterr().out
    assert re.search(r"^VREx .*\d+\.\d \+/- ", collected, re.M)
    assert re.search(r"^Algorithm +Bern +Como +Graz +Avg", collected, re.M)


def test_a_plan_without_measurement_needs_no_data(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    flags = ["--datasets", "PACS", "--algorithms", "all", "--selections", "all", "--no-measure"]
    assert main(["sweep", "plan", *flags]) == 0
    found = capsys.readouterr().out
    assert re.search(r"\| PACS +\| ERM +\| +600 \|$", found, re.M)
    assert "About" not in found


def test_flags_alone_make_a_sweep_and_words_override_hyper_parameters(folder, capsys):
    flags = ["--datasets", "bank", "--algorithms", "erm", "--test-domains", "2", "--trials", "1",
             "--draws", "1", "--steps", "5", "--launcher", "serial", "hidden=3"]  # fmt: skip
    assert main(["sweep", "run", *flags]) == 0
    assert "1 runs in outputs/sweep: 1 done." in capsys.readouterr().out
    stored = yaml.safe_load((folder / "outputs" / "sweep" / "sweep.yaml").read_text())
    assert stored["overrides"] == {"hidden": 3}
    assert stored["test_domains"] == {"bank": ["2"]}


def test_words_behind_a_list_of_names_override_hyper_parameters_too(folder):
    flags = ["--datasets", "bank", "--test-domains", "2", "lr=0.01", "--trials", "1",
             "--draws", "1", "--steps", "5", "--launcher", "serial",
             "--algorithms", "erm", "hidden=3"]  # fmt: skip
    assert main(["sweep", "run", *flags]) == 0
    stored = yaml.safe_load((folder / "outputs" / "sweep" / "sweep.yaml").read_text())
    assert stored["overrides"] == {"hidden": 3, "lr": 0.01}
    assert (stored["algorithms"], stored["test_domains"]) == (["erm"], {"bank": ["2"]})


def test_runs_that_fail_are_shown_at_the_end_and_can_be_tried_again(folder, capsys):
    command = ["sweep", "run", "sweep.yaml", "--launcher", "serial", "--draws", "1"]
    assert main([*command, "lr=1e20"]) == 1
    captured = capsys.readouterr()
    assert "failed: ERM on bank, test domain 0, trial 0, draw 0: DivergedError: " in captured.err
    assert captured.out.count("failed: ") == 6
    assert re.search(r"DivergedError: .* \(out/\w{32}/err\.txt\)", captured.out)
    assert "6 runs in out: 6 failed. --retry-failed does the failed ones again." in captured.out
    assert main([*command, "lr=1e20"]) == 1  # not tried again
    assert "failed: ERM" not in capsys.readouterr().err
    assert main([*command, "lr=1e20", "--retry-failed"]) == 1
    assert "failed: ERM" in capsys.readouterr().err
    assert main(["sweep", "status", "out"]) == 1
    assert "6 failed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["sweep.yaml", "--algorithms", "corral"], "Did you mean 'coral'"),
        (["sweep.yaml", "--test-domains", "sketch"], "Unknown domain of bank 'sketch'"),
        (["sweep.yaml", "hiden=3"], "Did you mean 'hidden'"),
        (["sweep.yaml", "lr=abc"], "Expected lr as a finite number of 0 or more, got 'abc'"),
        (["sweep.yaml", "batch_size=0"], "Expected batch_size of 1 or more, got 0"),
        (["sweep.yaml", "freeze_batch_norm=maybe"], "Expected freeze_batch_norm as true or false"),
        (["sweep.yaml", "hidden=2.7"], "Expected hidden as a whole number of 0 or more, got 2.7"),
        (["sweep.yaml", "--launcher", "lokal"], "Unknown launcher 'lokal'.* Did you mean 'local'"),
        (["sweep.yaml", "--address", "a:1"], "Expected --address only with --launcher ray"),
        (["sweep.yaml", "--slurm", "time=1"], "Expected --slurm only with --launcher slurm"),
        (["sweep.yaml", "--gpus-per-run", "1"], "--gpus-per-run only with --launcher ray or slurm"),
        (["sweep.yaml", "--launcher", "slurm", "--slurm", "tme=1"], "Did you mean 'time'"),
        (["sweep.yaml", "--launcher", "slurm"], "Expected Slurm's commands .* on this machine"),
        (["sweep.yaml", "workers=-1"], "Expected workers of 0 or more, got -1"),
        (["sweep.yaml", "--jobs", "0"], "Expected jobs of 1 or more, got 0"),
        (["sweep.yaml", "--launcher", "serial", "--jobs", "2"], "Expected one run at a time"),
        (["sweep.yaml", "other.yaml"], "Expected one file or folder of a sweep, got: sweep.yaml"),
        (["nowhere.yaml"], r"Cannot read nowhere\.yaml: No such file"),
        (["data"], r"Cannot read data/sweep\.yaml"),
        ([], r"Expected datasets\.\n- Expected algorithms\."),
        (["sweep.yaml", "--output", "sweep.yaml/x"], "can be written to, got .*Not a directory"),
    ],
)
def test_mistakes_are_explained(folder, capsys, words, text):
    assert main(["sweep", "run", *words]) == 2
    assert re.search(text, capsys.readouterr().err)
    assert not (folder / "out").exists()


def test_another_protocol_is_refused_and_nothing_is_lost(folder, capsys):
    command = ["sweep", "run", "sweep.yaml", "--launcher", "serial", "--draws", "1"]
    assert main(command) == 0
    before = (folder / "out" / "sweep.yaml").read_bytes()
    assert main([*command, "--steps", "9"]) == 2
    assert "steps is 21 there and 9 here" in capsys.readouterr().err
    assert (folder / "out" / "sweep.yaml").read_bytes() == before


def test_plan_checks_the_number_of_processes(folder, capsys):
    assert main(["sweep", "plan", "sweep.yaml", "--jobs", "0"]) == 2
    assert "Expected --jobs of 1 or more, got 0" in capsys.readouterr().err


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("launcher", ["serial", "local"])
def test_ctrl_c_saves_and_says_how_to_continue(folder, launcher):
    """The interrupt goes to the whole process group, as a terminal sends it."""
    words = ["sweep", "run", "sweep.yaml", "--launcher", launcher, "--steps", "100001"]
    process = subprocess.Popen(
        [sys.executable, "-m", "hessalign", *words], env=python_environment(), cwd=folder,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    sweep = folder / "out"
    wait_until(lambda: any("\n" in path.read_text() for path in sweep.glob("*/results.jsonl")))
    signal_group(process)
    _, error = process.communicate(timeout=120)
    assert process.returncode == 130, error
    same = shlex.join(["hessalign", *words])
    assert f"what was done is saved. The same command continues:\n  {same}\n" in error
    assert "Traceback" not in error
    begun = [path.parent for path in sweep.glob("*/results.jsonl") if path.read_text()]
    assert begun
    assert all(list(path.glob("checkpoint-*.pt")) for path in begun)
    assert not list(sweep.glob("*/done"))


def signal_group(process):
    import os

    os.killpg(process.pid, signal.SIGINT)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress_on_a_terminal_is_one_line_and_failures_stay(tmp_path):
    jobs = make_jobs(tmp_path, 4)
    tasks = [Task(job, tmp_path) for job in jobs]
    stream = Terminal()
    statuses = [JobStatus(jobs[0], "done", 2.0), *(JobStatus(job, "left") for job in jobs[1:])]
    progress = SweepProgress(statuses, LocalLauncher(2), stream)
    assert stream.getvalue() == "\r1/4 runs  2 running  1 waiting"  # one run tells too little
    progress(Outcome(tasks[1], "failed", 1.0, "ValueError: wrong"))
    progress(Outcome(tasks[2], "done", 4.0))
    progress(Outcome(tasks[3], "elsewhere"))
    progress.close()
    lines = stream.getvalue().split("\n")
    assert lines[0].rstrip().endswith(": ValueError: wrong")
    last = lines[1].split("\r")[-1]
    pace = r"(\d+ runs/s  )?[12] s left"
    assert re.match(rf"2/4 runs  {pace}  1 failed  1 running  0 waiting *$", last)
    assert lines[2:] == [""]


@pytest.mark.parametrize("launcher", ["serial", "local"])
def test_runs_with_one_training_domain_are_told_of_once(folder, capsys, launcher):
    """Leave-one-out of three domains trains on one, where V-REx has nothing to align."""
    words = ["--selections", "leave-one-out", "--draws", "1", "--launcher", launcher]
    assert main(["sweep", "run", "sweep.yaml", *words]) == 0
    warning = "3 runs have only one domain to train on (bank: VREx): methods that align domains"
    assert capsys.readouterr().err.count(warning) == 1
    words = ["--algorithms", "erm", "--output", "plain"]
    assert main(["sweep", "run", "sweep.yaml", "--launcher", "serial", *words]) == 0
    assert "only one domain" not in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_on_two_gpus_is_two_processes_with_the_records_of_one(folder, monkeypatch):
    """Here without GPUs; what starts the run is the same."""
    words = ["--algorithms", "hgp", "--draws", "1", "--test-domains", "0"]
    monkeypatch.setattr("hessalign.cli.sweep.make_launcher", lambda options: SerialLauncher())
    found = {}
    for count in ("1", "2"):
        more = ["--launcher", "ray", "--gpus-per-run", count, "--output", count]
        assert main(["sweep", "run", "sweep.yaml", *words, *more]) == 0
        (run,) = (folder / count).glob("*/results.jsonl")
        found[count] = [record.terms["loss"] for record in read_records(run)]
    assert found["2"] == pytest.approx(found["1"], rel=1e-4)
