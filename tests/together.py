"""Processes that start in no time: a server has imported torch and the package, and forks them.

It is the one that launchers have. A process of its own would need some seconds of the processor to
import the same. What runs in them has no type checks, as in a user's program.
"""

import io
import multiprocessing
import sys
import time
from contextlib import redirect_stdout

import torch

from hessalign.bench.sweep.launcher import _PRELOADED


def _server():
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(_PRELOADED))
    return context


def printed(script):
    """What a script prints."""
    context = _server()
    pipe, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_print, args=(script, theirs))
    process.start()
    theirs.close()
    try:
        return pipe.recv()
    finally:
        pipe.close()
        process.join()
        assert process.exitcode == 0, "the script failed"


def _print(script, pipe):
    torch.set_num_threads(1)
    with redirect_stdout(io.StringIO()) as said:
        exec(script, {"__name__": "__main__"})
    pipe.send(said.getvalue())


def run_together(main, folder, count, lane, seconds=250):
    """Call `main(folder, rank, count, lane)` in a group of so many, and wait for their ends."""
    context = _server()
    processes = [
        context.Process(target=_take_part, args=(main, folder, rank, count, lane))
        for rank in range(count)
    ]
    deadline = time.monotonic() + seconds
    for process in processes:
        process.start()
    try:
        for process in processes:
            process.join(max(0.0, deadline - time.monotonic()))
    finally:
        for process in processes:
            process.kill()
            process.join()
    said = [path.read_text() for path in sorted(folder.glob("*.log"))]
    assert all(process.exitcode == 0 for process in processes), "\n".join(said)


def _take_part(main, folder, rank, count, lane):
    sys.stdout = sys.stderr = (folder / f"{rank}.log").open("w")
    torch.set_num_threads(1)
    main(folder, rank, count, lane)
