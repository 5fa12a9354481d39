"""The Colored MNIST experiment as a whole."""

import dataclasses
import json

import pytest
import torch

from hessalign.bench.algorithms import ALGORITHMS
from hessalign.bench.data import make_colored_mnist
from hessalign.bench.models import make_coloured_mlp
from hessalign.bench.runs import ColoredMnistConfig, train_colored_mnist
from hessalign.bench.runs.colored_mnist import make_batch, make_evaluation

TINY = {"train_images": 200, "test_images": 60, "steps": 4, "jump": 2, "width": 8}


def final_parameters(config):
    return torch.cat(
        [p.detach().flatten() for p in train_colored_mnist(config).network.parameters()]
    )


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_is_determined_by_the_seed(algorithm):
    config = ColoredMnistConfig(algorithm, **TINY)
    first = final_parameters(config)
    torch.randn(3)
    assert torch.equal(first, final_parameters(config))
    assert not torch.equal(first, final_parameters(dataclasses.replace(config, seed=1)))


def test_algorithms_differ():
    finals = [final_parameters(ColoredMnistConfig(name, **TINY)) for name in ALGORITHMS]
    for i, first in enumerate(finals):
        for second in finals[:i]:
            assert not torch.equal(first, second)


def test_options_reach_the_algorithm():
    default = final_parameters(ColoredMnistConfig("hutchinson", **TINY))
    for options in ({"probes": 2}, {"fidelity": "paper"}, {"shared_probes": True}, {"alpha": 0.5}):
        assert not torch.equal(
            default, final_parameters(ColoredMnistConfig("hutchinson", options, **TINY))
        )


@pytest.mark.parametrize(
    ("options", "probes"),
    [({}, 150), ({"fidelity": "paper"}, 100), ({"fidelity": "domainbed"}, 300)],
)
def test_the_fidelity_says_how_many_probes(options, probes, tmp_path):
    """Runs without a number of probes are those with the number of what they follow."""
    config = ColoredMnistConfig("hutchinson", options, **TINY)
    given = ColoredMnistConfig("hutchinson", {**options, "probes": probes}, **TINY)
    assert torch.equal(final_parameters(config), final_parameters(given))
    train_colored_mnist(config, tmp_path)
    first = (tmp_path / "records.jsonl").read_text().splitlines()[0]
    assert json.loads(first)["algorithm"]["probes"] == probes


def test_batch_keeps_every_image_with_its_label_and_domain():
    from hessalign.bench.data import make_colored_mnist

    data = make_colored_mnist(0, train_images=100, test_images=10)
    batch = make_batch(data.train)
    start = 0
    for position, domain in enumerate(data.train):
        rows = slice(start, start + len(domain))
        assert set(batch.domain[rows].tolist()) == {position}
        expected = torch.cat([domain.pixels().flatten(1), domain.label.unsqueeze(1)], dim=1)
        found = torch.cat([batch.x.dense()[rows], batch.y[rows].unsqueeze(1)], dim=1)
        assert sorted(expected.tolist()) == sorted(found.tolist())
        start += len(domain)


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("steps", 0, "Expected steps of 1 or more, got 0"),
        ("evaluate_every", 0, "Expected evaluate_every of 1 or more, got 0"),
        ("penalty_weight", -1.0, "Expected penalty_weight of 0 or more"),
        ("learning_rate", 0.0, "Expected a positive learning_rate"),
        ("seed", -1, "Expected seed of 0 or more"),
    ],
)
def test_bad_values_are_named(field, value, text):
    with pytest.raises(ValueError, match=text):
        ColoredMnistConfig(**{field: value})


def test_unknown_names_suggest_the_nearest():
    with pytest.raises(ValueError, match=r"Unknown algorithm 'hgpp'.*Did you mean 'hgp'"):
        train_colored_mnist(ColoredMnistConfig("hgpp", **TINY))
    with pytest.raises(ValueError, match=r"Unknown option.*'prob'.*Did you mean 'probes'"):
        train_colored_mnist(ColoredMnistConfig("hutchinson", {"prob": 3}, **TINY))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"alpha": -1.0}, "Expected alpha as a finite number of 0 or more, got -1.0"),
        ({"beta": "x"}, "Expected beta as a finite number"),
        ({"probes": 0}, "Expected probes of 1 or more, got 0"),
        ({"hessian": "fll"}, "Unknown hessian 'fll'.*Did you mean 'full'"),
        ({"fidelity": "releasd"}, "Unknown fidelity 'releasd'.*Did you mean 'released'"),
        ({"shared_probes": "maybe"}, "Expected shared_probes as true or false, got 'maybe'"),
    ],
)
def test_bad_options_are_named(options, text):
    with pytest.raises(ValueError, match=text):
        train_colored_mnist(ColoredMnistConfig("hutchinson", options, **TINY))


def test_a_network_that_says_nothing_is_right_by_its_default_class_only():
    data = make_colored_mnist(0, train_images=200, test_images=100)
    batch = make_batch((data.test,))
    network = make_coloured_mlp(2, 14 * 14, 4, torch.Generator().manual_seed(0))
    torch.nn.init.zeros_(network.head.weight)
    with torch.no_grad():
        metrics = make_evaluation(batch, batch, hessian_distance=False)(network)
    assert metrics["test_accuracy"] == pytest.approx(float((batch.y == 0).double().mean()))
