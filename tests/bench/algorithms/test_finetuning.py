"""What the battery does not see of methods that tune a network: running statistics, the oracle."""

import copy
import math

import pytest
import torch
from torch import nn

from hessalign.bench.algorithms import ALGORITHMS
from hessalign.testing import Situation, _Trial

NORMALIZED = Situation((5, 4, 7), "cross_entropy", normalized=True)


def norm_of(network):
    (layer,) = [each for each in network.modules() if isinstance(each, nn.BatchNorm1d)]
    return layer


def test_the_perturbed_pass_of_sagm_leaves_running_statistics_alone():
    trial = _Trial(ALGORITHMS["sagm"], NORMALIZED, {"rho": 1.0})
    expected = copy.deepcopy(trial.algorithm.network)
    expected.features(NORMALIZED.batch(0).x)
    trial.train(0)
    found = norm_of(trial.algorithm.network)
    torch.testing.assert_close(found.running_mean, norm_of(expected).running_mean)
    torch.testing.assert_close(found.running_var, norm_of(expected).running_var)
    assert found.num_batches_tracked == 1


def test_running_statistics_of_ermplusplus_are_averaged_and_then_see_the_batch():
    options = {"probe_steps": 0, "sma_start": 2}
    trial = _Trial(ALGORITHMS["ermplusplus"], NORMALIZED, options)
    trained, average = trial.algorithm.trained, trial.algorithm.network
    for number in range(3):
        before = norm_of(average).running_mean.clone()
        trial.train(number)
        mean = before.lerp(norm_of(trained).running_mean, 1 / (number + 1))
        with torch.no_grad():
            seen = average.featurizer[:-1](NORMALIZED.batch(number).x).mean(0)
        torch.testing.assert_close(norm_of(average).running_mean, 0.9 * mean + 0.1 * seen)


def test_frozen_running_statistics_of_ermplusplus_stay():
    trial = _Trial(ALGORITHMS["ermplusplus"], NORMALIZED)
    for network in (trial.algorithm.trained, trial.algorithm.network):
        norm_of(network).eval()
    before = norm_of(trial.algorithm.network).running_mean.clone()
    trial.train(0)
    assert torch.equal(norm_of(trial.algorithm.network).running_mean, before)


def test_the_oracle_of_miro_is_the_first_featurizer_and_stays():
    trial = _Trial(ALGORITHMS["miro"], NORMALIZED)
    first = copy.deepcopy(trial.algorithm.network.featurizer).eval()
    trial.train(0, 1)
    for key, value in trial.algorithm.oracle.state_dict().items():
        assert torch.equal(value, first.state_dict()[key]), key
    (terms,) = _Trial(ALGORITHMS["miro"]).train(0)  # without statistics nothing differs at first
    assert terms["penalty"] == pytest.approx(0.5 * math.log(0.1))
