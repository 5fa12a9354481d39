"""Augmentation of batches against the same transform of single images, written with Pillow.

The reference is what torchvision's transforms do to a Pillow image, written out here; where
torchvision can be imported, it is compared with the same statistics.
"""

import colorsys
import dataclasses
import math
import random
from collections import Counter
from functools import partial
from inspect import unwrap

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance
from tests.pictures import picture

from hessalign.bench.data import Augmentation, augment, normalise
from hessalign.bench.data.augmentation import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    _change_brightness,
    _change_contrast,
    _change_saturation,
    _draw_crops,
    _resized_crop,
    _turn_hue,
)
from hessalign.bench.models.backbones import import_library

SCALE, RATIO = (0.7, 1.0), (3 / 4, 4 / 3)


def tensor(image):
    return torch.tensor(np.asarray(image)).permute(2, 0, 1)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def denormalised(images):
    mean, std = (torch.tensor(v).reshape(3, 1, 1) for v in (IMAGENET_MEAN, IMAGENET_STD))
    return images * std + mean


# --- the reference ------------------------------------------------------------------------------


def reference_crop(width, height, source):
    for _ in range(10):
        area = width * height * source.uniform(*SCALE)
        aspect = math.exp(source.uniform(math.log(RATIO[0]), math.log(RATIO[1])))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            return source.randint(0, width - w), source.randint(0, height - h), w, h
    w, h = width, height
    if width / height < RATIO[0]:
        h = round(w / RATIO[0])
    elif width / height > RATIO[1]:
        w = round(h * RATIO[1])
    return (width - w) // 2, (height - h) // 2, w, h


def hue_turned(image, turn):
    h, s, v = image.convert("HSV").split()
    shifted = (np.asarray(h).astype(int) + int(turn * 255)) % 256
    h = Image.fromarray(shifted.astype(np.uint8))
    return Image.merge("HSV", (h, s, v)).convert("RGB")


def reference(image, size, source):
    left, top, w, h = reference_crop(*image.size, source)
    image = image.crop((left, top, left + w, top + h)).resize((size, size), Image.BILINEAR)
    if source.random() < 0.5:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    bright, contrast, colour = (source.uniform(0.7, 1.3) for _ in range(3))
    turn = source.uniform(-0.3, 0.3)
    changes = [
        lambda i: ImageEnhance.Brightness(i).enhance(bright),
        lambda i: ImageEnhance.Contrast(i).enhance(contrast),
        lambda i: ImageEnhance.Color(i).enhance(colour),
        lambda i: hue_turned(i, turn),
    ]
    source.shuffle(changes)
    for change in changes:
        image = change(image)
    return image.convert("L").convert("RGB") if source.random() < 0.1 else image


# --- parts against Pillow -----------------------------------------------------------------------


@pytest.mark.parametrize("size", [5, 9, 16, 40])
@pytest.mark.parametrize("flip", [False, True])
def test_crops_are_resized_as_pillow_resizes_them(size, flip):
    image = Image.fromarray(np.random.RandomState(0).randint(0, 256, (20, 24, 3), dtype=np.uint8))
    left, top, w, h = 3, 2, 17, 15
    expected = image.crop((left, top, left + w, top + h)).resize((size, size), Image.BILINEAR)
    if flip:
        expected = expected.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    box = (left, top, left + w, top + h)
    floats = _resized_crop(tensor(image).float(), box, size, flip)
    assert (floats - tensor(expected)).abs().max() <= 1.01  # Pillow rounds rows, then columns
    for whole in (tensor(image), tensor(image).contiguous()):  # both orders in memory
        apart = (_resized_crop(whole, box, size, flip).int() - tensor(expected).int()).abs()
        assert apart.max() <= 1  # where a grey value is half-way between two
        assert apart.float().mean() < 0.05


