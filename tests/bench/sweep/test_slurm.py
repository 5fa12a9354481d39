"""The Slurm launcher by submitit's processes of this machine, which stand in for Slurm."""

import dataclasses
import gc
import os
import re
import signal
import sys
import threading
from collections import Counter
from functools import partial

import pytest
from tests import sweep_jobs
from tests.conftest import python_environment
from tests.sweep_jobs import (
    logged,
    make_jobs,
    make_tasks,
    results,
    wait_until,
    write_bank,
)

from hessalign.bench.sweep import (
    Outcome,
    Retries,
    SerialLauncher,
    SlurmLauncher,
    SlurmOptions,
    slurm,
)
from hessalign.bench.sweep.claims import is_claimed
from hessalign.bench.sweep.slurm import make_slurm_options
from hessalign.cli import main


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_bank(tmp_path_factory.mktemp("data"))


def local(**options):
    return SlurmLauncher(cluster="local", **options)


@pytest.mark.slow
def test_jobs_are_done_and_one_near_its_time_limit_goes_on_from_where_it_was(data, tmp_path):
    """The second run is told to end: it saves, is queued again, and repeats no step."""
    jobs = make_jobs(data, 3)
    expected = tmp_path / "serial"
    list(SerialLauncher().run(make_tasks(expected, jobs), sweep_jobs.train))
    sweep = tmp_path / "sweep"
    told = []

    def tell():
        def process():
            return [
                int(line[2]) for line in logged(sweep) if line[:2] == ["process", jobs[1].folder]
            ]

        checkpoint = sweep / jobs[1].folder
        wait_until(lambda: process() and list(checkpoint.glob("checkpoint-*.pt")))
        os.kill(process()[0], signal.SIGUSR2)
        told.append(True)

    thread = threading.Thread(target=tell)
    thread.start()
    launcher = local(jobs=2, options=SlurmOptions(memory=1.5, partition="gpu"))
    work = partial(sweep_jobs.train_patiently, seconds=0.4)
    outcomes = list(launcher.run(make_tasks(sweep, jobs), work))
    thread.join()
    assert told
    assert Counter(each.state for each in outcomes) == {"done": 3}
    assert {each.task.attempt for each in outcomes} == {0}
    assert results(sweep, jobs) == results(expected, jobs)
    begun = Counter(line[1] for line in logged(sweep) if line[0] == "process")
    assert begun == {jobs[0].folder: 1, jobs[1].folder: 2, jobs[2].folder: 1}
    steps = Counter(tuple(line[1:]) for line in logged(sweep) if line[0] == "step")
    assert set(steps.values()) == {1}
    assert not list(sweep.glob("*/claim.*"))
    assert list((sweep / "slurm").glob("*_log.out"))


@pytest.mark.slow
def test_a_job_that_is_killed_is_submitted_again(data, tmp_path, monkeypatch):
    monkeypatch.setattr("submitit.Job._results_timeout_s", 1)
    jobs = make_jobs(data, 1)
    work, _ = sweep_jobs.killing(jobs, 1)
    (outcome,) = local(retries=Retries(delay=0.01)).run(make_tasks(tmp_path, jobs), work)
    assert outcome.state == "done"
    assert outcome.task.attempt == 1
    (outcome,) = local(retries=Retries(attempts=1)).run(
        make_tasks(tmp_path / "other", jobs), sweep_jobs.die
    )
    assert outcome.state == "failed"
    kept = (tmp_path / "other" / jobs[0].folder / "err.txt").read_text()
    assert re.match(r"Its worker was lost 1 times, most recently: its job \d+ ended as .*see", kept)


@pytest.mark.slow
@pytest.mark.usefixtures("interruptible")
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # submitit leaves its process alone
def test_an_interrupt_lets_jobs_save_and_gives_them_up(data, tmp_path):
    (job,) = make_jobs(data, 1)
    timer = threading.Thread(target=sweep_jobs.interrupt_when_begun, args=(tmp_path,))
    timer.start()
    work = partial(sweep_jobs.train_slowly, seconds=1.0)
    with pytest.raises(KeyboardInterrupt):
        list(local().run(make_tasks(tmp_path, [job]), work))
    timer.join()
    assert list((tmp_path / job.folder).glob("checkpoint-*.pt"))
    assert not is_claimed(tmp_path / job.folder)
    (outcome,) = local().run(make_tasks(tmp_path, [job], "two"), sweep_jobs.train)
    assert outcome.state == "done"
    gc.collect()


@pytest.mark.slow
def test_what_concerns_the_whole_sweep_stops_it(data, tmp_path):
    (task,) = make_tasks(tmp_path, make_jobs(data, 1))
    task = dataclasses.replace(task, sweep=tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"Expected the folder of the sweep, .*nowhere"):
        list(local().run([task], sweep_jobs.train))


