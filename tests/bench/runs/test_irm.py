"""Runs on Colored MNIST by the protocol of the IRM setup."""

import dataclasses
import json
from functools import cache

import pytest
import torch
from tests.colored import colored_job

from hessalign._errors import ConfigurationError
from hessalign.bench.algorithms import ALGORITHMS, Batch
from hessalign.bench.data import colored_mnist, make_colored_mnist
from hessalign.bench.data.colored_mnist import make_colored_mnist_domains
from hessalign.bench.models import make_coloured_mlp
from hessalign.bench.runs import plan_job, train_job
from hessalign.bench.runs.irm import IrmOptions, irm_job, measure
from hessalign.bench.sweep.selection import read_run
from hessalign.cli import main

remembered = cache(make_colored_mnist_domains)


@pytest.fixture(autouse=True)
def _remembered(monkeypatch):
    """The data of whole size, beside which options are looked at one by one."""
    monkeypatch.setattr(colored_mnist, "make_colored_mnist_domains", remembered)


def test_options_are_looked_at_one_by_one_without_data_of_their_own(monkeypatch):
    made = []

    def make(*given):
        made.append(given)
        return remembered(*given)

    monkeypatch.setattr(colored_mnist, "make_colored_mnist_domains", make)
    wrong = {"optimizer": "x", "warmup_steps": 9999, "average": "ema", "average_start": 9999}
    job = dataclasses.replace(colored_job("erm"), hparams=json.dumps(wrong))
    with pytest.raises(ConfigurationError, match=r"Unknown optimizer 'x'(.|\n)*warmup_steps of at"):
        plan_job(job)
    assert len(set(made)) == 1  # of the job, which are kept


def final_parameters(job):
    return torch.cat([p.detach().flatten() for p in train_job(job).network.parameters()])


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_is_determined_by_the_seed(algorithm):
    first = final_parameters(colored_job(algorithm))
    torch.randn(3)
    assert torch.equal(first, final_parameters(colored_job(algorithm)))
    assert not torch.equal(first, final_parameters(colored_job(algorithm, seed=1)))


def test_algorithms_differ():
    early = {"eqrm": {"burn_in_steps": 1}, "trm": {"transfer_start": 0}}  # plain training before
    finals = [final_parameters(colored_job(name, **early.get(name, {}))) for name in ALGORITHMS]
    for i, first in enumerate(finals):
        for second in finals[:i]:
            assert not torch.equal(first, second)


def test_options_reach_the_algorithm():
    default = final_parameters(colored_job("hutchinson"))
    for options in ({"probes": 2}, {"fidelity": "paper"}, {"shared_probes": True}, {"alpha": 0.5}):
        assert not torch.equal(default, final_parameters(colored_job("hutchinson", **options)))


@pytest.mark.parametrize(
    ("options", "probes"),
    [({}, 150), ({"fidelity": "paper"}, 100), ({"fidelity": "domainbed"}, 300)],
)
def test_the_fidelity_says_how_many_probes(options, probes, tmp_path):
    """Runs without a number of probes are those with the number of what they follow."""
    job = colored_job("hutchinson", **options)
    given = colored_job("hutchinson", **options, probes=probes)
    assert torch.equal(final_parameters(job), final_parameters(given))
    train_job(job, tmp_path)
    first = (tmp_path / "results.jsonl").read_text().splitlines()[0]
    assert json.loads(first)["hparams"]["probes"] == probes


def test_the_data_set_keeps_every_image_with_its_label_and_domain():
    made = make_colored_mnist(0, train_images=100, test_images=30)
    data = make_colored_mnist_domains(0, train_images=100, test_images=30)
    for domain, samples in zip((*made.train, made.test), data.domains, strict=True):
        inputs, labels = samples.inputs[: len(domain)], samples.labels[: len(domain)]
        expected = torch.cat([domain.pixels().flatten(1), domain.label.unsqueeze(1)], dim=1)
        found = torch.cat([inputs.flatten(1), labels.unsqueeze(1)], dim=1)
        assert sorted(expected.tolist()) == sorted(found.tolist())


