r"""Colored MNIST: the digit is half hidden by label noise, the colour is a tempting shortcut.

Indices: e domain, n sample, c colour channel (0 red, 1 green), then rows and columns.

Every image gets a binary label, 1 if its digit is below 5, flipped with probability 0.25, and a
colour that differs from the (flipped) label with probability $\varepsilon_e$: 0.2 and 0.1 in the
two training domains, 0.9 in the test domain. A predictor that ignores colour is right 75 % of the
time everywhere at best; one that follows it 80 and 90 % of the time in training, 10 % in the test.
The correlation of colour and label, both written as ±1, is $1 - 2\varepsilon_e$: 0.6, 0.8, −0.8.

The training domains are balanced, or one of two imbalanced splits shifts the digits between them as
well: `"paper"` as it is described there, `"released"` as the code published with it builds it.

References:
    Arjovsky, Bottou, Gulrajani and Lopez-Paz (2019), Invariant risk minimization: the data set.
    Hemati, Zhang, Estiri and Chen (2023), Understanding Hessian alignment for domain
    generalization: section 5.2 uses the balanced set, section 5.3 the imbalanced one. Its text
    numbers the classes the other way round (class 1 from digit 5 on); its code labels as here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, Literal, final, get_args

import torch
from torch import Tensor

from hessalign._errors import InputError, check_name
from hessalign._shapes import Float, Int
from hessalign.bench.data.catalog import COLORED_MNIST
from hessalign.bench.data.mnist import load_mnist14
from hessalign.bench.data.samples import DomainDataset, DomainSamples

TRAIN_POOL: Final = 50_000
TEST_POOL: Final = 10_000
_LABEL_NOISE: Final = 0.25
_TRAIN_COLOUR_NOISE: Final = (0.2, 0.1)
_TEST_COLOUR_NOISE: Final = 0.9
_NAMES: Final = ("source 1", "source 2", "target")

Imbalance = Literal["paper", "released"]

_MAJORITY: Final = 0.95
_RELEASED_MAJORITY: Final = 0.97


@final
@dataclass(frozen=True, eq=False)
class ColoredDomain:
    """Images of one domain, kept as grey value and colour; `pixels` makes the input of a model.

    Attributes:
        name: Name for tables and messages.
        images: Grey values from 0 to 1, float32.
        colour: The one channel of the image that is not zero: 0 red, 1 green.
        label: Binary label with its noise: what a model is trained on and scored against.
        digit: The digit the image shows; neither label nor colour noise touches it.

    Example:
        >>> make_colored_mnist(0, train_images=100, test_images=50).test.pixels().shape
        torch.Size([50, 2, 14, 14])
    """

    name: str
    images: Float[Tensor, "n 14 14"]
    colour: Int[Tensor, " n"]
    label: Int[Tensor, " n"]
    digit: Int[Tensor, " n"]

    def __len__(self) -> int:
        return len(self.label)

    def pixels(self) -> Float[Tensor, "n 2 14 14"]:
        """Coloured images: the grey image in channel `colour`, zeros in the other."""
        pixels = self.images.new_zeros(len(self), 2, *self.images.shape[1:])
        pixels[torch.arange(len(self)), self.colour] = self.images
        return pixels

    def grey(self) -> Float[Tensor, "n 2 14 14"]:
        """Images without colour, for the grey test: the full grey image in both channels.

        The channels are not halved, as in the published grey test accuracies: a model of the
        coloured images meets twice the light it was trained on. One that first adds the two
        channels (a grey oracle) is trained and scored on `pixels`, whose sum is the grey image.

        Returns:
            A new float32 tensor.
        """
        return torch.stack([self.images, self.images], dim=1)

    def rows(self, places: Int[Tensor, " m"]) -> ColoredDomain:
        """Some of the images, in another order."""
        every = (self.images, self.colour, self.label, self.digit)
        return ColoredDomain(self.name, *(each[places] for each in every))

    def recoloured(self, correlation: float, generator: torch.Generator) -> ColoredDomain:
        r"""The same images and labels with new colours, for the invariance profile.

        Each colour is drawn anew and equals the label with probability $(1 + \rho)/2$; the
        domains of the data set have $\rho = 0.6$, 0.8 (training) and −0.8 (test).

        Args:
            correlation: $\rho$ between colour and label, from −1 (always opposite) to 1 (equal).
            generator: Source of the draws; it is advanced.

        Returns:
            A domain that shares images, labels and digits with this one.

        Raises:
            InputError: If the correlation is not between −1 and 1.
        """
        if not -1 <= correlation <= 1:
            raise InputError(
                f"Expected a correlation from -1 to 1, got {correlation}. "
                "For colours that agree with the label with probability q pass 2 * q - 1."
            )
        differs = torch.rand(len(self), generator=generator) < (1 - correlation) / 2
        return replace(self, colour=self.label ^ differs.long())


@final
@dataclass(frozen=True, eq=False)
class ColoredMnist:
    """Colored MNIST: training domains and a test domain in which the colour misleads.

    Attributes:
        train: The two training domains, colour noise 0.2 and 0.1.
        test: The test domain, colour noise 0.9.
    """

    train: tuple[ColoredDomain, ...]
    test: ColoredDomain


def make_colored_mnist(
    seed: int,
    *,
    imbalance: Imbalance | None = None,
    train_images: int = TRAIN_POOL,
    test_images: int = TEST_POOL,
) -> ColoredMnist:
    r"""Make Colored MNIST from the shipped MNIST images: 50,000 to train on, 10,000 to test.

    With $N$ = `train_images`, of which $L$ show a digit below 5 and $H$ another (25,538 and
    24,462 of the full pool), the training domains hold

    | `imbalance` | domain | digits below 5 | other digits | full pool |
    |---|---|---|---|---|
    | `None` | 0, 1 | even, odd places of the shuffled pool | | 25,000 each |
    | `"paper"` | 0 | $a$ | $m - a$ | 23,239 + 1,223 |
    | | 1 | $m - a$ | $a$ | 1,223 + 23,239 |
    | `"released"` | 0 | $\min(L, r)$ | $N - r$ | 25,538 + 1,500 |
    | | 1 | the rest | the rest | 0 + 22,962 |

    where $a$ = round(0.95 $m$): both domains of `"paper"` together use $m = \min(L, H)$ images of
    either group; and $r$ = round(0.97 $N$), a share of the whole pool rather than of the group,
    which is why `"released"` leaves domain 1 no digit below 5.

    One generator draws everything, the test domain first, and noise belongs to an image rather than
    to a domain. So for one seed the test domain is the same for every `train_images` and
    `imbalance`, and an image has the same label in every split. The rows of every domain come in
    random order: any prefix is a fair sample.

    Args:
        seed: Seed of the shuffle, the label noise and the colours.
        imbalance: Which imbalanced split to build; the balanced one by default.
        train_images: Images drawn from the training pool of 50,000, before they are split.
        test_images: Images drawn from the test pool of 10,000.

    Returns:
        Two training domains and the test domain. A number of images that is out of range, or an
        unknown split, is an InputError.

    Example:
        >>> data = make_colored_mnist(0, train_images=2000, test_images=1000)
        >>> [len(domain) for domain in data.train], len(data.test)
        ([1000, 1000], 1000)
        >>> [round((d.colour == d.label).float().mean().item(), 1) for d in data.train]
        [0.8, 0.9]
    """
    check_images(imbalance, train_images, test_images)
    generator = torch.Generator().manual_seed(seed)
    test, test_draw = _pool("test", TRAIN_POOL, TEST_POOL, test_images, generator)
    pool, draw = _pool("train", 0, TRAIN_POOL, train_images, generator)
    train = [
        _coloured(replace(pool, name=f"train{number}"), draw, noise).rows(places)
        for number, (places, noise) in enumerate(
            zip(_split(pool.digit, imbalance, generator), _TRAIN_COLOUR_NOISE, strict=True)
        )
    ]
    return ColoredMnist(tuple(train), _coloured(test, test_draw, _TEST_COLOUR_NOISE))


def check_images(imbalance: str | None, train_images: int, test_images: int) -> None:
    """Refuse a split or numbers of images that `make_colored_mnist` cannot make."""
    check_name("imbalance", imbalance, (*get_args(Imbalance), None))
    # Two images per training domain; or enough for the small share of a digit group to be there.
    smallest = 4 if imbalance is None else 100
    for name, count, least, most in (
        ("train_images", train_images, smallest, TRAIN_POOL),
        ("test_images", test_images, 1, TEST_POOL),
    ):
        if not least <= count <= most:
            raise InputError(
                f"Expected {name} from {least:,} to {most:,}, got {count:,}. "
                f"Pass {name}={min(max(count, least), most)}, the nearest possible number."
            )


@lru_cache(maxsize=1)  # the same data are planned with, trained on and looked at again
def make_colored_mnist_domains(
    seed: int,
    imbalance: Imbalance | None = None,
    train_images: int = TRAIN_POOL,
    test_images: int = TEST_POOL,
) -> DomainDataset:
    """Colored MNIST as three domains, the last to test on, each with a part that is held out."""
    # What is held out of the training domains are two thirds of the images of the test pool, split
    # and coloured by the rule of the training domains; of the test domain, its other third. Images
    # of one colour stand together, which the network of this data set makes use of.
    made = make_colored_mnist(
        seed, imbalance=imbalance, train_images=train_images, test_images=test_images
    )
    generator = torch.Generator().manual_seed((seed << 8) + 3)
    places = torch.arange(test_images)
    unseen = places[places % 3 < 2]
    parts = _split(made.test.digit[unseen], imbalance, generator)
    domains = []
    for number, (train, part) in enumerate(zip(made.train, parts, strict=True)):
        held_out = made.test.rows(unseen[part])
        held_out = held_out.recoloured(1 - 2 * _TRAIN_COLOUR_NOISE[number], generator)
        both = [each.rows(each.colour.argsort(stable=True)) for each in (train, held_out)]
        pixels = torch.cat([each.pixels() for each in both])
        label = torch.cat([each.label for each in both])
        last = torch.arange(len(train), len(label))
        domains.append(DomainSamples(_NAMES[number], pixels, label, last))
    order = made.test.colour.argsort(stable=True)
    third = (order % 3 == 2).nonzero().squeeze(1)
    test = made.test.rows(order)
    domains.append(DomainSamples(_NAMES[2], test.pixels(), test.label, third))
    return DomainDataset(COLORED_MNIST, ("digit from 5", "digit below 5"), tuple(domains))


def _pool(
    name: str, first: int, size: int, count: int, generator: torch.Generator
) -> tuple[ColoredDomain, Float[Tensor, " n"]]:
    """Shuffled images coloured as their labels, and the draw by which colours will differ."""
    mnist = load_mnist14()
    chosen = first + torch.randperm(size, generator=generator)[:count]
    flipped = torch.rand(size, generator=generator)[:count] < _LABEL_NOISE
    uniform = torch.rand(size, generator=generator)[:count]
    digit = mnist.digits[chosen]
    label = (digit < 5).long() ^ flipped.long()
    return ColoredDomain(name, mnist.images[chosen].float() / 255, label, label, digit), uniform


def _coloured(domain: ColoredDomain, uniform: Tensor, noise: float) -> ColoredDomain:
    return replace(domain, colour=domain.label ^ (uniform < noise).long())


def _split(
    digit: Int[Tensor, " n"], imbalance: Imbalance | None, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    # The places of the pool that make up either training domain: the table above as code.
    places = torch.arange(len(digit))
    if imbalance is None:
        return places[::2], places[1::2]
    low, high = places[digit < 5], places[digit >= 5]
    if imbalance == "paper":
        size = min(len(low), len(high))
        majority = round(_MAJORITY * size)
    else:
        size = len(digit)
        majority = round(_RELEASED_MAJORITY * size)
    minority = size - majority
    first = torch.cat([low[:majority], high[:minority]])
    second = torch.cat([low[majority:size], high[minority:size]])
    # Differs from the released code, which leaves each domain sorted by digit group: the order
    # of the rows means nothing to a full batch, and a minibatch should see both groups.
    return (
        first[torch.randperm(len(first), generator=generator)],
        second[torch.randperm(len(second), generator=generator)],
    )
