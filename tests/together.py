"""Processes that do one thing together, as a group of `torch.distributed`."""

import multiprocessing
import sys
import time

import torch

from hessalign.bench.sweep.launcher import _PRELOADED


def run_together(main, folder, count, lane, seconds=250):
    """Call `main(folder, rank, count, lane)` in so many processes, and wait for their ends.

    They come from the server that has torch imported and serves launchers too: a process of its own
    would need some seconds of the processor for that alone.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(_PRELOADED))
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
