"""One penalty across processes: terms, slopes and bytes as of one process with the whole batch."""

from itertools import product

import pytest
import torch
from tests import group_jobs
from tests.cases import CASES
from tests.group_jobs import PARTS, scenarios, whole
from tests.together import run_together

import hessalign as ha
from hessalign.alignment.parts import (
    DomainSums,
    Part,
    _bytes,
    _own_sums,
    _read,
    joined,
    make_part,
)
from hessalign.curvature import make_loss
from hessalign.curvature.domains import make_domains

EXACT = 1e-12
LANES = [
    pytest.param((2, "quick"), id="2-quick"),
    pytest.param((2, "slow"), id="2", marks=pytest.mark.slow),
    pytest.param((4, "slow"), id="4", marks=pytest.mark.slow),
]


@pytest.fixture(scope="module", params=LANES)
def group(request, tmp_path_factory):
    """What the processes of a group found, each on its own, in all scenarios."""
    count, lane = request.param
    folder = tmp_path_factory.mktemp("group")
    run_together(group_jobs.main, folder, count, lane)
    found = [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(count)]
    return scenarios(PARTS[count], lane), found


def relative_error(found, expected):
    return float((found - expected).abs().max() / expected.abs().max())


def test_parameters_have_the_slopes_of_one_process_with_the_whole_batch(group):
    for name, scenario in group[0].items():
        terms, slopes = whole(scenario)
        for each in group[1]:
            found = each["found"][name]
            errors = [relative_error(found["slopes"][key], slopes[key]) for key in slopes]
            assert len(slopes) >= 6
            assert max(errors) <= EXACT, f"{name}: {errors}"
            assert found["terms"] == pytest.approx(terms, rel=EXACT, abs=1e-300), name


def test_terms_are_the_same_numbers_on_all_processes(group):
    first = group[1][0]["found"]
    for each in group[1]:
        assert {name: found["terms"] for name, found in each["found"].items()} == {
            name: found["terms"] for name, found in first.items()
        }


def test_bytes_are_as_stated(group):
    forms = set()
    for name, scenario in group[0].items():
        for each in group[1]:
            sent = each["found"][name]["sent"]
            assert sent.bytes == each["found"][name]["counted"], name
            assert sent.processes == len(scenario.parts)
            assert sent.form == "samples" or scenario.kind in {"diagonal", None}
            forms.add((scenario.kind, sent.form))
    assert {("full", "samples"), ("diagonal", "sums"), (None, "sums")} <= forms


def test_bytes_are_known_before(group):
    for name, scenario in group[0].items():
        if not name.endswith(("weights True", "weights False", "wide")):
            continue
        planned = ha.communication(
            scenario.kind,
            processes=len(scenario.parts),
            samples=max(scenario.parts),
            features=scenario.width,
            outputs=3,
            domains=3,
            dtype=torch.float64,
            weighted=scenario.weighted,
            unbiased="unbiased" in name,
        )
        assert planned == group[1][0]["found"][name]["sent"]


def test_what_does_not_suit_is_refused_by_all(group):
    first, second = (each["refusals"] for each in group[1][:2])
    assert "found 35 NaN" in second["values"] or len(group[1]) == 4
    assert second["values"].startswith("InputError: Expected finite features z")
    for each in (first, *(found["refusals"] for found in group[1][2:])):
        assert "but process 1 of the group refused its own" in each["values"]
    for name, what in (
        ("width", "features z"),
        ("dtype", "logits"),
        ("weights", "weights"),
        ("settings", "settings of the penalty"),
    ):
        for each in (first, second):
            assert each[name].startswith(f"InputError: Expected the same {what} on all processes")
    assert "found cpu and meta" in second["device"]
    assert "process 1 of the group refused" in first["device"]
    assert "torch.float64 [n, 4] on process 1 of the group" in second["width"]
    for each in (first, second):
        assert "found a domain whose weights are all 0" in each["no weight"]
        assert "at least two samples of each domain" in each["single"]
        assert "in all processes together, got none" in each["empty"]
        assert each["not a member"].startswith("InputTypeError")