SBATCH = """#!/bin/bash
# What Slurm does with an array, as far as submitit can tell: a process for each of its jobs.
# Like Slurm it keeps the script itself: submitit moves the file at once.
script=$(cat "$1")
last=$(sed -n 's/^#SBATCH --array=0-\\([0-9]*\\)%.*/\\1/p' "$1")
for index in $(seq 0 "$last"); do
    SLURM_JOB_ID=77$index SLURM_ARRAY_JOB_ID=77 SLURM_ARRAY_TASK_ID=$index \\
        bash -c "$script" </dev/null >"$1.$index.log" 2>&1 &
done
echo Submitted batch job 77
"""
SRUN = """#!/bin/bash
while [[ "$1" == --* ]]; do
    [[ "$1" == --output || "$1" == --error ]] && shift
    shift
done
exec "$@"
"""


@pytest.mark.slow
def test_a_sweep_is_submitted_as_an_array(data, tmp_path, monkeypatch, capsys):
    """The whole way through sbatch, by scripts that stand in for Slurm's commands."""
    scripts = {
        "sbatch": SBATCH,
        "srun": SRUN,
        "sacct": "#!/bin/bash\necho 'JobID|State|NodeList'\n",
    }
    for name, text in scripts.items():
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    for name, value in python_environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    sweep = tmp_path / "sweep"
    words = ["--datasets", "bank", "--data-dir", str(data), "--algorithms", "erm", "--trials", "1"]
    words += ["--draws", "1", "--steps", "11", "--output", str(sweep), "--launcher", "slurm"]
    assert main(["sweep", "run", *words, "--slurm", "partition=gpu", "time=30"]) == 0
    assert "3 runs in" in capsys.readouterr().out
    assert len(list(sweep.glob("*/done"))) == 3
    (submission,) = sweep.glob("slurm/*_submission.sh")
    assert "#SBATCH --array=0-2%3\n#SBATCH --cpus-per-task=1\n" in submission.read_text()


def test_without_slurm_it_says_where_to_run(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ValueError, match=r"Expected Slurm's commands .*on a login node"):
        SlurmLauncher()
    assert list(local().run([], sweep_jobs.train)) == []


def test_what_sbatch_is_asked_for(tmp_path, monkeypatch):
    """The file that submitit writes for Slurm."""
    from submitit.slurm.slurm import SlurmExecutor, _make_sbatch_string

    monkeypatch.setattr(slurm.shutil, "which", lambda name: name)
    monkeypatch.setattr(SlurmExecutor, "affinity", classmethod(lambda cls: 2))
    options = make_slurm_options(
        {"time": 90, "memory": 16, "partition": "gpu", "account": "us", "qos": "low"}
    )
    executor = SlurmLauncher(cpus_per_run=4, gpus_per_run=2.0, options=options)._executor(tmp_path)
    text = _make_sbatch_string("go", tmp_path, **executor._executor.parameters)
    for line in (
        "--job-name=hessalign", "--time=90", "--mem=16GB", "--partition=gpu", "--account=us",
        "--qos=low", "--cpus-per-task=4", "--gpus-per-node=2", "--signal=USR2@90",
    ):  # fmt: skip
        assert f"#SBATCH {line}\n" in text, text
    assert "constraint" not in text
    assert executor._executor.max_num_timeout == 100


def test_claims_of_restarted_jobs_give_way(data, tmp_path, monkeypatch):
    (task,) = make_tasks(tmp_path, make_jobs(data, 1))
    seen = []

    def watched(task, *given):
        seen.append(task.attempt)
        return Outcome(task, "done")

    monkeypatch.setattr(slurm, "execute_there", watched)
    before = signal.getsignal(signal.SIGUSR2)
    try:
        for attempt, restarts in ((0, 0), (0, 2), (1, 0)):
            monkeypatch.setenv("SLURM_RESTART_COUNT", str(restarts))
            again = dataclasses.replace(task, attempt=attempt)
            outcome = slurm._Remote(again, sweep_jobs.train, 1, str(tmp_path))()
            assert outcome.task == again
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert seen == sorted(set(seen))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"jobs": 0}, "Expected jobs of 1 or more, got 0"),
        ({"cpus_per_run": 0.5}, "Expected whole numbers for Slurm, .* got 0.5 and 0"),
        ({"gpus_per_run": 0.5}, "0 or more GPUs per run, got 1 and 0.5"),
    ],
)
def test_what_a_run_gets_is_checked(options, text):
    with pytest.raises(ValueError, match=text):
        SlurmLauncher(**options)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"partion": "gpu"}, "Unknown option of --slurm 'partion'.*mean 'partition'"),
        ({"time": "1h"}, "Expected time as a whole number of 1 or more, got '1h'"),
        ({"memory": 0}, "Expected memory as a finite number above 0, got 0"),
    ],
)
def test_options_are_checked(values, text):
    with pytest.raises(ValueError, match=text):
        make_slurm_options(values)


def test_a_missing_submitit_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(ImportError, match=re.escape("pip install 'hessalign[slurm]'")):
        SlurmLauncher()
