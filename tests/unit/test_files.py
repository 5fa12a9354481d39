"""Locks: one holder at a time, and a word to those who wait."""

import subprocess
import sys
from pathlib import Path

import pytest

import hessalign
from hessalign._files import exclusive

HOLDER = """
import sys
from pathlib import Path
from hessalign._files import exclusive
with exclusive(Path(sys.argv[1]), print, 10):
    print("held", flush=True)
    input()
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that holds the lock until it is told to give it back."""
    script = tmp_path / "holder.py"
    script.write_text(HOLDER)
    process = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path / "lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": str(Path(hessalign.__file__).parents[1])},
    )
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def test_waiting_is_told_with_the_holder_and_the_longest_time(tmp_path, holder):
    said = []

    def give_back(message):
        said.append(message)
        holder.communicate("\n")

    with exclusive(tmp_path / "lock", give_back, 120, quiet=0.1):
        assert len(said) == 1
        assert said[0].startswith(f"Waiting for {tmp_path}, which process {holder.pid} on ")
        assert said[0].endswith(" is using, for 2 minutes at most.")


def test_a_lock_that_is_never_free_is_an_error(tmp_path, holder):
    with (
        pytest.raises(TimeoutError, match=rf"Waited 0\.3 seconds for .*process {holder.pid} on"),
        exclusive(tmp_path / "lock", print, 0.3, quiet=0.1),
    ):
        pytest.fail("the other process has it")


def test_the_lock_of_a_killed_process_is_free(tmp_path, holder):
    holder.kill()
    holder.wait()
    said = []
    with exclusive(tmp_path / "lock", said.append, 10):
        assert not said


def test_a_lock_that_is_free_is_taken_without_a_word(tmp_path):
    said = []
    for _ in range(2):
        with exclusive(tmp_path / "lock", said.append, 1):
            assert (tmp_path / "lock.holder").is_file()
        assert not (tmp_path / "lock.holder").exists()
    assert not said
