"""The launcher that shares tasks among processes of this machine."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
from collections.abc import Generator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Final, final

from hessalign._errors import InputError
from hessalign.sweep.execution import Outcome, Task, Work, execute
from hessalign.sweep.launcher import Retries, Waiting
from hessalign.training.interruption import (
    Interruption,
    holding_back_interrupts,
    release_interrupts,
)

POLL_SECONDS: Final = 0.2

_PRELOADED: Final = ("hessalign.training.domain_run", "torch._dynamo")
"""Imported once, by the server from which workers are forked; it trains nothing, so has one thread.

A worker then starts, or is replaced, in a fraction of a second, and workers share that memory.
"""


@final
class LocalLauncher:
    """Processes of a single thread each, kept for many tasks, so that short ones cost no start.

    One thread each because the threads of several runs fight for the cores. A process that is
    killed is replaced, and its task begun again, from its checkpoint.

    Args:
        jobs: How many processes.
        retries: How often a task is begun again.
    """

    def __init__(self, jobs: int, retries: Retries | None = None) -> None:
        if jobs < 1:
            raise InputError(f"Expected 1 or more jobs, got {jobs}.")
        self.parallel = jobs
        self.retries = retries or Retries()

    def run(self, tasks: Sequence[Task], work: Work) -> Generator[Outcome, None, None]:
        """Have tasks done.

        Args:
            tasks: The tasks.
            work: What does a job; workers import it by name.

        Yields:
            How each ended, as they end.
        """
        waiting = Waiting(tasks, self.retries)
        idle: list[_Worker] = []
        busy: dict[object, _Worker] = {}  # by pipe
        with Interruption() as interruption:
            try:
                while waiting or busy:
                    interruption.raise_if_requested()
                    while len(busy) < self.parallel and (task := waiting.next()):
                        worker = idle.pop() if idle else _Worker(work)
                        busy[worker.pipe] = worker
                        worker.give(task)
                    if not busy:  # all that is left waits before it is tried again
                        time.sleep(POLL_SECONDS)
                        continue
                    for pipe in wait([worker.pipe for worker in busy.values()], POLL_SECONDS):
                        worker = busy.pop(pipe)
                        outcome = worker.result(waiting)
                        if worker.lost:
                            worker.stop()
                        else:
                            idle.append(worker)
                        if outcome is not None:
                            yield outcome
            except BaseException:
                for worker in busy.values():
                    worker.save()
                raise
            finally:
                for worker in (*idle, *busy.values()):
                    worker.stop()


@final
class _Worker:
    """A process that does one task at a time, as its parent sees it."""

    def __init__(self, work: Work) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(list(_PRELOADED))
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, work), daemon=True)
        with holding_back_interrupts():
            self.process.start()
        theirs.close()
        self.lost = False
        self._task: Task | None = None
        self._since = 0.0

    def give(self, task: Task) -> None:
        self._task, self._since = task, time.monotonic()
        # A worker that was killed while it was idle is noticed when its answer is read.
        with contextlib.suppress(OSError):
            self.pipe.send(task)

    def result(self, waiting: Waiting) -> Outcome | None:
        """How the task ended; None if the worker was lost and the task waits to be tried again."""
        task = self._task
        assert task is not None
        try:
            answer: Outcome | Exception = self.pipe.recv()
        except (EOFError, OSError):
            self.lost = True
            self.process.join()
            reason = f"exit code {self.process.exitcode} ({_meaning(self.process.exitcode)})"
            return waiting.lost(task, time.monotonic() - self._since, reason)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def save(self) -> None:
        """Ask for the end of the task as soon as it is saved."""
        if self.process.is_alive() and self.process.pid is not None:
            os.kill(self.process.pid, signal.SIGINT)

    def stop(self) -> None:
        """Wait for the end of the process, which comes once its task has ended; then let it go."""
        self.pipe.close()
        try:
            self.process.join()
        finally:
            self.process.kill()  # a second Ctrl-C
            self.process.join()
            self.process.close()


def _meaning(code: int | None) -> str:
    """The signal that ended a process, if one did."""
    return signal.Signals(-code).name if code is not None and code < 0 else "an error"


def _serve(pipe: Connection, work: Work) -> None:
    """Do what comes through the pipe, until it is closed."""
    import torch

    # Its parent alone hears Ctrl-C on the terminal, and asks the workers to save.
    os.setpgrp()
    torch.set_num_threads(1)
    with contextlib.suppress(EOFError, OSError, KeyboardInterrupt):
        release_interrupts()
        while True:
            task: Task = pipe.recv()
            try:
                pipe.send(execute(task, work))
            except Exception as error:  # not of the job: it concerns the whole sweep
                pipe.send(error)
