"""One run by several processes: how they join, what they agree on, how they end.

Under torchrun, or any launcher that sets RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT,
all processes plan the same run and draw the same batches; the features of a batch are shared out
(`bench.models.sharded`). The first process, the *leader*, has the folder and talks to the user; the
others are silent. What only the leader can know, such as the state in a checkpoint, it tells them.

`in_processes` starts them itself, on this machine.
"""

from __future__ import annotations

import io
import math
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout, suppress
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from hessalign._errors import MENDABLE, InputError, describe_error
from hessalign._numbers import check_count
from hessalign._processes import (
    SAVING_SECONDS,
    Interruption,
    describe_end,
    holding_back_interrupts,
    kill_unless_ended,
    portable,
    release_interrupts,
    start_worker,
)
from hessalign.alignment.parts import make_processes
from hessalign.bench.models.sharded import LostProcessError, current_processes, meeting, sharing

if TYPE_CHECKING:  # they know this file; some builds of torch have no processes
    from torch.distributed import Store  # type: ignore[attr-defined]

    from hessalign.bench.runs.records import Record
    from hessalign.bench.runs.run_folder import TrainingState

SECONDS_VARIABLE: Final = "HESSALIGN_PROCESS_SECONDS"
"""The environment variable for how long processes wait for each other, in seconds."""

_SECONDS: Final = 600.0
"""How long they wait if it is not set: for the slowest evaluation or checkpoint of another."""

_SECONDS_FOR_WORDS: Final = 3.0  # how long a process that fails waits for the leader to say why
_SECONDS_TO_END: Final = 60.0  # how long the others have to notice that a process failed
_SECONDS_BETWEEN_LOOKS: Final = 0.5

_LAST_WORDS: Final = "hessalign/last_words"  # where the leader puts down why it failed
_Value = TypeVar("_Value")


def leads() -> bool:
    """Whether this process has the folder and talks to the user: the first, or the only one."""
    processes = current_processes()
    return processes is None or processes.own == 0


def shared_out(count: int) -> range:
    """Which of so many pieces of work this process does."""
    processes = current_processes()
    return range(count) if processes is None else range(processes.own, count, processes.count)


def summed(number: float) -> float:
    """The sum of a number over processes."""
    processes = current_processes()
    if processes is None:
        return number
    total = torch.tensor(number, dtype=torch.float64)
    with meeting():
        dist.all_reduce(total, group=processes.group)
    return float(total)


def agreed(flag: bool) -> bool:
    """Whether a flag is set in any process."""
    return summed(flag) > 0


def from_leader(value: _Value) -> _Value:
    """What the leader has in place of this."""
    processes = current_processes()
    if processes is None:
        return value
    told: list[Any] = [value]
    with meeting():
        dist.broadcast_object_list(told, 0, processes.group, torch.device("cpu"))
    found: _Value = told[0]
    return found


def follow_leader(state: TrainingState, records: list[Record]) -> list[Record]:
    """Give a state that of the leader, which may have been resumed; the leader's records."""
    processes = current_processes()
    if processes is None:
        return records
    buffer = io.BytesIO()
    if leads():
        torch.save(state.state_dict(), buffer)
    content, found = from_leader((buffer.getvalue(), records))
    if not leads():
        loaded = torch.load(io.BytesIO(content), weights_only=True, map_location="cpu")
        state.load_state_dict(loaded)
    return found


def check_same(module: nn.Module) -> None:
    """Refuse to go on if the parameters of processes, which do the same, are not the same."""
    processes = current_processes()
    if processes is None:
        return
    state = module.state_dict().values()
    own = [each.double() for each in state if isinstance(each, Tensor)]
    sums = torch.stack([value for each in own for value in (each.sum(), each.square().sum())])
    with meeting():
        found = processes.gathered(sums.cpu().view(torch.int64))
    if any(not torch.equal(found[0], each) for each in found):
        raise InputError(
            "Expected the same parameters in all processes of the run, found others: something "
            "was computed or drawn differently in one of them. Train on machines of one kind, and "
            "draw random numbers from the algorithm's own generator."
        )


# --- taking part ----------------------------------------------------------------------------------


@contextmanager
def taking_part() -> Iterator[None]:
    """Join the other processes of this run, if a launcher says that there are some.

    All but the leader print nothing inside. An error in one of them ends all, and is told once; a
    process that others have told about ends by SystemExit.

    Raises:
        SystemExit: In place of an error or interruption that another process tells.
        KeyboardInterrupt: If they were asked to stop.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) < 2 or "RANK" not in os.environ:
        yield
        return
    store, rank, count = _join()
    stderr = sys.stderr
    try:
        with sharing(make_processes("world")), _quiet() if rank else nullcontext():
            yield
            agreed(False)  # none leaves before the leader has finished
    except (Exception, KeyboardInterrupt) as error:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # launchers send it when they see the first
        if _told_elsewhere(error, store, rank):
            raise SystemExit(_exit_code(error)) from error
        if rank:
            stderr.write(f"hessalign: in process {rank} of {count}, counted from 0:\n")
        raise
    finally:
        dist.destroy_process_group()


def _join() -> tuple[Store, int, int]:
    """Meet the other processes; a store that all can write to, one's number, and how many."""
    if not dist.is_available():
        raise InputError("Expected a torch with torch.distributed for several processes, got none.")
    # Its functions have the group that is there at its import as a default, and would keep it: the
    # threads of a group that is kept outlive the interpreter, which then may abort at its end.
    import torch.distributed.nn.functional
    from torch.distributed.rendezvous import rendezvous

    given = os.environ.get(SECONDS_VARIABLE, "")
    if given and not given.isdecimal():
        raise InputError(f"Expected {SECONDS_VARIABLE} as whole seconds, got {given!r}.")
    timeout = timedelta(seconds=float(given or _SECONDS))
    backend = "gloo"
    if torch.cuda.is_available():
        local, found = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
        if local >= found:
            raise InputError(
                f"Expected a graphics processor for each process, found {found} for process "
                f"{local}. Start {found} processes, or hide them: CUDA_VISIBLE_DEVICES=''."
            )
        torch.cuda.set_device(local)
        backend = "cpu:gloo,cuda:nccl"
        # What all processes compute has to be the same to the last bit.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        store, rank, count = next(iter(rendezvous("env://", timeout=timeout)))
        dist.init_process_group(backend, store=store, rank=rank, world_size=count, timeout=timeout)
    except (RuntimeError, ValueError) as error:
        raise LostProcessError(
            f"Expected all processes of the run to join, but they did not: {error}"
        ) from error
    return store, rank, count