@pytest.mark.parametrize(
    ("change", "enhance"),
    [
        (_change_brightness, ImageEnhance.Brightness),
        (_change_contrast, ImageEnhance.Contrast),
        (_change_saturation, ImageEnhance.Color),
    ],
)
@pytest.mark.parametrize("factor", [0.7, 1.0, 1.3])
def test_blends_are_those_of_pillow(change, enhance, factor):
    image = picture(3, (16, 16))
    found = tensor(image).float()
    change(found, factor)
    expected = tensor(enhance(image).enhance(factor))
    assert (found - expected).abs().max() <= 1.6  # it rounds grey values, then the blend


@pytest.mark.parametrize("turn", [-0.5, -0.3, -1 / 6, -0.1, 0.0, 0.2, 1 / 3, 0.5])
def test_hue_is_that_of_colorsys(turn):
    levels = torch.tensor([0.0, 0.4, 1.0], dtype=torch.float64)  # all ties, greys and corners
    pixels = torch.cat([torch.rand(50, 3).double(), torch.cartesian_prod(levels, levels, levels)])
    found = pixels.T.unsqueeze(2).clone()
    _turn_hue(found, turn)
    expected = []
    for pixel in pixels.tolist():
        h, s, v = colorsys.rgb_to_hsv(*pixel)
        expected.append(colorsys.hsv_to_rgb((h + turn) % 1, s, v))
    assert torch.allclose(found[:, :, 0].T, torch.tensor(expected, dtype=torch.float64))


def test_normalisation():
    image = tensor(picture(0))[None]
    assert torch.allclose(denormalised(normalise(image)), image / 255, atol=1e-6)
    assert torch.equal(normalise(image), normalise(image / 255))


# --- the distribution ---------------------------------------------------------------------------


def assert_same_moments(found, expected):
    """Means and variances agree within four and a half standard errors."""
    for values in (lambda x: x, lambda x: (x - x.mean(0)) ** 2):
        a, b = values(np.asarray(found, float)), values(np.asarray(expected, float))
        error = np.sqrt(a.var(0) / len(a) + b.var(0) / len(b)) + 1e-9
        assert (np.abs(a.mean(0) - b.mean(0)) / error).max() < 4.5


@pytest.mark.parametrize("shape", [(30, 30), (60, 40), (40, 47), (100, 20), (20, 100)])
def test_crops_have_the_distribution_of_the_literal_formula(shape):
    count = 4000
    source = random.Random(0)
    expected = [reference_crop(*shape, source) for _ in range(count)]
    boxes = _draw_crops(torch.tensor([shape] * count), generator(), SCALE, RATIO)
    assert (boxes[:, 2:] >= 1).all()
    assert (boxes[:, :2] >= 0).all()
    assert (boxes[:, :2] + boxes[:, 2:] <= torch.tensor(shape)).all()
    found = boxes.numpy()
    assert_same_moments(found, expected)
    area = lambda b: (np.asarray(b)[:, 2] * np.asarray(b)[:, 3])[:, None]  # noqa: E731
    assert_same_moments(area(found), area(expected))


def summaries(images):
    """Means of the channels, of their squares, and contrasts of left and right, top and bottom."""
    images = images.double()
    half = images.shape[-1] // 2
    parts = [
        images.mean((2, 3)),
        images.square().mean((2, 3)),
        images[..., :half].mean((2, 3)) - images[..., half:].mean((2, 3)),
        images[..., :half, :].mean((2, 3)) - images[..., half:, :].mean((2, 3)),
        (images[:, 0] - images[:, 1]).abs().mean((1, 2))[:, None],
    ]
    return torch.cat(parts, 1).numpy()


def drawn(image, count, size):
    batch = tensor(image)[None].expand(count, -1, -1, -1)
    return denormalised(augment(batch, generator(1), Augmentation(size=size)))