# --- this process alone -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["full", "diagonal", "sampled", None])
def test_a_world_of_one_changes_nothing(kind):
    batch = CASES[1].build()
    alone, world = (
        ha.HessianAlignment(1.0, 1.0, kind, group=group, generator=torch.Generator().manual_seed(1))
        for group in (None, "world")
    )
    assert torch.equal(alone(*batch).penalty, world(*batch).penalty)
    assert world.sent is None


@pytest.mark.parametrize(
    ("group", "kind", "message"),
    [
        ("all", ValueError, "a process group or None, got 'all'"),
        (-100, TypeError, "a process group of which this process is a member or None, got int"),
    ],
)
def test_other_groups_are_refused(group, kind, message, unchecked):
    align = ha.HessianAlignment(1.0, 1.0, group=group)
    with pytest.raises(kind, match=message):
        align(*CASES[1].build())


@pytest.mark.parametrize("count", [0, 1, 3])
@pytest.mark.parametrize("precision", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize(
    "y", [torch.arange(3), torch.tensor([[True], [False], [True]]), torch.rand(3, 2, 2)]
)
def test_samples_survive_as_bytes(y, precision, count):
    z, logits = torch.randn(3, 4).to(precision), torch.randn(3).double()
    part = Part(z, logits, y, torch.tensor([-5, 2**40, 0]), torch.rand(3, 2)[:, 1])
    part = Part(*(x[:count] for x in part))
    again = _read(torch.cat([_bytes(x) for x in part.tensors], dim=1), part)
    for before, after in zip(part, again, strict=True):
        assert before.dtype == after.dtype
        assert torch.equal(before, after)


@pytest.mark.parametrize("unbiased", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_sums_of_parts_add_up(weighted, unbiased):
    batch, loss = CASES[1].build(), make_loss("cross_entropy")
    count = len(batch.z)
    weight = torch.rand(count, dtype=torch.float64) if weighted else None
    total = None
    for rows in (slice(0, count // 2), slice(count // 2, None)):
        own = None if weight is None else weight[rows]
        part = make_part(
            batch.z[rows], batch.logits[rows], batch.y[rows], batch.domain[rows], own, loss
        )
        domains = make_domains(part.domain)
        sums = _own_sums(
            part, domains, loss, ("hessian_diagonal", "gradient"), bias=True, unbiased=unbiased
        )
        ids = batch.domain.unique()
        spread = sums.new_zeros(len(ids), sums.shape[1])
        spread = spread.index_add(0, torch.searchsorted(ids, domains.ids), sums)
        total = spread if total is None else total + spread
    found = DomainSums(total, 2, unbiased).dispersions()
    align = ha.HessianAlignment(1.0, 1.0, "diagonal", unbiased=unbiased, evaluation="primal")
    terms = align(*batch, weight=weight)
    assert torch.allclose(found, torch.stack([terms.hessian, terms.gradient]), rtol=1e-12, atol=0)


def test_parts_are_joined_in_order():
    parts = [
        Part(torch.full((n, 2), float(n)), torch.zeros(n), torch.zeros(n), torch.arange(n), None)
        for n in (2, 0, 1)
    ]
    whole_part = joined(parts)
    assert whole_part.z[:, 0].tolist() == [2.0, 2.0, 1.0]
    assert whole_part.domain.tolist() == [0, 1, 0]
    assert whole_part.weight is None


# --- the unbiased penalty -------------------------------------------------------------------------


def population():
    """Two domains of three points each, all as likely: their moments are known exactly."""
    generator = torch.Generator().manual_seed(5)
    z = torch.randn(6, 3, generator=generator, dtype=torch.float64)
    z[3:] += 0.4
    logits = torch.randn(6, 3, generator=generator, dtype=torch.float64)
    y = torch.randint(3, (6,), generator=generator)
    return z, logits, y


@pytest.mark.parametrize("evaluation", ["primal", "dual"])
@pytest.mark.parametrize("kind", ["full", "diagonal", None])
def test_the_mean_over_micro_batches_is_the_penalty_of_the_population(kind, evaluation):
    z, logits, y = population()
    align = ha.HessianAlignment(1.0, 1.0, kind, evaluation=evaluation)
    exact = align(z, logits, y, (3, 3)).penalty.item()
    means = {}
    for unbiased in (False, True):
        align = ha.HessianAlignment(1.0, 1.0, kind, unbiased=unbiased, evaluation=evaluation)
        values = []
        # All micro-batches of two draws from each domain, which are equally likely.
        for draws in product((0, 1, 2), (0, 1, 2), (3, 4, 5), (3, 4, 5)):
            rows = torch.tensor(draws)
            values.append(align(z[rows], logits[rows], y[rows], (2, 2)).penalty.item())
        means[unbiased] = sum(values) / len(values)
    assert means[True] == pytest.approx(exact, rel=1e-12)
    assert means[False] == pytest.approx(exact + chance(kind), rel=1e-12)
    assert means[False] > 1.4 * exact


def chance(kind):
    """(E−1)/E² Σ_e tr Cov/n_e of gradients and Hessians, for two draws from each domain."""
    z, logits, y = population()
    probs = logits.softmax(1)
    wide = torch.cat([z, torch.ones_like(z[:, :1])], dim=1)
    error = probs - torch.nn.functional.one_hot(y, 3)
    moments = [torch.einsum("nk,nd->nkd", error, wide)]
    curvature = torch.diag_embed(probs) - torch.einsum("nk,nc->nkc", probs, probs)
    hessians = torch.einsum("nkc,nd,nf->nkdcf", curvature, wide, wide).reshape(6, 12, 12)
    if kind is not None:
        moments.append(hessians if kind == "full" else hessians.diagonal(dim1=1, dim2=2))
    traces = [
        part.flatten(1).var(0, correction=0).sum() for moment in moments for part in moment.split(3)
    ]
    return float(sum(traces)) / 4 / 2


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", ["full", "diagonal", None])
def test_both_evaluations_give_the_same_unbiased_penalty(kind, weighted):
    batch = CASES[1].build()
    weight = torch.rand(len(batch.z), dtype=torch.float64) if weighted else None
    primal, dual = (
        ha.HessianAlignment(1.0, 1.0, kind, unbiased=True, evaluation=evaluation)(
            *batch, weight=weight
        )
        for evaluation in ("primal", "dual")
    )
    assert torch.allclose(primal.hessian, dual.hessian, rtol=1e-10, atol=1e-14)
    assert torch.allclose(primal.gradient, dual.gradient, rtol=1e-10, atol=1e-14)
    slopes = [
        torch.autograd.grad(terms.penalty, batch.inputs, retain_graph=True)
        for terms in (primal, dual)
    ]
    for ours, theirs in zip(*slopes, strict=True):
        assert relative_error(ours, theirs) < 1e-10


@pytest.mark.parametrize("weight", [[0.0, 3.0, 1.0], [0.0, 3.0, 0.0]])
def test_sums_of_one_sample_that_counts_are_too_few(weight):
    z, logits, y = population()
    z, logits, y = z[:5], logits[:5], y[:5]
    loss, ids = make_loss("cross_entropy"), torch.tensor([0, 0, 1, 1, 1])
    weight = torch.tensor([1.0, 1.0, *weight]).double()
    part = make_part(z, logits, y, ids, weight, loss)
    sums = _own_sums(part, make_domains(ids), loss, ("gradient",), bias=True, unbiased=True)
    if weight[4]:
        assert bool(DomainSums(sums, 1, True).dispersions().isfinite().all())
        return
    with pytest.raises(ValueError, match="at least two samples that count in each domain"):
        DomainSums(sums, 1, True).dispersions()


@pytest.mark.parametrize("evaluation", ["primal", "dual"])
def test_one_sample_of_a_domain_is_too_few(evaluation):
    z, logits, y = population()
    align = ha.HessianAlignment(1.0, 1.0, "diagonal", unbiased=True, evaluation=evaluation)
    with pytest.raises(ValueError, match=r"at least two samples .* domains of 5, 1 samples"):
        align(z, logits, y, (5, 1))