@contextmanager
def _quiet() -> Iterator[None]:
    """Print nothing."""
    with (
        open(os.devnull, "w", encoding="utf-8") as file,
        redirect_stdout(file),
        redirect_stderr(file),
    ):
        yield


def _told_elsewhere(error: BaseException, store: Store, rank: int) -> bool:
    """Whether another process tells what this one met."""
    text = "interrupted" if isinstance(error, KeyboardInterrupt) else describe_error(error)
    try:
        if not rank:
            store.set(_LAST_WORDS, text)
            return False
        deadline = time.monotonic() + _SECONDS_FOR_WORDS
        while not store.check([_LAST_WORDS]):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return isinstance(error, LostProcessError) or store.get(_LAST_WORDS).decode() == text
    except RuntimeError:  # the leader is gone, and the store with it
        return False


def _exit_code(error: BaseException) -> int:
    """As the command line has it."""
    if isinstance(error, KeyboardInterrupt):
        return 130
    return 2 if isinstance(error, MENDABLE) else 1


# --- starting them --------------------------------------------------------------------------------


def in_processes(count: int, work: Callable[..., object], *arguments: object) -> None:
    """Call a function in several processes on this machine, as torchrun would.

    Each gets a copy of the function and its arguments, and a graphics processor of its own if there
    are some. If one fails, all end: what it raised is raised here, a ChildProcessError if it died.
    Ctrl-C and SIGTERM ask them to save and stop, and raise KeyboardInterrupt.

    Args:
        count: How many processes; 1 calls the function here.
        work: What each does, such as `train_job` or a `partial` of it.
        arguments: What it is called with, such as a job and a folder.
    """
    check_count(count, "processes")
    if count == 1:
        work(*arguments)
        return
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    context = multiprocessing.get_context("spawn")
    store = TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)  # outlives them
    pipes = [context.Pipe(duplex=False) for _ in range(count)]
    ranks = [
        context.Process(target=_rank, args=(rank, count, store.port, pipe, work, arguments))
        for rank, (_, pipe) in enumerate(pipes)
    ]
    try:
        with holding_back_interrupts():
            for each in ranks:
                each.start()
        for _, pipe in pipes:
            pipe.close()
        with Interruption() as interruption:
            _wait_for_all(ranks, interruption)
    finally:
        kill_unless_ended(ranks, 0)
    _raise_errors(ranks, [_read(pipe) for pipe, _ in pipes])


def _rank(
    rank: int,
    count: int,
    port: int,
    pipe: Connection,
    work: Callable[..., object],
    arguments: Sequence[object],
) -> None:
    """What one of the processes does."""
    start_worker(interruptible=True)
    release_interrupts()
    words = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}
    os.environ.update({name: str(number) for name, number in words.items()})
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"  # the store is there already
    error: BaseException | None = None
    try:
        with taking_part():
            work(*arguments)
    except BaseException as raised:
        error = portable(raised)
    pipe.send(error)
    sys.exit(error is not None)


def _wait_for_all(ranks: Sequence[BaseProcess], interruption: Interruption) -> None:
    """Wait until all have ended; those that do not although another failed are killed."""
    left, asked = list(ranks), False
    deadline = math.inf
    while left and time.monotonic() < deadline:
        wait([each.sentinel for each in left], _SECONDS_BETWEEN_LOOKS)
        left = [each for each in left if each.is_alive()]
        if interruption.requested and not asked:
            asked, deadline = True, time.monotonic() + SAVING_SECONDS
            for each in left:
                os.kill(cast(int, each.pid), signal.SIGINT)
        if deadline == math.inf and any(each.exitcode for each in ranks):
            deadline = time.monotonic() + _SECONDS_TO_END


def _read(pipe: Connection) -> BaseException | None:
    """What a process that ended has raised; None if nothing, or it died without a word."""
    found: BaseException | None = None
    with suppress(EOFError):
        found = pipe.recv() if pipe.poll() else None
    return found


def _raise_errors(ranks: Sequence[BaseProcess], errors: Sequence[BaseException | None]) -> None:
    """Raise what went wrong in one of the processes, not what followed in the others."""
    followed = (LostProcessError, SystemExit)
    for error in errors:
        if error is not None and not isinstance(error, followed):
            raise error
    for rank, (process, error) in enumerate(zip(ranks, errors, strict=True)):
        if process.exitcode and error is None:
            raise ChildProcessError(
                f"Process {rank} of {len(ranks)} of a run, counted from 0, "
                f"{describe_end(process.exitcode)}. Run it again to continue from its last "
                "checkpoint."
            )
    for error in errors:
        if error is not None:
            raise error
