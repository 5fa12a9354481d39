"""Work in processes of its own."""

import importlib
import os
import signal
from functools import partial

import pytest

from hessalign._processes import completed


def test_a_process_that_was_killed_is_explained():
    text = r"one was killed by SIGKILL, perhaps because memory ran out\. .* with fewer processes"
    with pytest.raises(ChildProcessError, match=text):
        list(completed(signal.raise_signal, [signal.SIGKILL] * 2, workers=2))


STAY = "__import__('time').sleep(600)"
END = "__import__('time').sleep(1), __import__('os')._exit(3)"


@pytest.mark.parametrize("jobs", [[END, STAY], [STAY, END]])
def test_a_process_that_ended_is_noticed_while_others_work(jobs):
    with pytest.raises(ChildProcessError, match="one ended with exit code 3"):
        list(completed(eval, jobs, workers=2))


def test_a_process_that_ended_is_not_said_to_be_out_of_memory():
    with pytest.raises(ChildProcessError, match=r"but one ended with exit code 3\. Run it again"):
        list(completed(os._exit, [3, 3], workers=2))


class Unreadable:
    """What cannot be read where it was sent to."""

    def __reduce__(self):
        return int, ("no number",)

    def __call__(self, job):
        return job


def test_what_a_process_cannot_read_is_an_error_of_its_own():
    with pytest.raises(ValueError, match="invalid literal for int"):
        list(completed(Unreadable(), [1, 2], workers=2))


def test_a_process_is_prepared_before_it_reads_what_it_does():
    prepare = partial(importlib.import_module, "no_such_module")
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        list(completed(Unreadable(), [1, 2], workers=2, prepare=prepare))
