"""Search spaces, against values that DomainBed and the paper's code drew."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hessalign.bench.algorithms import Choice, Fixed, Power, Uniform
from hessalign.bench.algorithms.search import (
    Hyper,
    common_space,
    draw,
    hyper_parameters,
    seed_hash,
)

SEEDS = st.integers(0, 2**31 - 1)


@pytest.mark.parametrize(
    ("hparams_seed", "trial_seed", "lr", "weight_decay", "batch_size"),
    [
        (1, 0, 2.7028930742148706e-05, 0.00044832883881609976, 39),
        (1, 1, 2.2352558725944602e-05, 1.9967320578799288e-06, 8),
        (2, 0, 5.6841898471378446e-05, 0.005100223533962902, 25),
    ],
)
def test_published_draws_for_big_images(hparams_seed, trial_seed, lr, weight_decay, batch_size):
    assert hyper_parameters(common_space("big"), hparams_seed, trial_seed) == {
        "data_augmentation": True,
        "resnet18": False,
        "resnet_dropout": 0.5,
        "class_balanced": False,
        "nonlinear_classifier": False,
        "lr": lr,
        "weight_decay": weight_decay,
        "batch_size": batch_size,
    }


def test_published_draws_of_the_papers_code():
    space = {"penalty_alpha": Power(10, -3, -5), "penalty_beta": Power(10, -1, -3)}
    assert draw(space, 1, 0) == {
        "penalty_alpha": 4.243422978317943e-05,
        "penalty_beta": 0.04201632158543692,
    }
    assert hyper_parameters(common_space("big", preset="hgp-2023"), 1, 0)["batch_size"] == 41


@pytest.mark.parametrize(
    ("family", "algorithm", "lr", "batch_size"),
    [
        ("small", "ERM", 1e-3, 64),
        ("small", "ARM", 1e-3, 64),
        ("big", "ERM", 5e-5, 32),
        ("big", "ARM", 5e-5, 8),
        ("DomainNet", "ERM", 5e-5, 32),
        ("DomainNet", "arm", 5e-5, 8),
    ],
)
@pytest.mark.parametrize("preset", ["domainbed-2022", "hgp-2023"])
def test_seed_0_gives_the_defaults(family, algorithm, lr, batch_size, preset):
    found = hyper_parameters(common_space(family, algorithm, preset), 0, 5)
    assert found == {
        "data_augmentation": True,
        "resnet18": False,
        "resnet_dropout": 0.0,
        "class_balanced": False,
        "nonlinear_classifier": False,
        "lr": lr,
        "weight_decay": 0.0,
        "batch_size": batch_size,
    }


@pytest.mark.parametrize(
    ("family", "algorithm", "preset", "low", "high"),
    [
        ("small", "ERM", "domainbed-2022", 3, 9),
        ("small", "ARM", "hgp-2023", 4, 9),
        ("big", "ERM", "domainbed-2022", 3, 5.5),
        ("big", "ERM", "hgp-2023", 4, 5.5),
        ("DomainNet", "ERM", "domainbed-2022", 3, 5),
        ("DomainNet", "ERM", "hgp-2023", 4, 5),
    ],
)
def test_ranges_of_the_batch_size(family, algorithm, preset, low, high):
    search = common_space(family, algorithm, preset)["batch_size"].search
    assert search == Power(2, low, high, integer=True)


def test_other_ranges():
    assert common_space("big", "ARM")["batch_size"].search == Fixed(8)
    assert common_space("small")["lr"].search == Power(10, -4.5, -2.5)
    assert common_space("small")["weight_decay"].search == Fixed(0.0)
    for family in ("big", "DomainNet"):
        assert common_space(family)["lr"].search == Power(10, -5, -3.5)
        assert common_space(family)["weight_decay"].search == Power(10, -6, -2)


@given(SEEDS)
def test_distributions_draw_what_numpy_draws(seed):
    def state():
        return np.random.RandomState(seed)

    assert Uniform(0.9, 0.99).draw(state()) == state().uniform(0.9, 0.99)
    assert Uniform(0, 5000, integer=True).draw(state()) == int(state().uniform(0.0, 5000.0))
    assert Power(10, 1, 4).draw(state()) == 10 ** state().uniform(1.0, 4.0)
    assert Power(2, 6, 10, integer=True).draw(state()) == int(2 ** state().uniform(6, 10))
    assert Choice((0.5, 0.9, 0.99, 1.0)).draw(state()) == state().choice([0.5, 0.9, 0.99, 1.0])
    assert Choice((3, 4, 5)).draw(state()) == state().choice([3, 4, 5])
    assert Fixed("x").draw(state()) == "x"


@given(SEEDS)
def test_values_are_plain_python_so_that_they_can_be_written_as_json(seed):
    kinds = [
        (Uniform(0, 1), float),
        (Uniform(0, 9, integer=True), int),
        (Power(10, 0, 1), float),
        (Power(2, 3, 9, integer=True), int),
        (Choice((1, 2)), int),
        (Choice((0.0, 0.5)), float),
        (Choice((True, False)), bool),
    ]
    for distribution, kind in kinds:
        assert type(distribution.draw(np.random.RandomState(seed))) is kind


@given(st.integers(1, 50), st.integers(0, 5))
def test_a_hyper_parameter_does_not_depend_on_the_others(hparams_seed, trial_seed):
    space = {"a": Uniform(0, 1), "b": Uniform(0, 1)}
    both = draw(space, hparams_seed, trial_seed)
    assert draw({"b": space["b"]}, hparams_seed, trial_seed) == {"b": both["b"]}
    assert both["a"] != both["b"]
    seed = seed_hash(seed_hash(hparams_seed, trial_seed), "a")
    assert both["a"] == np.random.RandomState(seed).uniform(0, 1)


def test_mistakes_are_explained():
    with pytest.raises(ValueError, match="Expected a hparams_seed of 1 or more, got 0; 0 stands"):
        draw({}, 0, 0)
    with pytest.raises(ValueError, match="Expected a hparams_seed of 1 or more, got -1"):
        hyper_parameters({"a": Hyper(0, Fixed(0))}, -1, 0)
    with pytest.raises(ValueError, match="Expected one or more values to choose from, got none"):
        Choice(())
    with pytest.raises(ValueError, match="Expected a base above 0, got -2"):
        Power(-2, 0, 1)
    with pytest.raises(ValueError, match=r"Unknown family of data sets 'domainnet'.*'DomainNet'"):
        common_space("domainnet")
    with pytest.raises(ValueError, match=r"Unknown preset 'domainbed-2023'.*Did you mean"):
        common_space("big", preset="domainbed-2023")


def test_distributions_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Uniform(0, 1).low = 2
