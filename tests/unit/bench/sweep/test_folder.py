"""How far a sweep is, from its folder."""

import json

import pytest

from hessalign.bench.sweep import Job, JobStatus, sweep_status
from hessalign.bench.sweep.claims import claim_job, this_claimant
from hessalign.bench.sweep.progress import mean_seconds, seconds_left


def jobs(count, algorithm="ERM"):
    return [Job("PACS", algorithm, (0,), seed, 0, "data") for seed in range(count)]


def test_states_of_jobs(tmp_path):
    done, told, running, failed, mended, begun, left = jobs(7)
    for job in (done, told, running, failed, mended, begun):
        (tmp_path / job.folder).mkdir()
    (tmp_path / done.folder / "done").write_text("done")  # as DomainBed writes it
    (tmp_path / told.folder / "done").write_text(json.dumps({"seconds": 12.5}))
    (tmp_path / failed.folder / "err.txt").write_text("Traceback …\nValueError: wrong\n\n")
    (tmp_path / mended.folder / "err.txt").write_text("ValueError: before\n")
    (tmp_path / mended.folder / "done").write_text("[]")
    (tmp_path / begun.folder / "results.jsonl").write_text("{}\n")
    (tmp_path / begun.folder / "err.txt").write_text("")
    with claim_job(tmp_path / running.folder, this_claimant()):
        found = sweep_status(tmp_path, [done, told, running, failed, mended, begun, left])
    assert [status.state for status in found] == [
        "done", "done", "running", "failed", "done", "left", "left"
    ]  # fmt: skip
    assert [status.seconds for status in found[:2]] == [None, 12.5]
    assert found[3].error == "ValueError: wrong"


def test_time_to_go_weighs_algorithms_by_what_they_took():
    fast, slow, new = jobs(4), jobs(3, "HGP"), jobs(2, "IRM")
    statuses = [
        *(JobStatus(job, "done", seconds) for job, seconds in zip(fast, (1.0, 3.0), strict=False)),
        JobStatus(slow[0], "done", 20.0),
        JobStatus(slow[1], "failed"),
        JobStatus(fast[2], "left"),
        JobStatus(slow[2], "running"),
        JobStatus(new[0], "left"),
    ]
    means = mean_seconds(statuses)
    assert means == {"ERM": 2.0, "HGP": 20.0}
    # One ERM run, half an HGP run, and an IRM run at the mean of both.
    assert seconds_left(statuses, means, 1) == pytest.approx(2 + 10 + 11)
    assert seconds_left(statuses, means, 2) == pytest.approx((2 + 10 + 11) / 2)
    assert seconds_left(statuses[:4], means, 2) == 0.0
    assert seconds_left(statuses, {}, 2) is None
