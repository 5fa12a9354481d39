"""What there is to see of a sweep: states and reasons, differences, points and costs."""

import numpy as np
import pytest
from scipy.stats import t, ttest_rel
from tests.sweeps import record, run, write, write_sweep

from hessalign._errors import InputError
from hessalign.bench.sweep import SweepSpec, open_sweep, sweep_jobs
from hessalign.bench.sweep.claims import claim_job, this_claimant
from hessalign.bench.sweep.overview import _points, domain_differences, look, remembering, results
from hessalign.bench.sweep.selection import read_run

SPEC = SweepSpec(("Debug28",), ("erm", "vrex"), trials=2, draws=1, steps=2)


def write_job(folder, job, *, steps=2, level=0.5, done=True, **fields):
    key = {"seed": job.hparams_seed, "trial": job.trial_seed, "algorithm": job.algorithm}
    records = [
        record(step, job.test_domains, **key, level=level, **fields) for step in range(steps)
    ]
    write(folder / job.folder, records, done=done)


@pytest.fixture
def sweep(tmp_path):
    """Twelve jobs: 7 done, 1 failed, 1 diverged, 1 running, 1 stopped, 1 not begun."""
    folder = open_sweep(tmp_path / "sweep", SPEC)
    jobs = sweep_jobs(SPEC, without_data=True)
    for number, job in enumerate(jobs[:7]):
        write_job(folder, job, level=0.5 + 0.01 * number, seconds=3600.0)
    for job, error in zip(
        jobs[7:9], ("InputError: no <b>", "DivergedError: the loss"), strict=True
    ):
        (folder / job.folder).mkdir()
        (folder / job.folder / "err.txt").write_text(f"Traceback\n{error}\n")
    write_job(folder, jobs[9], steps=1, done=False)
    write_job(folder, jobs[10], steps=1, done=False)
    with claim_job(folder / jobs[9].folder, this_claimant()):
        yield folder, jobs


def test_states_and_reasons_of_a_sweep(sweep):
    folder, jobs = sweep
    found = look(folder)
    assert found.states == {"done": 7, "failed": 1, "diverged": 1, "running": 1, "left": 2}
    assert not found.complete
    troubles = {each.what: each for each in found.troubles}
    assert troubles[jobs[7].describe()][::2] == ("failed", "InputError: no <b>")
    assert troubles[jobs[8].describe()][::2] == ("diverged", "DivergedError: the loss")
    assert troubles[jobs[9].describe()][::2] == ("running", "at step 0")
    stopped = troubles[jobs[10].describe()]
    assert (stopped.state, stopped.reason) == ("left", "stopped at step 0; `sweep run` goes on")
    assert troubles["VREx on Debug28"].reason == "1 not begun"
    assert len(found.unfinished) == 2
    assert len(found.points) == 7


def test_a_sweep_without_finished_runs_has_no_tables_yet(tmp_path):
    folder = open_sweep(tmp_path / "sweep", SPEC)
    found = look(folder)
    assert found.datasets == []
    assert found.states == {"left": 12}
    assert not found.complete


def test_a_specification_that_cannot_be_read_is_told_and_the_runs_are_shown(tmp_path):
    write_sweep(tmp_path)
    (tmp_path / "sweep.yaml").write_text("datasets: nowhere\nalgorithms: erm\ndata_dir: /nowhere\n")
    found = look(tmp_path)
    assert found.states["done"] == 24
    assert "Which runs there should be cannot be told" in found.collection.notes[0].text


def test_folders_that_do_not_say_which_runs_they_should_have(tmp_path):
    write_sweep(tmp_path)
    write(tmp_path / "one", [record(0, (0,), algorithm="IRM")], done=False)
    write(tmp_path / "two", [record(0, (1,), algorithm="IRM")], done=False)
    (tmp_path / "two" / "err.txt").write_text("Traceback\nKilled\n")
    found = look(tmp_path)
    assert found.states == {"done": 24, "unfinished": 1, "failed": 1}
    assert not found.complete
    reason = "its last record is of step 0, not 1."
    assert [(each.state, each.reason) for each in found.troubles] == [
        ("unfinished", reason), ("failed", f"{reason} Its err.txt ends: Killed"),
    ]  # fmt: skip
    with pytest.raises(InputError, match="Expected folders with records"):
        look((tmp_path / "empty", (tmp_path / "empty").mkdir())[0])


