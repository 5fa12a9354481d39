"""Runs of the protocol from image files: they learn, continue, and say what is wrong."""

import dataclasses
import json

import numpy as np
import pytest
import torch
from PIL import Image

from hessalign.bench.runs.domainbed import DomainBed, default_backbone
from hessalign.bench.runs.job import Job
from hessalign.bench.runs.plan import plan_job
from hessalign.bench.runs.run import train_job
from hessalign.cli import main

CLASSES = ("across", "along", "both")
DOMAINS = ("blue", "green", "red")
SIZE = 28


def shape_image(label, colour, rng):
    """White stripes on a coloured ground: across, along, or both."""
    pixels = np.full((SIZE, SIZE, 3), 60, np.uint8)
    pixels[..., colour] = 160
    lit = (np.arange(SIZE) + rng.randint(6)) % 6 < 3
    if label in {"across", "both"}:
        pixels[lit] = 255
    if label in {"along", "both"}:
        pixels[:, lit] = 255
    return Image.fromarray(pixels)


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    rng = np.random.RandomState(0)
    for colour, domain in enumerate(DOMAINS):
        for label in CLASSES:
            place = folder / "shapes" / domain / label
            place.mkdir(parents=True)
            for number in range(20):
                shape_image(label, colour, rng).save(place / f"{number}.png")
    return folder


def job_of(data_dir, steps, **options):
    values = {"image_size": SIZE, "lr": 3e-3, "batch_size": 12, "backbone": "mnist_cnn", **options}
    hparams = json.dumps(values, sort_keys=True)
    return Job("shapes", "ERM", (2,), 0, 0, str(data_dir), steps=steps, hparams=hparams)


def accuracies(folder):
    lines = (folder / "results.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k.endswith("_acc")} for line in lines]


def test_a_network_learns_stripes_and_holds_up_on_another_ground(data_dir, tmp_path):
    run = train_job(job_of(data_dir, 41), tmp_path / "run")
    first, last = run.records[0].metrics, run.records[-1].metrics
    assert first["env0_out_acc"] < 0.7  # three classes, one step
    assert min(last["env0_out_acc"], last["env1_out_acc"]) > 0.9
    assert last["env2_in_acc"] > 0.9  # the ground's colour says nothing of the stripes


def test_an_interrupted_run_ends_as_if_it_had_not_been(data_dir, tmp_path):
    job = job_of(data_dir, 5)
    train_job(job, tmp_path / "whole")

    def stop(record):
        if record.step == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_job(job, tmp_path / "parts", report=stop)
    train_job(job, tmp_path / "parts")
    assert accuracies(tmp_path / "parts") == accuracies(tmp_path / "whole")


def test_domainbeds_arm_takes_the_batch_size_for_its_parts(data_dir, tmp_path):
    options = {"fidelity": "domainbed", "batch_size": 4}
    job = dataclasses.replace(job_of(data_dir, 3, **options), algorithm="ARM")
    start = DomainBed().start(plan_job(job))[0].network
    trained = train_job(job, tmp_path).algorithm.network
    before, after = start.state_dict(), trained.state_dict()
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    context = {name for name in before if "context" in name}
    assert moved & context == {name for name in context if "running" in name or "num_" in name}
    assert moved >= {"head.weight", "head.bias"}
    inputs = DomainBed().inputs(plan_job(job), print)
    images = torch.cat(list(inputs.chunks(0, np.arange(8))))
    with torch.no_grad():
        together = trained.eval()(images)
        apart = torch.cat([trained(part) for part in images.split(4)])
    torch.testing.assert_close(together, apart)


def test_chunks_are_augmented_if_asked_for(data_dir):
    rows = np.arange(6)
    inputs = DomainBed().inputs(plan_job(job_of(data_dir, 2)), print)
    plain = torch.cat(list(inputs.chunks(0, rows)))
    changed = torch.cat(list(inputs.chunks(0, rows, augmented=True)))
    assert not torch.equal(plain, changed)
    assert torch.equal(plain, torch.cat(list(inputs.chunks(0, rows))))


@pytest.mark.parametrize("strict", [False, True])
def test_validation_is_augmented_only_by_domainbeds_protocol(data_dir, strict):
    class Seen:
        def __init__(self):
            self.augmented = {}

        def chunks(self, domain, rows, *, augmented=False):
            self.augmented.setdefault(domain, set()).add(augmented)
            return []

    plan = plan_job(job_of(data_dir, 2, augment_validation=strict))
    seen = Seen()
    DomainBed().evaluation(plan, seen, "all")
    assert seen.augmented == {
        domain: {strict and domain in plan.sources} for domain in range(len(plan.inner))
    }
    assert plan.sources
    assert len(plan.sources) < len(plan.inner)


def test_reading_without_a_cache_says_how_to_make_one(data_dir, tmp_path):
    said = []
    train_job(job_of(data_dir, 1), tmp_path / "run", warn=said.append)
    assert any("hessalign datasets prepare" in text and "--size 28" in text for text in said)
    assert main(["datasets", "prepare", str(data_dir / "shapes"), "--size", str(SIZE)]) == 0
    said.clear()
    train_job(job_of(data_dir, 2), tmp_path / "cached", warn=said.append)
    assert not said


def test_a_damaged_image_is_named(data_dir, tmp_path):
    place = tmp_path / "data" / "shapes"
    for domain in DOMAINS:
        for label in CLASSES:
            (place / domain / label).mkdir(parents=True)
            for source in sorted((data_dir / "shapes" / domain / label).glob("1?.png")):
                (place / domain / label / source.name).write_bytes(source.read_bytes())
    (place / "blue" / "both" / "15.png").write_bytes(b"no image")
    with pytest.raises(ValueError, match=r"15\.png.*hessalign datasets check"):
        train_job(job_of(tmp_path / "data", 30), tmp_path / "run")


@pytest.mark.parametrize(
    ("values", "shape", "expected"),
    [
        ({"resnet18": False}, (3, 224, 224), "resnet50"),
        ({"resnet18": True}, (3, 224, 224), "resnet18"),
        ({"resnet18": False}, (2, 28, 28), "mnist_cnn"),
        ({}, (1280,), None),
    ],
)
def test_backbones_are_domainbeds_unless_another_is_named(values, shape, expected):
    assert default_backbone(shape, **values) == expected


@pytest.mark.parametrize(
    ("backbone", "weights"),
    [("resnet50", "imagenet"), ("timm:resnet18", "imagenet"), ("mine:make", None)],
)
def test_a_backbone_of_the_user_brings_its_own_weights(data_dir, backbone, weights):
    plan = plan_job(job_of(data_dir, 1, backbone=backbone))
    assert plan.protocol.network(plan).weights == weights
