"""The algorithm passes what runs and sweeps rely on, and its formula is what it says."""

import torch
from hessalign_spread import Spread, make_wards
from torch.nn import functional

from hessalign.bench.algorithms import Step
from hessalign.testing import Situation, check_algorithm


def test_the_algorithm_passes_every_check() -> None:
    """Resumption, devices, randomness, options and more."""
    check_algorithm(Spread)


def test_the_formula() -> None:
    """The penalty, written out for two domains."""
    situation = Situation((4, 3), "cross_entropy")
    algorithm = Spread(Spread.config, situation.setting())
    batch = situation.batch(0)
    losses = functional.cross_entropy(algorithm.network(batch.x), batch.y, reduction="none")
    first, second = losses[:4].var(correction=0), losses[4:].var(correction=0)
    terms = algorithm.terms(Step(algorithm.network, batch, 0, "cross_entropy"))
    torch.testing.assert_close(terms.penalty, ((first - second) / 2).square())


def test_the_data_set() -> None:
    """The wards in their order, which numbers them."""
    assert make_wards().domain_names == ("north", "east", "south")
