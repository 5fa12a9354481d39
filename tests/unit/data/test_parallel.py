"""Work in processes of its own."""

import os

import pytest

from hessalign.data.parallel import completed


def test_a_process_that_was_killed_is_explained():
    with pytest.raises(ChildProcessError, match=r"one was killed, .* with fewer processes"):
        list(completed(os._exit, [1, 1], workers=2))
