"""The launcher that does one task after the other in this process."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import final

from hessalign.bench.runs.interruption import Interruption
from hessalign.bench.sweep.execution import Outcome, Task, Work, execute


@final
class SerialLauncher:
    """One task after the other, in this process, with a single thread."""

    parallel = 1

    def run(self, tasks: Sequence[Task], work: Work) -> Generator[Outcome, None, None]:
        """Have tasks done.

        Args:
            tasks: The tasks.
            work: What does a job.

        Yields:
            How each ended.
        """
        import torch

        torch.set_num_threads(1)
        with Interruption() as interruption:
            for task in tasks:
                interruption.raise_if_requested()
                yield execute(task, work)
