"""Trackers for tests, which worker processes import: one that writes down, some that fail."""

import json
import os
from pathlib import Path


class Diary:
    """Writes what happens, a line each, into a file for each job below WHERE."""

    def __init__(self, where):
        self.where = Path(where)

    def start(self, job, config):
        self.where.mkdir(parents=True, exist_ok=True)
        self.path = self.where / job.folder
        self.write("start", job.folder, config["algorithm"], config["lr"], os.getpid())

    def log(self, record):
        self.write("log", record.step, record.metrics["test_accuracy"], sorted(record.terms))

    def finish(self, status):
        self.write("finish", status)

    def write(self, *words):
        with self.path.open("a") as file:
            file.write(json.dumps(words) + "\n")


class Meddler:
    """Changes whatever it is given."""

    def __init__(self, where):
        pass

    def start(self, job, config):
        config.clear()

    def log(self, record):
        record.terms["note"] = "hello"
        record.metrics.clear()

    def finish(self, status):
        pass


class Fails(Diary):
    """Fails where WHERE says: start, log or finish; or exits when it is to log."""

    def __init__(self, where):
        self.at = where

    def write(self, *words):
        raise AssertionError

    def start(self, job, config):
        self.fail("start")

    def log(self, record):
        self.fail("log")
        if self.at == "exit":
            raise SystemExit("nobody answers at exit")

    def finish(self, status):
        self.fail("finish")

    def fail(self, where):
        if where == self.at:
            raise ConnectionError(f"nobody answers at {where}")


def read_diary(folder):
    """What was written, by job."""
    return {
        path.name: [json.loads(line) for line in path.read_text().splitlines()]
        for path in sorted(folder.iterdir())
    }
