r"""Colored MNIST: the digit is half hidden by label noise, the colour is a tempting shortcut.

Indices: e domain, n sample, c colour channel (0 red, 1 green), then rows and columns.

Every image gets a binary label, 1 if its digit is below 5, flipped with probability 0.25, and a
colour that differs from the (flipped) label with probability $\varepsilon_e$: 0.2 and 0.1 in the
two training domains, 0.9 in the test domain. A predictor that ignores colour is right 75 % of the
time everywhere at best; one that follows it 80 and 90 % of the time in training, 10 % in the test.
The correlation of colour and label, both written as ±1, is $1 - 2\varepsilon_e$: 0.6, 0.8, −0.8.

The first 50,000 MNIST training images are the training pool, the last 10,000 the test pool. The
training domains are the even and the odd places of the shuffled pool, or one of two imbalanced
splits, which shift the digits between the domains as well:

- `"paper"`: 95 % of one digit group (below 5, or not) and 5 % of the other in each domain.
- `"released"`: what the code published with the paper builds instead, one domain with nearly all
  of one group and a second domain with nothing but the other.

References:
    Arjovsky, Bottou, Gulrajani and Lopez-Paz (2019), Invariant risk minimization: the data set.
    Hemati, Zhang, Estiri and Chen (2023), Understanding Hessian alignment for domain
    generalization: section 5.2 uses the balanced set, section 5.3 the imbalanced one. Its text
    numbers the classes the other way round (class 1 from digit 5 on); its code labels as here.
    For MNIST itself see `hessalign.bench.data.mnist`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, Literal, final, get_args

import torch
from torch import Tensor

from hessalign._errors import InputError
from hessalign._names import UnknownNameError
from hessalign._shapes import Float, Int
from hessalign.bench.data.catalog import COLORED_MNIST
from hessalign.bench.data.mnist import load_mnist14
from hessalign.bench.data.samples import DomainDataset, DomainSamples

TRAIN_POOL: Final = 50_000
TEST_POOL: Final = 10_000
_LABEL_NOISE: Final = 0.25
TRAIN_COLOUR_NOISE: Final = (0.2, 0.1)
TEST_COLOUR_NOISE: Final = 0.9

_NAMES: Final = ("source 1", "source 2", "target")

Imbalance = Literal["paper", "released"]

_MAJORITY: Final = 0.95
_RELEASED_MAJORITY: Final = 0.97
_MIN_BALANCED: Final = 4  # two images per training domain
_MIN_IMBALANCED: Final = 100  # enough for the small share of a digit group to be there at all


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
        >>> domain = make_colored_mnist(0, train_images=100, test_images=50).test
        >>> domain.name, len(domain), domain.pixels().shape
        ('test', 50, torch.Size([50, 2, 14, 14]))
    """

    name: str
    images: Float[Tensor, "n 14 14"]
    colour: Int[Tensor, " n"]
    label: Int[Tensor, " n"]
    digit: Int[Tensor, " n"]

    def __len__(self) -> int:
        return len(self.label)

    def pixels(self) -> Float[Tensor, "n 2 14 14"]:
        """Coloured images: the grey image in channel `colour`, zeros in the other.

        Returns:
            A new float32 tensor.

        Example:
            >>> domain = make_colored_mnist(0, train_images=100, test_images=50).test
            >>> lit = domain.pixels().sum(dim=(2, 3)) > 0
            >>> torch.equal(lit.long(), torch.nn.functional.one_hot(domain.colour, 2))
            True
        """
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

        Example:
            >>> domain = make_colored_mnist(0, train_images=100, test_images=50).test
            >>> torch.equal(domain.grey().amax(dim=1), domain.pixels().sum(dim=1))
            True
        """
        return torch.stack([self.images, self.images], dim=1)

    def every(self, step: int, first: int) -> ColoredDomain:
        """Every so many images, starting with one of the first.

        Args:
            step: How many images later the next one is.
            first: The first image, below `step`.

        Returns:
            A part of the domain; those with different first images are disjoint.

        Example:
            >>> domain = make_colored_mnist(0, train_images=100, test_images=50).test
            >>> [len(domain.every(3, first)) for first in range(3)]
            [17, 17, 16]
        """
        return self.rows(torch.arange(first, len(self), step))

    def rows(self, places: Int[Tensor, " m"]) -> ColoredDomain:
        """Some of the images, in another order."""
        return replace(
            self,
            images=self.images[places],
            colour=self.colour[places],
            label=self.label[places],
            digit=self.digit[places],
        )

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

        Example:
            >>> domain = make_colored_mnist(0, train_images=100, test_images=50).test
            >>> opposite = domain.recoloured(-1.0, torch.Generator().manual_seed(0))
            >>> torch.equal(opposite.colour, 1 - domain.label)
            True
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
    r"""Make Colored MNIST from the shipped MNIST images.

    With $N$ = `train_images`, of which $L$ show a digit below 5 and $H$ another (25,538 and
    24,462 of the full pool), the training domains hold

    | `imbalance` | domain | digits below 5 | other digits | full pool |
    |---|---|---|---|---|
    | `None` | 0, 1 | even, odd places of the shuffled pool | | 25,000 each |
    | `"paper"` | 0 | $a$ | $m - a$ | 23,239 + 1,223 |
    | | 1 | $m - a$ | $a$ | 1,223 + 23,239 |
    | `"released"` | 0 | $\min(L, r)$ | $N - r$ | 25,538 + 1,500 |
    | | 1 | the rest | the rest | 0 + 22,962 |

    where $a$ = round(0.95 $m$): both domains of `"paper"` together use $m$ images of either
    group, so the largest $m$ is $\min(L, H)$ = 24,462 per domain; and $r$ = round(0.97 $N$), a
    share of the whole pool rather than of the group, which is why `"released"` leaves domain 1
    no digit below 5.

    One generator, seeded with `seed`, draws everything, the test domain first, and noise belongs
    to an image rather than to a domain. So for one seed the test domain is the same for every
    `train_images` and `imbalance`, and an image has the same label in every split. The rows of
    every domain come in random order: any prefix is a fair sample.

    Args:
        seed: Seed of the shuffle, the label noise and the colours.
        imbalance: Which imbalanced split to build; the balanced one by default.
        train_images: Images drawn from the training pool of 50,000, before they are split.
        test_images: Images drawn from the test pool of 10,000.

    Returns:
        Two training domains and the test domain.

    Raises:
        UnknownNameError: If the split is unknown; a ValueError too, as is one about a number of
            images out of range.

    Example:
        >>> data = make_colored_mnist(0, train_images=2000, test_images=1000)
        >>> [len(domain) for domain in data.train], len(data.test)
        ([1000, 1000], 1000)
        >>> [round((d.colour == d.label).float().mean().item(), 1) for d in data.train]
        [0.8, 0.9]
    """
    if imbalance is not None and imbalance not in get_args(Imbalance):
        raise UnknownNameError("imbalance", imbalance, (*get_args(Imbalance), None))
    smallest = _MIN_BALANCED if imbalance is None else _MIN_IMBALANCED
    _check_count("train_images", train_images, smallest, TRAIN_POOL)
    _check_count("test_images", test_images, 1, TEST_POOL)

    generator = torch.Generator().manual_seed(seed)
    test = _Pool.draw(TRAIN_POOL, TEST_POOL, test_images, generator)
    train = _Pool.draw(0, TRAIN_POOL, train_images, generator)
    first, second = _split(train.digit, imbalance, generator)
    return ColoredMnist(
        train=(
            train.domain("train0", first, TRAIN_COLOUR_NOISE[0]),
            train.domain("train1", second, TRAIN_COLOUR_NOISE[1]),
        ),
        test=test.domain("test", torch.arange(test_images), TEST_COLOUR_NOISE),
    )


@lru_cache(maxsize=1)  # the same data are planned with, trained on and looked at again
def make_colored_mnist_domains(
    seed: int,
    *,
    imbalance: Imbalance | None = None,
    train_images: int = TRAIN_POOL,
    test_images: int = TEST_POOL,
) -> DomainDataset:
    """Colored MNIST as a data set of three domains, each with a part that is held out.

    What is held out of the training domains are two thirds of the images of the test pool, split
    and coloured by the rule of the training domains; of the test domain, its other third. Images
    of one colour stand together, which the network of this data set makes use of.

    Returns:
        The data set; its last domain is the one to test on.

    Example:
        >>> data = make_colored_mnist_domains(0, train_images=200, test_images=90)
        >>> [(len(domain), len(domain.held_out)) for domain in data.domains]
        [(130, 30), (130, 30), (90, 30)]
    """
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
        held_out = held_out.recoloured(1 - 2 * TRAIN_COLOUR_NOISE[number], generator)
        domains.append(_samples(_NAMES[number], train, held_out))
    order = torch.argsort(made.test.colour, stable=True)
    third = (order % 3 == 2).nonzero().squeeze(1)
    test = made.test.rows(order)
    domains.append(DomainSamples(_NAMES[2], test.pixels(), test.label, third))
    return DomainDataset(COLORED_MNIST, ("digit from 5", "digit below 5"), tuple(domains))


def _samples(name: str, train: ColoredDomain, held_out: ColoredDomain) -> DomainSamples:
    """A training domain: what is trained on, then what is held out, both sorted by colour."""
    parts = [part.rows(torch.argsort(part.colour, stable=True)) for part in (train, held_out)]
    return DomainSamples(
        name,
        torch.cat([part.pixels() for part in parts]),
        torch.cat([part.label for part in parts]),
        torch.arange(len(train), len(train) + len(held_out)),
    )


def _check_count(name: str, count: int, smallest: int, largest: int) -> None:
    if not smallest <= count <= largest:
        raise InputError(
            f"Expected {name} from {smallest:,} to {largest:,}, got {count:,}. "
            f"Pass {name}={min(max(count, smallest), largest)}, the nearest possible number."
        )


@final
@dataclass(frozen=True, eq=False)
class _Pool:
    """Shuffled images before they are coloured: what does not depend on the domain."""

    images: Tensor  # uint8, [n, 14, 14]
    digit: Int[Tensor, " n"]
    label: Int[Tensor, " n"]
    uniform: Float[Tensor, " n"]  # the colour differs from the label where this is below the noise

    @staticmethod
    def draw(first: int, size: int, count: int, generator: torch.Generator) -> _Pool:
        mnist = load_mnist14()
        chosen = first + torch.randperm(size, generator=generator)[:count]
        flipped = torch.rand(size, generator=generator)[:count] < _LABEL_NOISE
        uniform = torch.rand(size, generator=generator)[:count]
        digit = mnist.digits[chosen]
        label = (digit < 5).long() ^ flipped.long()
        return _Pool(mnist.images[chosen], digit, label, uniform)

    def domain(self, name: str, places: Int[Tensor, " n"], colour_noise: float) -> ColoredDomain:
        label = self.label[places]
        return ColoredDomain(
            name=name,
            images=self.images[places].float() / 255,
            colour=label ^ (self.uniform[places] < colour_noise).long(),
            label=label,
            digit=self.digit[places],
        )


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
        minority = size - majority
        first = torch.cat([low[:majority], high[:minority]])
        second = torch.cat([low[majority:size], high[minority:size]])
    else:
        majority = round(_RELEASED_MAJORITY * len(digit))
        minority = len(digit) - majority
        first = torch.cat([low[:majority], high[:minority]])
        second = torch.cat([low[majority:], high[minority:]])
    # Differs from the released code, which leaves each domain sorted by digit group: the order
    # of the rows means nothing to a full batch, and a minibatch should see both groups.
    return (
        first[torch.randperm(len(first), generator=generator)],
        second[torch.randperm(len(second), generator=generator)],
    )
