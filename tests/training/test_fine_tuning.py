"""From image files to a trained backbone: the whole path learns."""

from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw
from tests.pictures import PACS, needs_pacs

from hessalign.algorithms import Setting, find_algorithm, make_config
from hessalign.data import (
    Augmentation,
    open_images,
    prepare_images,
    read_image_folder,
    split_domain,
)
from hessalign.models import NetworkSpec, make_network
from hessalign.training.image_inputs import ImageInputs
from hessalign.training.inputs import accuracy
from hessalign.training.loop import LoopConfig, train

BACKGROUNDS = {"day": (235, 235, 220), "night": (20, 25, 60)}
SHAPES = ("bars", "disc", "ring")


def shape(kind, background, random):
    """A shape of any colour, anywhere: only its form tells the class."""
    image = Image.new("RGB", (40, 40), background)
    draw = ImageDraw.Draw(image)
    colour = tuple(random.randint(60, 200, 3).tolist())
    x, y = random.randint(3, 10, 2).tolist()
    if kind == "bars":
        for start in range(x, x + 26, 8):
            draw.rectangle((start, y, start + 3, y + 26), fill=colour)
    elif kind == "disc":
        draw.ellipse((x, y, x + 26, y + 26), fill=colour)
    else:
        draw.ellipse((x, y, x + 26, y + 26), outline=colour, width=4)
    return image


@pytest.fixture(scope="module")
def shapes(tmp_path_factory):
    root, random = tmp_path_factory.mktemp("shapes"), np.random.RandomState(0)
    for domain, background in BACKGROUNDS.items():
        for kind in SHAPES:
            folder = root / "shapes" / domain / kind
            folder.mkdir(parents=True)
            for number in range(40):
                shape(kind, background, random).save(folder / f"{number}.png")
    return prepare_images(read_image_folder(root / "shapes"), root / "cache", 32)


def fine_tune(inputs, data, spec, rows, steps, learning_rate, batch_size):
    """Train ERM; its records."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    setting = Setting(
        partial(make_network, spec), spec.outputs, len(rows), "cross_entropy", steps, generator,
        input_shape=spec.input_shape,
    )  # fmt: skip
    algorithm = find_algorithm("erm").make(make_config("erm", {}), setting)

    def evaluate(network):
        return {
            data.domains[domain].name: accuracy(
                network, inputs.chunks(domain, held_out), data.domains[domain].labels[held_out]
            )
            for domain, (_, held_out) in rows.items()
        }

    with inputs.sampler([(d, inner) for d, (inner, _) in rows.items()], batch_size, 0) as sampler:
        config = LoopConfig(
            steps, learning_rate, "cross_entropy", evaluate_every=10, evaluate_before=True
        )
        return train(algorithm, sampler, evaluate, config, generator)


def split(data, domains):
    parts = {each: split_domain(len(data.domains[each]), 0, each) for each in domains}
    return {each: (part.inner, part.outer) for each, part in parts.items()}


def test_a_network_learns_shapes_from_image_files(shapes):
    inputs = ImageInputs(shapes, Augmentation(size=32), workers=1)
    spec = NetworkSpec(inputs.shape, 3, backbone="timm:test_resnet", freeze_batch_norm=False)
    records = fine_tune(inputs, shapes.data, spec, split(shapes.data, (0, 1)), 81, 3e-3, 16)
    first, last = records[0].metrics, records[-1].metrics
    assert max(first.values()) < 0.6
    assert min(last.values()) > 0.9


def test_other_sizes_in_training_and_evaluation_are_refused(shapes):
    with pytest.raises(ValueError, match=r"training images of 32 pixels, .* augmentation to 224"):
        ImageInputs(shapes, Augmentation())


@needs_pacs
@pytest.mark.slow
def test_a_trained_backbone_is_fine_tuned_on_pacs(tmp_path):
    pytest.importorskip("efficientnet_lite_pytorch")
    data = read_image_folder(PACS, "PACS")
    inputs = ImageInputs(open_images(data, tmp_path / "none", 96), Augmentation(size=96), workers=1)
    backbone = "examples.efficientnet_lite0:efficientnet_lite0"
    spec = NetworkSpec(inputs.shape, 7, backbone=backbone)
    rows = {d: (inner, outer[:40]) for d, (inner, outer) in split(data, (1, 2, 3)).items()}
    records = fine_tune(inputs, data, spec, rows, 31, 1e-3, 8)
    assert records[-1].terms["loss"] < 0.8 * records[0].terms["loss"]
    accuracies = [np.mean(list(each.metrics.values())) for each in (records[0], records[-1])]
    assert accuracies[1] > accuracies[0] + 0.2