@pytest.mark.parametrize("imbalance", [None, "paper", "released"])
def test_held_out_images_are_unseen_and_coloured_like_their_domain(imbalance):
    options = {"imbalance": imbalance, "train_images": 400, "test_images": 9000}
    data = make_colored_mnist_domains(0, **options)
    made = make_colored_mnist(0, **options).test
    unseen = {tuple(row) for row in made.images.flatten(1).tolist()}
    shares, digits = [], []
    for samples in data.domains:
        x, y = samples.inputs[samples.held_out], samples.labels[samples.held_out]
        assert {tuple(row) for row in x.sum(1).flatten(1).tolist()} <= unseen
        colour = (x[:, 1].flatten(1).sum(1) > 0).long()
        shares.append(float((colour == y).double().mean()))
        digits.append(float(y.double().mean()))
    assert shares == pytest.approx([0.8, 0.9, 0.1], abs=0.03)
    expected = {None: [0.5, 0.5], "paper": [0.725, 0.275], "released": [0.72, 0.25]}[imbalance]
    assert digits[:2] == pytest.approx(expected, abs=0.04)


def test_no_image_is_held_out_twice():
    data = make_colored_mnist_domains(0, train_images=200, test_images=600)
    rows = [
        tuple(row)
        for samples in data.domains
        for row in samples.inputs[samples.held_out].sum(1).flatten(1).tolist()
    ]
    assert len(rows) == len(set(rows)) == 600


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("steps", 0, "Expected steps of 1 or more, got 0"),
        ("evaluate_every", 0, "Expected evaluate_every of 1 or more, got 0"),
        ("penalty_weight", -1.0, "Expected penalty_weight as a finite number of 0 or more"),
        ("penalty_weight", float("inf"), "a finite number of 0 or more, got inf"),
        ("learning_rate", 0.0, "Expected learning_rate as a finite number above 0, got 0"),
        ("learning_rate", float("inf"), "a finite number above 0, got inf"),
        ("l2", float("nan"), "Expected l2 as a finite number of 0 or more, got nan"),
        ("train_images", -5, "Expected train_images of 1 or more, got -5"),
        ("seed", -1, "Expected seed of 0 or more"),
        ("seed", 2**32, "Expected a seed up to"),
    ],
)
def test_bad_values_are_named(field, value, text):
    with pytest.raises(ValueError, match=text):
        plan_job(colored_job(**{field: value}))


def test_unknown_names_suggest_the_nearest():
    job = dataclasses.replace(colored_job(), algorithm="hgpp")
    with pytest.raises(ValueError, match=r"Unknown algorithm 'hgpp'.*Did you mean 'hgp'"):
        plan_job(job)
    with pytest.raises(ValueError, match=r"hyper-parameter of Hutchinson 'prob'.*mean 'probes'"):
        plan_job(colored_job("hutchinson", prob=3))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"alpha": -1.0}, "Expected alpha as a finite number of 0 or more, got -1.0"),
        ({"beta": "x"}, "Expected beta as a finite number of 0 or more, got 'x', a str"),
        ({"probes": 0}, "Expected probes of 1 or more, got 0"),
        ({"probes": "many"}, "probes as a whole number of 1 or more, got 'many', a str"),
        ({"hessian": "fll"}, "Unknown hessian 'fll'.*Did you mean 'full'"),
        ({"fidelity": "releasd"}, "Unknown fidelity 'releasd'.*Did you mean 'released'"),
        (
            {"shared_probes": "maybe"},
            "Expected shared_probes as .*, got 'maybe'",
        ),
    ],
)
def test_bad_options_are_named(options, text):
    with pytest.raises(ValueError, match=text):
        plan_job(colored_job("hutchinson", **options))


def test_all_problems_at_once():
    options = {"probs": 3, "width": "wide", "alpha": -1, "imbalance": "papr"}
    with pytest.raises(ConfigurationError) as caught:
        plan_job(colored_job("hutchinson", steps=0, **options))
    found = caught.value.problems
    assert len(found) == 5
    for text in (
        "Did you mean 'probes'?",
        "Expected steps of 1 or more, got 0.",
        "Expected width as a whole number of 1 or more, got 'wide', a str.",
        "Expected alpha as a finite number of 0 or more, got -1.",
        "Did you mean 'paper'?",
    ):
        assert any(text in problem for problem in found), text


def test_contradictions_are_found_when_each_value_is_fine():
    with pytest.raises(ValueError, match=r"the weights of both terms are 0.*algorithm 'erm'"):
        plan_job(colored_job("hgp", alpha=0, beta=0))


