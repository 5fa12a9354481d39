"""Colored MNIST: which image goes where, with which label and colour."""

import inspect
import math

import numpy as np
import pytest
import torch

from hessalign.bench.data import Mnist, colored_mnist, load_mnist14, make_colored_mnist

SPLITS = (None, "paper", "released")
COLOUR_NOISE = (0.2, 0.1, 0.9)


def domains(data):
    return (*data.train, data.test)


def assert_rate(hits, expected):
    """A frequency within five standard deviations of its probability."""
    tolerance = 5 * math.sqrt(expected * (1 - expected) / len(hits))
    assert hits.double().mean().item() == pytest.approx(expected, abs=tolerance)


def assert_same(a, b):
    for field in ("images", "colour", "label", "digit"):
        assert torch.equal(getattr(a, field), getattr(b, field)), field


@pytest.fixture
def numbered(monkeypatch):
    """MNIST with the number of each image written into its first three pixels."""
    mnist = load_mnist14()
    images = mnist.images.clone()
    number = torch.arange(60_000)
    for place in range(3):
        images[:, 0, place] = (number // 256**place % 256).to(torch.uint8)
    monkeypatch.setattr(colored_mnist, "load_mnist14", lambda: Mnist(images, mnist.digits))
    return images


def numbers(domain):
    return (domain.images[:, 0, :3] * 255).round().long() @ torch.tensor([1, 256, 256**2])


# --- which images -----------------------------------------------------------------------------


@pytest.mark.parametrize("imbalance", SPLITS)
@pytest.mark.parametrize(("train_images", "test_images"), [(50_000, 10_000), (3001, 500)])
def test_no_image_is_used_twice(numbered, imbalance, train_images, test_images):
    data = make_colored_mnist(
        3, imbalance=imbalance, train_images=train_images, test_images=test_images
    )
    train = torch.cat([numbers(domain) for domain in data.train])
    test = numbers(data.test)
    assert len(train.unique()) == len(train) <= train_images
    assert len(test.unique()) == len(test) == test_images
    assert train.max() < 50_000 <= test.min()


def test_balanced_domains_share_out_the_whole_pool(numbered):
    data = make_colored_mnist(0)
    first, second = (numbers(domain) for domain in data.train)
    assert len(first) == len(second) == 25_000
    assert torch.equal(torch.cat([first, second]).sort().values, torch.arange(50_000))
    order = torch.randperm(50_000, generator=first_draws(0))
    assert torch.equal(first, order[::2])
    assert torch.equal(second, order[1::2])


def first_draws(seed):
    """The generator of a data set after the draws of the test domain."""
    generator = torch.Generator().manual_seed(seed)
    torch.randperm(10_000, generator=generator)
    torch.rand(20_000, generator=generator)
    return generator


@pytest.mark.parametrize("imbalance", SPLITS)
def test_images_and_digits_are_those_of_mnist(numbered, imbalance):
    for domain in domains(make_colored_mnist(1, imbalance=imbalance, train_images=2000)):
        number = numbers(domain)
        assert domain.images.dtype == torch.float32
        assert torch.allclose(domain.images, numbered[number] / 255, rtol=0, atol=1e-7)
        assert torch.equal(domain.digit, load_mnist14().digits[number])


def groups(domain):
    return int((domain.digit < 5).sum()), int((domain.digit >= 5).sum())


def test_paper_split_counts():
    first, second = make_colored_mnist(0, imbalance="paper").train
    assert len(first) == len(second) == 24_462
    assert groups(first) == (23_239, 1_223)
    assert groups(second) == (1_223, 23_239)


def test_released_split_counts():
    first, second = make_colored_mnist(0, imbalance="released").train
    assert groups(first) == (25_538, 1_500)
    assert groups(second) == (0, 22_962)


@pytest.mark.parametrize("seed", range(3))
def test_smaller_paper_split_keeps_the_shares(seed):
    pool = make_colored_mnist(seed, train_images=1000)
    largest = min(sum(column) for column in zip(*map(groups, pool.train), strict=True))
    first, second = make_colored_mnist(seed, imbalance="paper", train_images=1000).train
    assert len(first) == len(second) == largest
    for low, high in (groups(first), groups(second)[::-1]):
        assert low / (low + high) == pytest.approx(0.95, abs=1 / largest)


@pytest.mark.parametrize(("size", "minority"), [(10_000, 300), (1000, 30), (100, 3)])
def test_smaller_released_split_scales_with_the_pool(size, minority):
    first, second = make_colored_mnist(0, imbalance="released", train_images=size).train
    assert len(first) + len(second) == size
    assert groups(first)[1] == minority
    assert groups(second)[0] == 0


@pytest.mark.parametrize(("imbalance", "share"), [("paper", 0.05), ("released", 1500 / 27_038)])
def test_a_prefix_of_an_imbalanced_domain_is_a_fair_sample(imbalance, share):
    first = make_colored_mnist(0, imbalance=imbalance).train[0]
    assert_rate(first.digit[:5000] >= 5, share)


# --- which labels and colours -----------------------------------------------------------------


@pytest.mark.parametrize("imbalance", SPLITS)
@pytest.mark.parametrize("seed", range(3))
def test_label_is_digit_below_five_flipped_for_a_quarter(imbalance, seed):
    for domain in domains(make_colored_mnist(seed, imbalance=imbalance)):
        flipped = domain.label != (domain.digit < 5).long()
        for group in (domain.digit < 5, domain.digit >= 5):
            if group.any():
                assert_rate(flipped[group], 0.25)


@pytest.mark.parametrize("imbalance", SPLITS)
@pytest.mark.parametrize("seed", range(3))
def test_colour_differs_from_the_noisy_label_at_the_rate_of_the_domain(imbalance, seed):
    data = make_colored_mnist(seed, imbalance=imbalance)
    for domain, noise in zip(domains(data), COLOUR_NOISE, strict=True):
        differs = domain.colour != domain.label
        flipped = domain.label != (domain.digit < 5).long()
        assert_rate(differs[flipped], noise)
        assert_rate(differs[~flipped], noise)


def test_label_one_rates_of_the_released_split():
    """After the flip 72.2 % and 25.0 % of the labels are 1."""
    first, second = make_colored_mnist(0, imbalance="released").train
    assert_rate(first.label, 0.722)
    assert_rate(second.label, 0.250)


def test_names():
    data = make_colored_mnist(0, train_images=4, test_images=1)
    assert [domain.name for domain in domains(data)] == ["train0", "train1", "test"]
    assert [len(domain) for domain in domains(data)] == [2, 2, 1]


# --- model inputs -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small():
    return make_colored_mnist(0, train_images=2000, test_images=4000)


def test_pixels_light_only_the_channel_of_the_colour(small):
    for domain in domains(small):
        pixels = domain.pixels()
        assert pixels.shape == (len(domain), 2, 14, 14)
        assert pixels.dtype == torch.float32
        row = torch.arange(len(domain))
        assert torch.equal(pixels[row, domain.colour], domain.images)
        assert pixels[row, 1 - domain.colour].count_nonzero() == 0
        assert 0.9 < pixels.max() <= 1.0
        assert pixels.min() == 0.0


def test_red_is_channel_zero():
    domain = colored_mnist.ColoredDomain(
        "two",
        torch.ones(2, 14, 14),
        torch.tensor([0, 1]),
        torch.tensor([1, 1]),
        torch.tensor([0, 0]),
    )
    assert domain.pixels()[:, :, 3, 5].tolist() == [[1.0, 0.0], [0.0, 1.0]]


def test_grey_shows_the_image_in_both_channels(small):
    grey = small.test.grey()
    assert grey.dtype == torch.float32
    assert torch.equal(grey[:, 0], small.test.images)
    assert torch.equal(grey[:, 1], small.test.images)


def test_pixels_can_be_written_to(small):
    before = small.test.images.clone()
    small.test.pixels().fill_(7.0)
    small.test.grey().fill_(7.0)
    assert torch.equal(small.test.images, before)


def test_domain_does_not_share_memory_with_the_cached_mnist():
    images, digits = load_mnist14().images.clone(), load_mnist14().digits.clone()
    domain = make_colored_mnist(0, train_images=100).train[0]
    domain.images.fill_(9.0)
    domain.digit.fill_(9)
    assert torch.equal(load_mnist14().images, images)
    assert torch.equal(load_mnist14().digits, digits)


# --- invariance profile -----------------------------------------------------------------------


@pytest.mark.parametrize("correlation", [-1.0, -0.8, 0.0, 0.35, 1.0])
def test_recoloured_agrees_as_often_as_asked(small, correlation):
    before = small.test.colour.clone()
    again = small.test.recoloured(correlation, torch.Generator().manual_seed(5))
    for label in (0, 1):
        assert_rate((again.colour == again.label)[again.label == label], (1 + correlation) / 2)
    for field in ("name", "images", "label", "digit"):
        assert getattr(again, field) is getattr(small.test, field)
    assert again.colour.dtype == torch.int64
    assert torch.equal(small.test.colour, before)


def test_recoloured_follows_its_generator(small):
    generator = torch.Generator().manual_seed(5)
    first, second = (small.test.recoloured(0.0, generator).colour for _ in range(2))
    assert not torch.equal(first, second)
    again = small.test.recoloured(0.0, torch.Generator().manual_seed(5)).colour
    assert torch.equal(first, again)


@pytest.mark.parametrize("correlation", [-1.01, 1.5, math.nan])
def test_recoloured_refuses_impossible_correlations(small, correlation):
    with pytest.raises(ValueError, match=rf"from -1 to 1, got {correlation}\. .* pass 2 \* q - 1"):
        small.test.recoloured(correlation, torch.Generator())


# --- randomness -------------------------------------------------------------------------------


@pytest.mark.parametrize("imbalance", SPLITS)
def test_same_seed_same_data(imbalance):
    first, second = (make_colored_mnist(7, imbalance=imbalance) for _ in range(2))
    for a, b in zip(domains(first), domains(second), strict=True):
        assert_same(a, b)


def test_another_seed_changes_everything():
    pairs = zip(*(domains(make_colored_mnist(seed)) for seed in (0, 1)), strict=True)
    for a, b in pairs:
        for field in ("images", "colour", "label", "digit"):
            assert not torch.equal(getattr(a, field), getattr(b, field)), field


def test_global_generators_are_left_alone(small):
    states = torch.get_rng_state(), np.random.get_state()[1].copy()
    make_colored_mnist(0, imbalance="paper", train_images=200)
    small.test.recoloured(0.5, torch.Generator().manual_seed(0))
    assert torch.equal(torch.get_rng_state(), states[0])
    assert np.array_equal(np.random.get_state()[1], states[1])


def test_global_seed_does_not_matter():
    torch.manual_seed(1)
    first = make_colored_mnist(0, train_images=200)
    torch.manual_seed(2)
    assert_same(make_colored_mnist(0, train_images=200).train[0], first.train[0])


def test_test_domain_depends_on_the_seed_alone():
    expected = make_colored_mnist(4).test
    for imbalance in SPLITS:
        assert_same(make_colored_mnist(4, imbalance=imbalance, train_images=500).test, expected)


def test_an_image_has_one_label_in_every_split(numbered):
    labels = {}
    for imbalance in SPLITS:
        for train_images in (50_000, 800):
            data = make_colored_mnist(
                2, imbalance=imbalance, train_images=train_images, test_images=train_images // 10
            )
            for domain in domains(data):
                for number, label in zip(
                    numbers(domain).tolist(), domain.label.tolist(), strict=True
                ):
                    assert labels.setdefault(number, label) == label


# --- errors -----------------------------------------------------------------------------------


def make_unchecked(**arguments):
    """Past the type checks of the test session, which refuse an unknown name before ours."""
    return inspect.unwrap(make_colored_mnist)(0, **arguments)


def test_unknown_imbalance_proposes_the_nearest_name():
    with pytest.raises(
        ValueError,
        match=r"Unknown imbalance 'papre'\. Expected one of: 'paper', 'released', None\. "
        r"Did you mean 'paper'\?$",
    ):
        make_unchecked(imbalance="papre")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"train_images": 3}, r"train_images from 4 to 50,000, got 3\. Pass train_images=4,"),
        ({"train_images": 50_001}, r"got 50,001\. Pass train_images=50000, the nearest"),
        ({"train_images": 99, "imbalance": "paper"}, r"train_images from 100 to 50,000, got 99"),
        ({"train_images": 99, "imbalance": "released"}, r"Pass train_images=100,"),
        ({"test_images": 0}, r"test_images from 1 to 10,000, got 0\. Pass test_images=1,"),
        ({"test_images": 10_001}, r"got 10,001\. Pass test_images=10000,"),
    ],
)
def test_numbers_of_images_out_of_range(arguments, message):
    with pytest.raises(ValueError, match=message):
        make_colored_mnist(0, **arguments)
