"""The same function of many things, in processes of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, wait
from multiprocessing.reduction import ForkingPickler
from typing import Any, Final, TypeVar

from hessalign._errors import InputError
from hessalign._processes import WorkerPool, start_worker

_POLL_SECONDS: Final = 0.5

_Job = TypeVar("_Job")
_Result = TypeVar("_Result")


def completed(
    function: Callable[[_Job], _Result],
    jobs: Sequence[_Job],
    workers: int,
    prepare: Callable[[], None] | None = None,
) -> Iterator[_Result]:
    """Results as they come, in no particular order if there are several workers.

    An error, Ctrl-C, or a worker that is killed, ends it all at once.

    Args:
        function: What to do. With several workers it is copied to each of them once, so it may be
            an object that carries much; functions inside functions cannot be copied.
        jobs: What to do it to.
        workers: How many processes; with one, everything happens in this one.
        prepare: Called in every other process before the function is read there, which imports
            the modules that it needs.

    Yields:
        One result for each job.

    Raises:
        InputError: If there is no worker.

    Example:
        >>> list(completed(abs, [-1, 2], workers=1))
        [1, 2]
    """
    if workers < 1:
        raise InputError(f"Expected 1 or more workers, got {workers}.")
    if min(workers, len(jobs)) <= 1:
        yield from map(function, jobs)
        return
    with WorkerPool(min(workers, len(jobs)), _receive, (prepare, _Parcel(function))) as pool:
        left = {pool.submit(_call, job) for job in jobs}
        while left:
            done, left = wait(left, _POLL_SECONDS, FIRST_COMPLETED)
            for future in done:
                yield future.result()
            pool.check()


class _Parcel:
    """Something that is copied to another process as bytes, to be read there at a known moment."""

    def __init__(self, content: object) -> None:
        self._content = content

    def __reduce__(self) -> tuple[type[bytes], tuple[bytes]]:
        return bytes, (bytes(ForkingPickler.dumps(self._content)),)


_received: list[Callable[[Any], Any]] = []
"""What this process, a worker, is there for; nothing if it could not be read."""

_failures: list[Exception] = []
"""Why it could not be read."""


def _receive(prepare: Callable[[], None] | None, parcel: bytes) -> None:
    start_worker()
    try:
        if prepare is not None:
            prepare()
        _received.append(ForkingPickler.loads(parcel))
    except Exception as error:  # raised where it can be reported: with the first job
        _failures.append(error)


def _call(job: Any) -> Any:  # noqa: ANN401
    for failure in _failures:
        raise failure
    return _received[0](job)