@pytest.mark.parametrize("seed", [5, 8])
def test_augmented_images_have_the_distribution_of_the_reference(seed):
    image, count, size = picture(seed, (20, 16)), 2500, 12
    source = random.Random(0)
    expected = torch.stack([tensor(reference(image, size, source)) for _ in range(count)]) / 255
    found = drawn(image, count, size)
    assert_same_moments(summaries(found), summaries(expected))


def test_augmented_images_have_the_distribution_of_torchvision():
    try:
        transforms = import_library("torchvision").transforms
    except ImportError as error:
        pytest.skip(str(error))
    image, count, size = picture(5, (20, 16)), 2500, 12
    transform = transforms.Compose([
        transforms.RandomResizedCrop(size, scale=SCALE), transforms.RandomHorizontalFlip(),
        transforms.ColorJitter(0.3, 0.3, 0.3, 0.3), transforms.RandomGrayscale(),
        transforms.ToTensor(),
    ])  # fmt: skip
    expected = torch.stack([transform(image) for _ in range(count)])
    assert_same_moments(summaries(drawn(image, count, size)), summaries(expected))


def test_rates_of_flips_and_grey_images():
    count = 4000
    image = torch.zeros(3, 4, 4)
    image[0, :, 2:] = 1  # red to the right
    settings = Augmentation(
        4, (1.0, 1.0), (1.0, 1.0), brightness=0.0, contrast=0.0, saturation=0.0, hue=0.0
    )
    found = denormalised(augment(image.expand(count, 3, 4, 4), generator(), settings))
    grey = (found[:, 0] - found[:, 2]).abs().amax((1, 2)) < 1e-5
    flipped = found[:, 0, :, 0].mean(1) > found[:, 0, :, 3].mean(1)
    assert abs(grey.double().mean() - 0.1) < 4.5 * math.sqrt(0.09 / count)
    assert abs(flipped.double().mean() - 0.5) < 4.5 * math.sqrt(0.25 / count)


def test_factors_are_uniform_and_applied_in_every_order(monkeypatch):
    count, factors = 4800, {}

    def record(kind, image, factor):
        factors.setdefault(kind, []).append(factor)
        image.mul_(10).add_(kind)  # digits: the order in which the image was changed

    records = [partial(record, kind) for kind in range(4)]
    # Its own globals: a doctest run imports the module a second time.
    monkeypatch.setitem(unwrap(augment).__globals__, "_CHANGES", records)
    settings = Augmentation(2, grayscale=0.0)
    found = denormalised(augment(torch.zeros(count, 3, 2, 2), generator(), settings))
    digits = (255 * found[:, 0, 0, 0]).round().int().tolist()
    orders = Counter(f"{number:04d}" for number in digits)
    assert {"".join(sorted(order)) for order in orders} == {"0123"}
    assert len(orders) == 24
    assert all(abs(times - 200) < 4.5 * math.sqrt(200) for times in orders.values())
    for kind, centre in enumerate((1, 1, 1, 0)):
        values = (torch.tensor(factors[kind], dtype=torch.float64) - centre) / 0.3
        assert len(values) == count
        assert values.abs().max() <= 1 + 1e-6
        uniform = np.random.RandomState(0).uniform(-1, 1, (count, 1))
        assert_same_moments(values.numpy()[:, None], uniform)


def test_defaults_are_the_protocol():
    assert dataclasses.astuple(Augmentation()) == (224, SCALE, RATIO, 0.5, *[0.3] * 4, 0.1)


def test_crops_of_a_squeezed_image_are_those_of_the_original():
    wide = picture(2, (90, 60))
    squeezed = wide.resize((60, 60), Image.BILINEAR)
    settings = Augmentation(size=30)
    sizes = torch.tensor([wide.size] * 20)
    expected, found, careless = (
        augment(tensor(image)[None].expand(20, -1, -1, -1), generator(), settings, given)
        for image, given in ((wide, None), (squeezed, sizes), (squeezed, None))
    )
    assert (found - expected).abs().mean() < 0.02
    assert (careless - expected).abs().mean() > 0.04


