"""The study: its data, how strong penalties are, and the rules by which strengths are chosen."""

from xml.etree import ElementTree

import pytest
import torch
from benchmarks import cheats, study

from hessalign.bench.algorithms import find_algorithm
from hessalign.bench.data import find_dataset
from hessalign.bench.runs import plan_job
from hessalign.curvature import linear_head


def test_data_with_a_shortcut():
    data = find_dataset("benchmarks.study:correlation_3", "data")
    follows = [
        float(((each.inputs[:, 5:].sum(1) > 0).long() == each.labels).double().mean())
        for each in data.domains
    ]
    assert follows == pytest.approx([0.98, 0.86, 1.0, 0.0], abs=0.02)
    agree, oppose = (each.inputs[:, :5] for each in data.domains[2:])
    assert torch.equal(agree, oppose)  # all else is the same
    other = find_dataset("benchmarks.study:correlation_4", "data")
    assert not torch.equal(other.domains[0].inputs, data.domains[0].inputs)


@pytest.mark.parametrize("title", [each for each in study.METHODS if each != study.ERM])
def test_a_unit_makes_either_term_the_risk(title):
    algorithm, options = study.METHODS[title]
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(40, 3, generator=generator)
    y, domain = torch.arange(40) % 2, torch.arange(2).repeat_interleave(20)
    config = find_algorithm(algorithm).configure({**options, "unbiased": False})
    head = linear_head(z, z[:, :2] * (1 + domain.unsqueeze(1)), y, domain, bias=config.bias)
    units = study._units(head, config)
    risk = float(head.risk.mean())
    values = head.gradient - head.gradient.mean(0)
    if not options:
        spread = float(values.square().sum(1).mean())
        assert units["beta"] * spread == pytest.approx(risk)
    if title == "full Hessian":
        hessian = head.hessian - head.hessian.mean(0)
        assert units["alpha"] * float(hessian.square().sum((1, 2)).mean()) == pytest.approx(risk)
    assert ("alpha" in units) == (algorithm != "gradient")
    assert all(0 < each < 1e9 for each in units.values())


@pytest.mark.parametrize("data", ["synthetic", "balanced", "imbalanced"])
def test_jobs_are_plans(data, tmp_path):
    """Every method of the study can be trained as the protocol says."""
    (found,) = study.find_data(data, "data").values()
    made = study.Study(found, tmp_path)
    made.units = {title: {"alpha": 1.0, "beta": 2.0} for title in study.METHODS if title != "ERM"}
    made.units["Newton decrement"] = made.units["gradient only"] = {"beta": 2.0}
    jobs = [made.job(title, seed, 10.0) for title in study.METHODS for seed in (0, 1)]
    assert len(set(jobs)) == len(jobs)
    if data == "synthetic":
        plan = plan_job(made.job("exact", 1, 10.0))
        assert (plan.algorithm.beta, plan.algorithm.metric, plan.steps) == (20.0, "exact", 400)


def runs(**held_out):
    """A table of one seed, by method and κ."""
    return {
        title: {kappa: {0: {"held out": value}} for kappa, value in values.items()}
        for title, values in held_out.items()
    }


def test_choices():
    found = runs(ERM={1.0: 90.0}, a={1.0: 89.0, 10.0: 91.0, 100.0: 71.0, 1000.0: 60.0})
    assert study.choose(found, "a", "accuracy", 50.0) == 10.0
    assert study.choose(found, "a", "strongest", 50.0) == 100.0
    assert study.choose(found, "a", "strongest", 95.0) == 1.0


def test_choices_see_two_seeds():
    found = runs(ERM={1.0: 90.0}, a={1.0: 89.0, 10.0: 88.0})
    found["a"][10.0][4] = {"held out": 100.0}  # a run that was done because 10 was chosen before
    assert study.choose(found, "a", "accuracy", 50.0) == 1.0


def test_means_over_the_domains_left_out():
    first = {"a": ("1", {0: {"unseen": 60.0}, 1: {"unseen": 70.0}})}
    second = {"a": ("10", {0: {"unseen": 80.0}})}
    assert study.over_domains([first, second]) == {"a": ("1 10", {0: {"unseen": 70.0}})}


def test_paired_differences():
    ours = {seed: {"at 0": 3.0 + seed + (seed == 1)} for seed in range(5)}
    others = {seed: {"at 0": float(seed)} for seed in range(5)}
    assert study.paired(ours, others, "at 0") == "+3.2 ± 0.2*"
    assert study.paired({0: ours[0], 1: ours[1]}, others, "at 0") == "+3.5 ± 0.5"


def test_the_figure_of_cheats():
    found = {
        (cheat, term, metric): [1.0] * len(cheats.SCALES)
        for cheat in cheats.CHEATS
        for term in cheats.TERMS
        for metric in cheats.METRICS
    }
    figure = ElementTree.fromstring(cheats.draw(found))
    panels = figure.findall(".//{*}g/{*}svg")
    assert len(panels) == 4
    assert all(panel.get("width") for panel in panels)