def test_the_protocol_schedules_the_penalty():
    """An option that would have no effect is refused, not ignored."""
    with pytest.raises(ValueError, match=r"no option 'anneal_steps': .* own 'jump' decides"):
        plan_job(colored_job("irm", anneal_steps=5))
    with pytest.raises(ValueError, match=r"no option 'late_lr': .* own 'learning_rate' decides"):
        plan_job(colored_job("rdm", late_lr=0.1))
    plan = plan_job(colored_job("irm", penalty_weight=5))
    assert plan.options.penalty_weight == plan.protocol.loop(plan).schedule.after == 5.0


def test_whole_numbers_serve_as_fractions_but_not_the_reverse():
    plan = plan_job(colored_job("hgp", learning_rate=1, beta=2))
    assert (plan.options.learning_rate, plan.algorithm.beta) == (1.0, 2.0)
    whole, fraction = ({"learning_rate": each(1), "beta": each(2)} for each in (int, float))
    assert irm_job("hgp", 0, whole) == irm_job("hgp", 0, fraction)
    with pytest.raises(ValueError, match=r"Expected width as a whole number .*, got 2\.0"):
        plan_job(colored_job(width=2.0))


def test_draws_differ_from_the_published_values_and_between_draws():
    job = dataclasses.replace(colored_job("mixup"), hparams='{"train_images": 200}')
    drawn = [plan_job(dataclasses.replace(job, hparams_seed=seed)) for seed in range(3)]
    assert drawn[0].options == IrmOptions(train_images=200)
    for field in ("learning_rate", "l2", "jump", "penalty_weight"):
        assert len({getattr(plan.options, field) for plan in drawn}) == 3
    assert len({plan.algorithm.alpha for plan in drawn}) == 3
    weights = {
        plan_job(dataclasses.replace(job, algorithm="HGP", hparams_seed=seed)).algorithm.alpha
        for seed in range(3)
    }
    assert weights == {1.0}  # the schedule alone weighs the penalty


def test_a_network_that_says_nothing_is_right_by_its_default_class_only():
    samples = make_colored_mnist_domains(0, train_images=200, test_images=100).domains[2]
    batch = Batch(samples.inputs, samples.labels, torch.zeros(100, dtype=torch.long))
    network = make_coloured_mlp(2, 14 * 14, 4, torch.Generator().manual_seed(0))
    torch.nn.init.zeros_(network.head.weight)
    with torch.no_grad():
        _, (right,) = measure(network, batch)
    assert float(right.mean()) == pytest.approx(float((batch.y == 0).double().mean()))


def test_accuracies_are_those_of_the_trained_network(tmp_path):
    """Those of the last record but one step: they describe the network before the update."""
    job = colored_job(steps=30, test_images=300, learning_rate=1e-8)
    run = train_job(job, tmp_path, keep_model=True)
    plan, final = run.plan, run.final
    with torch.no_grad():
        right = [
            (run.network(domain.inputs).squeeze(1) > 0) == (domain.labels == 1)
            for domain in plan.data.domains
        ]
    for domain, part in enumerate(right):
        for name, rows in (("in", plan.inner[domain]), ("out", plan.outer[domain])):
            assert final[f"env{domain}_{name}_acc"] == float(part[rows].double().mean())
    assert final["test_accuracy"] == float(right[2].double().mean())
    expected = sum(final[f"env{domain}_in_acc"] for domain in (0, 1)) / 2
    assert final["train_accuracy"] == pytest.approx(expected)
    found, notes = read_run(tmp_path)
    assert len(found.records) == len(run.records)
    assert not notes


def test_colored_mnist_is_swept_and_collected_like_any_other(tmp_path, capsys):
    words = ["train_images=200", "test_images=60", "width=6", "evaluate_every=2"]
    command = ["sweep", "run", "--datasets", "ColoredMNIST-IRM", "--algorithms", "erm", "hgp"]
    flags = ["--trials", "2", "--draws", "2", "--steps", "4", "--launcher", "serial"]
    assert main([*command, *flags, "--output", str(tmp_path), *words]) == 0
    capsys.readouterr()
    assert main(["collect", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert shown.count("Dataset: ColoredMNIST-IRM") == 3
    assert "-90%" in shown
    assert " X " not in shown