def test_draws_come_from_the_generator_and_differ_between_images():
    images = tensor(picture(1, (16, 16)))[None].expand(8, -1, -1, -1)
    settings = Augmentation(size=8)
    state = torch.get_rng_state()
    first, again = (augment(images, generator(3), settings) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(first, again)
    assert not torch.equal(first, augment(images, generator(4), settings))
    distances = torch.cdist(first.flatten(1), first.flatten(1)) + 9 * torch.eye(8)
    assert distances.min() > 0.1


@pytest.mark.parametrize("size", [8, 16, 20], ids=["smaller", "same", "larger"])
def test_the_order_of_channels_in_memory_does_not_matter(size):
    together = torch.stack([tensor(picture(seed, (16, 16))) for seed in range(7)])
    together = together.contiguous(memory_format=torch.channels_last)
    apart = together.contiguous()
    assert together.stride() != apart.stride()
    settings = Augmentation(size=size)
    expected = augment(apart, generator(), settings)
    assert torch.equal(augment(together, generator(), settings), expected)
    assert torch.equal(normalise(together), normalise(apart))
    assert augment(apart[:0], generator(), settings).shape == (0, 3, size, size)


def test_images_without_colours_are_changed_like_others():
    pictures = [picture(seed, (16, 16)).convert("L").convert("RGB") for seed in range(9)]
    grey = torch.stack([tensor(each) for each in pictures]).double() / 255
    almost = grey + 1e-9 * torch.tensor([1.0, 0, 0]).reshape(3, 1, 1)  # goes the way of colours
    settings = Augmentation(size=12)
    found, expected = (augment(each, generator(), settings) for each in (grey, almost))
    assert not torch.equal(found, expected)
    torch.testing.assert_close(found, expected, atol=1e-7, rtol=0)


@pytest.mark.parametrize("original", [(3, 2), (16, 16), (900, 700)])
def test_the_smallest_crops_have_a_pixel(original):
    image = tensor(picture(1, (16, 12)))[None].expand(200, -1, -1, -1)
    settings, sizes = Augmentation(4, scale=(1e-6, 1e-6)), torch.tensor([original] * 200)
    assert augment(image, generator(), settings, sizes).isfinite().all()


def test_the_result_goes_where_it_is_wanted():
    images = torch.stack([tensor(picture(seed, (16, 16))) for seed in range(3)])
    settings, place = Augmentation(size=8), torch.zeros(5, 3, 8, 8)
    augment(images, generator(), settings, out=place[1:4])
    assert torch.equal(place[1:4], augment(images, generator(), settings))
    assert place[0].abs().sum() == place[4].abs().sum() == 0


def test_mistakes_are_explained():
    with pytest.raises(ValueError, match=r"shape \[n, 3, height, width\], got \[2, 1, 4, 4\]"):
        normalise(torch.zeros(2, 1, 4, 4))
    with pytest.raises(ValueError, match=r"uint8 or floats, got torch\.int64"):
        normalise(torch.zeros(2, 3, 4, 4, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"shape \[n, 3, height, width\], got \[3, 4, 4\]"):
        augment(torch.zeros(3, 4, 4), generator())
    with pytest.raises(ValueError, match="Expected images on the CPU, got them on meta: change"):
        augment(torch.zeros(2, 3, 4, 4, device="meta"), generator())
    with pytest.raises(ValueError, match=r"width and height of 2 images .* shape \[3, 2\]"):
        augment(torch.zeros(2, 3, 4, 4), generator(), None, torch.ones(3, 2, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"scale as \(least, largest\) above 0 and up to 1, got"):
        Augmentation(scale=(0.7, 1.2))
    with pytest.raises(ValueError, match=r"Expected hue from 0 to 0\.5, got 0\.6"):
        Augmentation(hue=0.6)
    with pytest.raises(ValueError, match="Expected a size of 1 or more pixels, got 0"):
        Augmentation(size=0)
