"""Claims: one holder at a time, also among processes that die."""

import dataclasses
import errno
import json
import multiprocessing
import os
import resource
import signal
import threading
import time

import pytest

from hessalign.bench.sweep import claims
from hessalign.bench.sweep.claims import claim_job, is_claimed, this_claimant

# From Python 3.12 on: the children only touch files and a queue.
pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")

ME = this_claimant("mine")
GONE = 2**22 - 5  # above the largest process number of this machine


@pytest.fixture(autouse=True)
def _no_such_process():
    with pytest.raises(ProcessLookupError):
        os.kill(GONE, 0)


def leave(folder, number=0, age=0.0, **changes):
    """A claim whose holder is not there to renew it."""
    path = folder / f"claim.{number}"
    path.write_text(json.dumps(dataclasses.asdict(dataclasses.replace(ME, **changes))))
    then = time.time() - age
    os.utime(path, (then, then))
    return path


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_job_is_claimed_once_until_it_is_given_up(tmp_path):
    with claim_job(tmp_path, ME) as claim:
        assert claim.path == tmp_path / "claim.0"
        assert is_claimed(tmp_path)
        assert claim_job(tmp_path, ME) is None
        assert claim_job(tmp_path, this_claimant("another")) is None
    assert not is_claimed(tmp_path)
    with claim_job(tmp_path, ME) as claim:
        assert claim.path == tmp_path / "claim.1"


def test_claims_on_a_job_that_is_done_are_removed(tmp_path):
    leave(tmp_path, process=GONE)
    with claim_job(tmp_path, ME):
        (tmp_path / "done").touch()
    assert names(tmp_path) == ["done"]


def test_a_folder_without_claims_is_free(tmp_path):
    assert not is_claimed(tmp_path)
    assert not is_claimed(tmp_path / "nowhere")


def test_of_many_processes_one_gets_it(tmp_path):
    context = multiprocessing.get_context("fork")
    barrier, queue = context.Barrier(8), context.Queue()

    def compete():
        mine = []
        for job in range(20):
            barrier.wait()
            claim = claim_job(tmp_path / str(job), this_claimant(f"process {os.getpid()}"))
            mine += [job] if claim else []
        queue.put(mine)
        barrier.wait()  # alive until all have tried
        queue.close()
        queue.join_thread()

    for job in range(20):
        (tmp_path / str(job)).mkdir()
        if job % 2:  # half of them were left behind by somebody who died
            leave(tmp_path / str(job), process=GONE, launcher="dead")
    processes = [context.Process(target=compete) for _ in range(8)]
    for process in processes:
        process.start()
    won = [job for _ in processes for job in queue.get(timeout=200)]
    for process in processes:
        process.join()
        process.close()
    queue.close()
    assert sorted(won) == list(range(20))


@pytest.mark.parametrize(
    ("changes", "age", "stale"),
    [
        ({}, 1e6, False),  # this process is alive, however long it did not renew
        ({"process": GONE}, 0.0, True),
        ({"started": "earlier"}, 0.0, True),  # the number is used by another process now
        ({"machine": "elsewhere", "process": GONE}, claims._STALE_SECONDS - 30, False),
        ({"machine": "elsewhere"}, claims._STALE_SECONDS + 30, True),
    ],
)
def test_when_a_claim_is_stale(tmp_path, changes, age, stale):
    leave(tmp_path, age=age, launcher="another", **changes)
    assert is_claimed(tmp_path) is not stale
    claim = claim_job(tmp_path, ME)
    assert (claim is not None) is stale
    if claim:
        with claim:
            assert claim.path == tmp_path / "claim.1"


def test_a_launcher_takes_over_from_a_worker_it_knows_to_be_lost(tmp_path):
    leave(tmp_path, machine="elsewhere", attempt=0)
    assert claim_job(tmp_path, ME) is None
    other = dataclasses.replace(ME, launcher="another", attempt=1)
    assert claim_job(tmp_path, other) is None
    with claim_job(tmp_path, dataclasses.replace(ME, attempt=1)) as claim:
        assert claim.path.name == "claim.1"


@pytest.mark.parametrize("text", ["", '{"machine": ', "[]"])
def test_a_claim_that_cannot_be_read_is_free_at_once(tmp_path, text):
    """The disk was full when it was written: nobody holds it."""
    (tmp_path / "claim.0").write_text(text)
    assert not is_claimed(tmp_path)
    with claim_job(tmp_path, ME) as claim:
        assert claim.path.name == "claim.1"
        assert is_claimed(tmp_path)


def test_a_claim_is_complete_when_it_appears(tmp_path, monkeypatch):
    """Somebody who looks before sees none, and may not take half of one for one that is free."""
    before = []
    link = os.link

    def look_and_link(source, target):
        before.append((is_claimed(tmp_path), target.exists()))
        link(source, target)

    monkeypatch.setattr(os, "link", look_and_link)
    with claim_job(tmp_path, ME):
        assert before == [(False, False)]
        assert names(tmp_path) == ["claim.0"]
        assert is_claimed(tmp_path)


def test_of_two_that_write_a_claim_one_gets_it(tmp_path, monkeypatch):
    link = os.link

    def come_second(source, target):
        target.write_text(json.dumps(dataclasses.asdict(this_claimant("another"))))
        link(source, target)

    monkeypatch.setattr(os, "link", come_second)
    assert claim_job(tmp_path, ME) is None
    assert names(tmp_path) == ["claim.0"]


def test_a_job_that_is_done_while_it_is_claimed_is_not_taken(tmp_path, monkeypatch):
    link = os.link

    def be_late(source, target):
        source.unlink()  # with all other claims
        link(source, target)

    monkeypatch.setattr(os, "link", be_late)
    assert claim_job(tmp_path, ME) is None
    assert names(tmp_path) == []


def test_a_file_system_without_links_has_claims_too(tmp_path, monkeypatch):
    def refuse(source, target):
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    with claim_job(tmp_path, ME):
        assert names(tmp_path) == ["claim.0"]
        assert claim_job(tmp_path, this_claimant("another")) is None
        assert names(tmp_path) == ["claim.0"]
    assert not is_claimed(tmp_path)


def test_a_claim_that_cannot_be_written_leaves_nothing(tmp_path):
    """No file may be longer than nothing, which stands for a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            claim_job(tmp_path, ME)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert names(tmp_path) == []


def test_a_claim_is_renewed_while_it_is_held(tmp_path, monkeypatch):
    monkeypatch.setattr(claims, "_RENEWAL_SECONDS", 0.01)
    threads = threading.active_count()
    with claim_job(tmp_path, ME) as claim:
        os.utime(claim.path, (0, 0))
        deadline = time.monotonic() + 100
        while claim.path.stat().st_mtime == 0 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert time.time() - claim.path.stat().st_mtime < 60
    assert threading.active_count() == threads


def test_a_folder_that_disappears_does_not_hide_what_happened(tmp_path):
    folder = tmp_path / "job"
    folder.mkdir()
    claim = claim_job(folder, ME)
    claim.path.unlink()
    folder.rmdir()

    def fail():
        with claim:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()


def test_a_zombie_holds_nothing(tmp_path):
    child = os.fork()
    if child == 0:
        os._exit(0)
    try:
        deadline = time.monotonic() + 100
        while claims._started(child) is not None and time.monotonic() < deadline:
            time.sleep(0.01)
        assert claims._started(child) is None
    finally:
        os.waitpid(child, 0)