def test_differences_are_those_of_students_test_over_trials_and_domains(tmp_path):
    rng = np.random.default_rng(0)
    accuracies = {name: 0.5 + 0.1 * rng.random((3, 4)) for name in ("ERM", "VREx")}
    for name, values in accuracies.items():
        for (domain, trial), value in np.ndenumerate(values):
            key = {"trial": trial, "algorithm": name, "domains": 3, "level": float(value)}
            folder = tmp_path / f"{name}{domain}{trial}"
            write(folder, [record(step, (domain,), **key) for step in range(2)])
    found = look(tmp_path)
    result = results(found, "Debug28")["VREx"]["oracle"]
    first, second = (100 * accuracies[name].flatten() for name in ("VREx", "ERM"))
    interval = ttest_rel(first, second).confidence_interval()
    assert result.difference.mean == pytest.approx((first - second).mean())
    assert result.difference.interval == pytest.approx((interval.low, interval.high))
    assert result.difference.pairs == 12
    assert results(found, "Debug28")["ERM"]["oracle"].difference is None
    assert "leave-one-out" not in results(found, "Debug28")["ERM"]
    # Of one domain, over trials.
    each = domain_differences(found.tables("Debug28")["oracle"])["VREx"][1]
    values = 100 * (accuracies["VREx"] - accuracies["ERM"])[1]
    assert (each.mean, each.pairs) == (pytest.approx(values.mean()), 4)
    width = t.ppf(0.975, 3) * values.std(ddof=1) / 2
    assert each.interval == pytest.approx((values.mean() - width, values.mean() + width))


def test_a_point_is_the_step_with_the_best_validation():
    steps = [[(0.3, 0.9), (0.6, 0.5), (0.7, 0.6)], [(0.4, 0.1), (0.5, 0.8), (0.5, 0.8)]]
    one = run((0,), [*steps, steps[0]], distances=(3.0, 2.0, 1.0))
    pair = run((0, 1), steps)
    (point,) = _points([one, pair])
    assert (point.domain, point.step, point.test) == (0, 1, 0.4)
    assert (point.validation, point.distance) == (pytest.approx(0.8), 2.0)
    (alone,) = _points([run((0,), [[(0.3, 0.9)]])])  # no training domain to validate on
    assert (alone.validation, alone.test, alone.distance) == (0.9, 0.3, None)


def test_time_and_distance_of_runs(tmp_path):
    """What a run says itself, or DomainBed's mean time of a step since the last record."""
    ours = [record(0, (0,), seconds=2.0, hessian_distance=1.5), record(1, (0,), seconds=7.0)]
    assert read_run(write(tmp_path / "ours", ours).parent)[0].seconds == 7
    assert read_run(tmp_path / "ours")[0].distances == (1.5, None)
    theirs = [record(0, (0,), step_time=3.0), record(300, (0,), step_time=0.5)]
    theirs += [record(1000, (0,), step_time=0.25)]
    found, _ = read_run(write(tmp_path / "theirs", theirs).parent)
    assert found.seconds == 3.0 + 300 * 0.5 + 700 * 0.25
    assert found.distances == ()
    untold = [record(0, (0,), step_time=None)]
    assert read_run(write(tmp_path / "untold", untold).parent)[0].seconds is None


def test_costs_are_sums_by_data_set_and_algorithm(sweep):
    found = look(sweep[0])
    seconds = {algorithm: times for (_, algorithm), times in found.seconds.items()}
    erm = sum(job.algorithm == "ERM" for job in sweep[1][:7])
    assert seconds["ERM"] == [3600.0] * erm
    assert found.total_seconds == sum(map(sum, seconds.values()))


def test_runs_that_are_done_are_read_once(tmp_path):
    write_sweep(tmp_path, trials=1, seeds=1)
    write(tmp_path / "going", [record(0, (0,), algorithm="IRM")], done=False)
    read = remembering()
    first, second = look(tmp_path, read), look(tmp_path, read)
    assert all(a is b for a, b in zip(first.collection.runs, second.collection.runs, strict=True))
    assert first.unfinished[0] is not second.unfinished[0]
    write(tmp_path / "going", [record(step, (0,), algorithm="IRM") for step in range(2)])
    assert look(tmp_path, read).states["done"] == first.states["done"] + 1
    path = tmp_path / "going" / "results.jsonl"
    path.write_text(path.read_text().replace('_acc": 0.5', '_acc": 0.625'))
    (changed,) = [each for each in look(tmp_path, read).points if each.run.key.algorithm == "IRM"]
    assert changed.test == 0.625
