"""Images on their way into the training step: what they are, from where, and what goes wrong."""

import dataclasses
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.pictures import make_folder
from tests.process_jobs import pretended

import hessalign
from hessalign._processes import portable
from hessalign._protocol import seed_hash
from hessalign.bench.algorithms import Batch
from hessalign.bench.data import (
    Augmentation,
    augment,
    normalise,
    open_images,
    prepare_images,
    read_image_folder,
)
from hessalign.bench.models.sharded import sharing
from hessalign.bench.runs.image_batches import (
    BatchWorkerError,
    ImageChunks,
    ImageMinibatches,
    default_workers,
)
from hessalign.bench.runs.sampling import ImageInputs

SIZE = 8
CROPS = Augmentation(size=SIZE)
ROWS = {0: [0, 2, 3], 2: [1, 3]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_folder(tmp_path_factory.mktemp("data") / "pets", ("a", "b", "c"))


@pytest.fixture(scope="module")
def cached(folder):
    return prepare_images(read_image_folder(folder), folder.parent / "cache", SIZE)


@pytest.fixture(params=["files", "cache"])
def reader(request, cached, folder):
    if request.param == "cache":
        return cached
    return open_images(cached.data, folder.parent / "no cache", SIZE)


def same(batches, others):
    pairs = zip(batches, others, strict=True)
    return all(torch.equal(a.x, b.x) and torch.equal(a.y, b.y) for a, b in pairs)


def drawn(sampler, count):
    batches = (sampler.draw() for _ in range(count))
    return [Batch(batch.x.clone(), batch.y.clone(), batch.domain) for batch in batches]


def test_a_batch_holds_the_images_and_labels_of_its_rows(reader):
    batch = ImageMinibatches(reader, ROWS, 5, 0, None, workers=0).draw()
    assert batch.domain.tolist() == [0] * 5 + [1] * 5
    assert batch.x.shape == (10, 3, SIZE, SIZE)
    for x, y, position in zip(batch.x, batch.y, batch.domain.tolist(), strict=True):
        domain, rows = list(ROWS.items())[position]
        images = normalise(reader.read(domain, rows).pixels)
        matches = (images == x).flatten(1).all(1).nonzero().flatten().tolist()
        assert len(matches) == 1
        assert y == reader.data.domains[domain].labels[rows[matches[0]]]


def test_every_row_is_drawn_about_as_often(reader):
    sampler = ImageMinibatches(reader, {0: [0, 1, 3]}, 100, 0, None, workers=0)
    images = normalise(reader.read(0, [0, 1, 3]).pixels)
    x = torch.cat([batch.x for batch in drawn(sampler, 6)])
    counts = (x[:, None] == images).flatten(2).all(2).sum(0)
    assert counts.sum() == 600
    assert (counts - 200).abs().max() < 50  # 4 standard deviations


def test_draws_and_changes_come_from_one_generator_per_step(reader):
    sampler = ImageMinibatches(reader, ROWS, 2, 7, CROPS, workers=0)
    second = drawn(sampler, 2)[1]
    generator = torch.Generator().manual_seed(seed_hash(7, 1))
    expected = []
    for domain, rows in ROWS.items():
        chosen = torch.randint(len(rows), (2,), generator=generator)
        batch = reader.read(domain, np.array(rows)[chosen])
        expected.append(augment(batch.pixels, generator, CROPS, batch.original_sizes))
    assert torch.equal(second.x, torch.cat(expected))


def test_seeds_and_steps_give_different_batches(reader):
    first, second = drawn(ImageMinibatches(reader, ROWS, 4, 0, CROPS, workers=0), 2)
    other = ImageMinibatches(reader, ROWS, 4, 1, CROPS, workers=0).draw()
    assert not torch.equal(first.x, second.x)
    assert not torch.equal(first.x, other.x)


def test_each_process_makes_its_own_images_of_the_same_batch(reader):
    (whole,) = drawn(ImageMinibatches(reader, ROWS, 5, 0, CROPS, workers=0), 1)
    found = []
    for own in range(3):  # of the second process, images of both domains
        with sharing(pretended(own, 3)):
            batch = ImageMinibatches(reader, ROWS, 5, 0, CROPS, workers=0).draw()
        assert torch.equal(batch.y, whole.y)
        found.append(vars(batch)["share"][0])
    assert [len(each) for each in found] == [3, 3, 4]
    assert torch.equal(torch.cat(found), whole.x)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_continues_with_the_same_batches(cached, workers):
    alone = drawn(ImageMinibatches(cached, ROWS, 2, 0, CROPS, workers=0), 6)
    with ImageMinibatches(cached, ROWS, 2, 0, CROPS, workers=workers) as sampler:
        assert same(alone[:3], drawn(sampler, 3))
        state = sampler.state_dict()
        assert same(alone[3:], drawn(sampler, 3))
        sampler.load_state_dict(state)
        assert same(alone[3:], drawn(sampler, 3))


def test_a_batch_lasts_until_the_next_is_drawn(cached):
    with ImageMinibatches(cached, ROWS, 2, 0, CROPS, workers=2) as sampler:
        for _ in range(5):
            batch = sampler.draw()
            before = batch.x.clone()
            time.sleep(0.1)  # the workers make others meanwhile
            assert torch.equal(batch.x, before)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_corrupt_image_is_named(tmp_path, workers):
    root = make_folder(tmp_path / "pets", each=1)
    broken = root / "photo" / "dog" / "0.png"
    broken.write_bytes(broken.read_bytes()[:60])
    reader = open_images(read_image_folder(root), tmp_path / "no", SIZE)
    with ImageMinibatches(reader, {0: [0, 1]}, 8, 0, CROPS, workers) as sampler:
        message = rf"{broken} is .*`hessalign datasets check` lists.*datasets prepare` meets them"
        with pytest.raises(ValueError, match=message):
            sampler.draw()


@pytest.mark.parametrize("workers", [1, 2])
def test_a_worker_that_died_is_an_error_not_a_wait(cached, workers):
    with ImageMinibatches(cached, ROWS, 2, 0, CROPS, workers) as sampler:
        sampler.draw()
        os.kill(sampler.processes[-1].pid, signal.SIGKILL)
        with pytest.raises(
            BatchWorkerError, match=r"killed by SIGKILL.*BATCH_WORKERS=0.*checkpoint"
        ):
            drawn(sampler, 12)  # more than it may have made before it died


@pytest.mark.slow
def test_a_worker_that_died_disturbs_nothing_before_its_batch_is_due(cached):
    handler, state = signal.getsignal(signal.SIGCHLD), torch.get_rng_state()
    with ImageMinibatches(cached, ROWS, 2, 0, CROPS, workers=1) as sampler:
        sampler.draw()
        assert signal.getsignal(signal.SIGCHLD) is handler
        process = sampler.processes[0]
        process.kill()
        process.join()
        sampler.load_state_dict({"step": torch.tensor(9)})
        with pytest.raises(BatchWorkerError, match=r"killed by SIGKILL.* before batch 9 was"):
            sampler.draw()
    assert torch.equal(torch.get_rng_state(), state)  # the loader has a generator of its own


class NeedsTwoError(Exception):
    """An error that cannot be read back: its class wants more than its message."""

    def __init__(self, first, second):
        super().__init__(f"{first} and {second}")


def test_an_error_that_cannot_go_to_another_process_is_told_in_words():
    assert repr(portable(NeedsTwoError(1, 2))) == "RuntimeError('NeedsTwoError: 1 and 2')"


def test_no_process_is_left_when_a_sampler_is_no_longer_used(cached):
    sampler = ImageMinibatches(cached, ROWS, 2, 0, CROPS, workers=1)
    sampler.draw()
    process = sampler.processes[0]
    assert process.is_alive()
    del sampler
    assert not process.is_alive()


def test_no_process_is_left_after_closing(cached):
    with ImageMinibatches(cached, ROWS, 2, 0, CROPS, workers=1) as sampler:
        sampler.draw()
        process = sampler.processes[0]
    assert not process.is_alive()


PARENT = """
import sys, time
from pathlib import Path
from hessalign.bench.data import open_images, read_image_folder
from hessalign.bench.runs.image_batches import ImageMinibatches
if __name__ == "__main__":
    reader = open_images(read_image_folder(Path(sys.argv[1])), Path("no"), 8)
    sampler = ImageMinibatches(reader, {0: [0, 1]}, 2, 0, None, workers=1)
    sampler.draw()
    print(sampler.processes[0].pid, flush=True)
    time.sleep(600)
"""


def test_workers_end_when_their_parent_is_killed(tmp_path):
    root = make_folder(tmp_path / "pets")
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    environment = {**os.environ, "PYTHONPATH": str(Path(hessalign.__file__).parents[1])}
    command = [sys.executable, str(script), str(root)]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    worker = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    for _ in range(1000):
        if not _running(worker):
            return
        time.sleep(0.1)
    pytest.fail(f"The worker {worker} outlived its parent by 100 seconds.")


def _running(pid):
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False
    return "State:\tZ" not in status


@pytest.mark.parametrize(
    ("rows", "batch_size", "workers", "message"),
    [
        ({0: [0]}, 0, 0, "Expected a batch size of 1 or more, got 0"),
        ({0: [0]}, 1, -1, "Expected workers of 0 or more, got -1"),
        ({}, 1, 0, "Expected one or more training domains, got none"),
        ({0: [0], 1: []}, 1, 0, "Expected images to train on in every domain, 'b' has none"),
    ],
)
def test_what_cannot_be_sampled(reader, rows, batch_size, workers, message):
    with pytest.raises(ValueError, match=message):
        ImageMinibatches(reader, rows, batch_size, 0, None, workers)


def test_images_that_come_from_nowhere_have_no_cache(cached, monkeypatch):
    monkeypatch.setenv("HESSALIGN_BATCH_WORKERS", "0")
    said = []
    data = dataclasses.replace(cached.data, root=None)
    inputs = ImageInputs(data, SIZE, 0, augment=False, warn=said.append)
    batch = inputs.sampler({0: np.array([2])}, 1, 0).draw()
    assert torch.equal(batch.x, normalise(cached.read(0, [2]).pixels))
    assert len(said) == 1
    assert "If it names the folder it comes from as its root" in said[0]


def test_chunks_hold_the_rows_in_their_order(reader):
    rows = [3, 0, 2]
    chunks = ImageChunks(reader, 1, rows, size=2)
    assert [len(x) for x in chunks] == [2, 1]
    for _ in range(2):
        assert torch.equal(torch.cat(list(chunks)), normalise(reader.read(1, rows).pixels))


def test_chunks_change_at_random_only_if_asked_to(reader):
    def chunks(seed):
        return torch.cat(list(ImageChunks(reader, 1, range(4), 2, CROPS, seed)))

    assert torch.equal(chunks(0), chunks(0))
    assert not torch.equal(chunks(0), chunks(1))
    with pytest.raises(ValueError, match="Expected images per chunk of 1 or more, got 0"):
        ImageChunks(reader, 1, [0], size=0)


def test_a_run_has_at_most_four_processes(monkeypatch):
    monkeypatch.delenv("HESSALIGN_BATCH_WORKERS", raising=False)
    assert 0 <= default_workers() <= 2  # with the run itself and Python's resource tracker


def test_the_environment_may_ask_for_another_number_of_processes(monkeypatch):
    monkeypatch.setenv("HESSALIGN_BATCH_WORKERS", "0")
    assert default_workers() == 0
    monkeypatch.setenv("HESSALIGN_BATCH_WORKERS", "many")
    with pytest.raises(
        ValueError, match="BATCH_WORKERS as a whole number of 0 or more, got 'many'"
    ):
        default_workers()
