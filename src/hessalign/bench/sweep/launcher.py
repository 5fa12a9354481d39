"""The launchers that need nothing else: one task at a time, and local processes."""

from __future__ import annotations

import contextlib
import dataclasses
import heapq
import multiprocessing
import os
import pickle
import signal
import time
from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Final, final

from hessalign._numbers import check_count
from hessalign._processes import (
    SAVING_SECONDS,
    Interruption,
    describe_end,
    holding_back_interrupts,
    kill_unless_ended,
    release_interrupts,
    start_worker,
)
from hessalign.bench.sweep.execution import Begin, Outcome, Task, Work, execute, fail, nothing


@final
@dataclass(frozen=True)
class Retries:
    """How many workers may be lost over one task, and how long to wait before it is tried again.

    The `delay` before the second attempt, in seconds, doubles from one to the next, up to the
    `longest`.

    Example:
        >>> [Retries().seconds(attempt) for attempt in (1, 2, 3)]
        [0.5, 1.0, 2.0]
    """

    attempts: int = 5
    delay: float = 0.5
    longest: float = 60.0

    def seconds(self, attempt: int) -> float:
        """How long to wait before an attempt, after so many workers were lost."""
        return min(self.longest, self.delay * 2.0 ** (attempt - 1))


@final
class Waiting:
    """Tasks that are not begun: some may be at once, in their order, some only after a while."""

    def __init__(self, tasks: Sequence[Task], retries: Retries) -> None:
        self._ready = deque(tasks)
        self._later: list[tuple[float, int, Task]] = []
        self._count = 0
        self.retries = retries

    def __bool__(self) -> bool:
        return bool(self._ready or self._later)

    def next(self) -> Task | None:
        """Take the task to begin with now; None if there is none, or none yet."""
        if self._later and self._later[0][0] <= time.monotonic():
            return heapq.heappop(self._later)[2]
        return self._ready.popleft() if self._ready else None

    def ended(self, task: Task, since: float, how: Outcome | str) -> Outcome | None:
        """How a task ended; if its worker was lost, by what, it is put back unless too often."""
        if isinstance(how, Outcome):
            return how
        attempt = task.attempt + 1
        if attempt >= self.retries.attempts:
            text = f"Its worker was lost {attempt} times, most recently: {how}. If memory ran out, "
            return fail(task, time.monotonic() - since, f"{text}try fewer at once.")
        again = dataclasses.replace(task, attempt=attempt)
        due = time.monotonic() + self.retries.seconds(attempt)
        self._count += 1
        heapq.heappush(self._later, (due, self._count, again))
        return None


@final
class SerialLauncher:
    """One task after the other, in this process, with a single thread."""

    parallel = 1

    def run(
        self, tasks: Sequence[Task], work: Work, begin: Begin = nothing
    ) -> Generator[Outcome, None, None]:
        """See `Launcher`."""
        import torch

        torch.set_num_threads(1)
        with Interruption() as interruption:
            for task in tasks:
                interruption.raise_if_requested()
                begin(task)
                yield execute(task, work)


_POLL_SECONDS: Final = 0.2

_PRELOADED: Final = ("hessalign.bench.runs.run", "torch._dynamo")
"""Imported once, by the server from which workers are forked; it trains nothing, so has one thread.

A worker then starts, or is replaced, in a fraction of a second, and workers share that memory.
"""


@final
class LocalLauncher:
    """Processes of a single thread each, kept for many tasks, so that short ones cost no start.

    One thread each because the threads of several runs fight for the cores. A process that is
    killed is replaced, and its task begun again, from its checkpoint.
    """

    def __init__(self, jobs: int, retries: Retries | None = None) -> None:
        check_count(jobs, "jobs")
        self.parallel = jobs
        self.retries = retries or Retries()

    def run(
        self, tasks: Sequence[Task], work: Work, begin: Begin = nothing
    ) -> Generator[Outcome, None, None]:
        """See `Launcher`."""
        waiting = Waiting(tasks, self.retries)
        idle: list[_Worker] = []
        busy: dict[object, _Worker] = {}  # by pipe
        with Interruption() as interruption:
            try:
                while waiting or busy:
                    interruption.raise_if_requested()
                    while len(busy) < self.parallel and (task := waiting.next()):
                        begin(task)
                        worker = idle.pop() if idle else _Worker()
                        busy[worker.pipe] = worker
                        worker.give(task, work)
                    if not busy:  # all that is left waits before it is tried again
                        time.sleep(_POLL_SECONDS)
                        continue
                    for pipe in wait([worker.pipe for worker in busy.values()], _POLL_SECONDS):
                        worker = busy.pop(pipe)
                        outcome = worker.result(waiting)
                        if not worker.lost:
                            idle.append(worker)
                        if outcome is not None:
                            yield outcome
            except BaseException:
                for worker in busy.values():
                    worker.save()
                raise
            finally:
                _stop([*idle, *busy.values()])


@final
class _Worker:
    """A process that does one task at a time, as its parent sees it.

    It is no daemon: those may not have processes of their own, such as make batches of images.
    """

    def __init__(self) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(list(_PRELOADED))
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs,))
        self.lost = False
        self.end = "was not started, because the server was killed that starts processes"
        self._task: Task | None = None
        self._since = 0.0
        # If the server was killed, or its child at once, it is noticed when its answer is read.
        with holding_back_interrupts(), contextlib.suppress(EOFError, ConnectionError):
            self.process.start()
        theirs.close()

    def give(self, task: Task, work: Work) -> None:
        self._task, self._since = task, time.monotonic()
        # A worker that was killed while it was idle is noticed when its answer is read.
        with contextlib.suppress(OSError):
            self.pipe.send((task, work))

    def result(self, waiting: Waiting) -> Outcome | None:
        """How the task ended; None if the worker was lost and the task waits to be tried again."""
        task = self._task
        assert task is not None
        try:
            answer: Outcome | Exception = self.pipe.recv()
        except (EOFError, OSError):
            self.lost = True
            _stop([self])
            return waiting.ended(task, self._since, f"it {self.end}")
        if isinstance(answer, Exception):
            raise answer
        return answer

    def save(self) -> None:
        """Ask for the end of the task as soon as it is saved."""
        if self.process.pid is not None and self.process.is_alive():
            os.kill(self.process.pid, signal.SIGINT)


def _stop(workers: Sequence[_Worker]) -> None:
    """Wait for the end of processes, which comes once their tasks have ended; or make it come."""
    for worker in workers:
        worker.pipe.close()
    started = [worker for worker in workers if worker.process.pid is not None]
    try:
        kill_unless_ended([worker.process for worker in started], SAVING_SECONDS)
    finally:
        for worker in started:
            worker.process.join()
            worker.end = describe_end(worker.process.exitcode)
            worker.process.close()


def _serve(pipe: Connection) -> None:
    """Do what comes through the pipe, until it is closed."""
    start_worker(interruptible=True)
    with contextlib.suppress(EOFError, OSError, KeyboardInterrupt):
        release_interrupts()
        while True:
            message = pipe.recv_bytes()
            try:
                task, work = pickle.loads(message)
                pipe.send(execute(task, work))
            except Exception as error:  # not of the job: it concerns the whole sweep
                pipe.send(error)
