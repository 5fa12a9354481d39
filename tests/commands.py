"""Commands as users give them, each in a session of its own, and the processes it has."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from PIL import Image
from tests.conftest import python_environment

MODELS = """
import time
from torch import nn


def small(seconds=0.0):
    return nn.Sequential(Pause(seconds), nn.Conv2d(3, 4, 3, stride=2), nn.ReLU(),
                         nn.AdaptiveAvgPool2d(1), nn.Flatten())


def slow():
    return small(0.2)


class Pause(nn.Module):
    def __init__(self, seconds):
        super().__init__()
        self.seconds = seconds

    def forward(self, x):
        time.sleep(self.seconds)
        return x
"""
"""A user's module of backbones: `mycnn:small`, and `mycnn:slow`, which takes its time."""

IGNORING = ("sh", "-c", "trap '' INT; exec \"$@\"", "sh")
"""Before a command: it is started with SIGINT ignored, as by nohup."""


def write_images(folder, *, name="shapes", domains=3, each=6, size=16):
    """Images of noise in two classes that differ in brightness, and the module `mycnn`."""
    rng = np.random.default_rng(0)
    for domain in ("blue", "green", "red")[:domains]:
        for level, label in ((60, "dark"), (180, "light")):
            place = folder / name / domain / label
            place.mkdir(parents=True)
            for number in range(each):
                pixels = rng.integers(level - 50, level + 50, (size, size, 3)).astype(np.uint8)
                Image.fromarray(pixels).save(place / f"{number}.png")
    (folder / "mycnn.py").write_text(MODELS)
    return folder


def environment(folder, **variables):
    """Of a command that finds the package and the modules of a folder."""
    found = python_environment()
    path = os.pathsep.join([found["PYTHONPATH"], str(folder)])
    return {**found, "PYTHONPATH": path, "HESSALIGN_BATCH_WORKERS": "1", **variables}


@contextmanager
def begun(folder, *words, before=()):
    """A command that was begun; whatever is left of it in the end is killed."""
    process = subprocess.Popen(
        [*before, sys.executable, "-m", "hessalign", *map(str, words)],
        cwd=folder, env=environment(folder), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, start_new_session=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        for number in session(process):
            os.kill(number, signal.SIGKILL)
        process.communicate(timeout=60)


def finished(folder, *words, seconds=400):
    """A command that has come to its end."""
    with begun(folder, *words) as process:
        output, error = process.communicate(timeout=seconds)
    return subprocess.CompletedProcess(words, process.returncode, output, error)


def session(process):
    """Numbers of the living processes that a command consists of, with their command lines."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            state, _, _, leader = (path / "stat").read_text().rpartition(")")[2].split()[:4]
            line = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(leader) == process.pid and state not in "ZX":
            found[int(path.name)] = line
    return found


def wait_for(process, condition, seconds=240):
    """Wait for something that a command does; what it said, should it end before."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert process.poll() is None, process.communicate(timeout=60)
        assert time.monotonic() < deadline, f"it did not happen in {seconds} s"
        time.sleep(0.02)
    return found


def outlives(process, seconds=100):
    """The processes of a command that are still there some time after it was killed."""
    deadline = time.monotonic() + seconds
    while (left := session(process)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left
