"""The one pass over pairs against dense Hessians and gradients, sample by sample."""

import pytest
import torch
from tests.diagnosis_data import alike

import hessalign as ha
from hessalign.alignment import TABLE_1
from hessalign.diagnosis import pair_sums as module
from hessalign.diagnosis.comparison import contribution_report, distance_report
from hessalign.diagnosis.distances import make_groups
from hessalign.diagnosis.draw import draw_samples
from hessalign.diagnosis.pair_sums import _BASIC, combine, pair_sums


def problem(loss="cross_entropy", *, bias=True, sizes=(11, 17, 24), features=3, classes=4, seed=0):
    """A draw with statistics of a random head, and each sample's own Hessian and gradient."""
    generator = torch.Generator().manual_seed(seed)
    count = sum(sizes)
    z = torch.randn(count, features, generator=generator, dtype=torch.float64)
    classes = 2 if loss == "binary" else classes
    y = torch.randint(classes, (count,), generator=generator)
    domain = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    draw = draw_samples(z, y, domain, scale=False)
    outputs = 1 if loss == "binary" else classes
    weights = torch.randn(outputs, features, generator=generator, dtype=torch.float64)
    logits = draw.z @ weights.T
    head = ha.linear_head(draw.z, logits, draw.y, draw.domain, loss=loss, bias=bias)
    each = ha.linear_head(draw.z, logits, draw.y, torch.arange(count), loss=loss, bias=bias)
    own = {"hessian": each.hessian.flatten(1), "gradient": each.gradient}
    return draw, head, own


@pytest.mark.parametrize(
    ("loss", "bias"), [("cross_entropy", True), ("cross_entropy", False), ("binary", True)]
)
@pytest.mark.parametrize("route", ["one block", "many blocks", "not written out"])
def test_all_sums_against_dense_derivatives(loss, bias, route, monkeypatch):
    if route == "many blocks":
        monkeypatch.setattr(module, "_BLOCK", 7)
    if route == "not written out":
        monkeypatch.setattr(module, "_WRITTEN_OUT", 0)
    draw, head, own = problem(loss, bias=bias)
    sums = pair_sums(draw, head)
    groups = combine(sums.groups, bias=bias)
    cell = torch.stack([sums.cell_domain, sums.cell_class], dim=1).tolist()
    for name, values in own.items():
        means = torch.stack([values[draw.group == g].mean(0) for g in range(len(groups[name]))])
        torch.testing.assert_close(groups[name], means @ means.T)
        of_cells = torch.stack(
            [values[(draw.domain == e) & (draw.y == c)].mean(0) for e, c in cell]
        )
        torch.testing.assert_close(sums.cells[name], of_cells @ of_cells.T)
        of_domains = torch.stack([values[draw.domain == e].mean(0) for e in range(3)])
        torch.testing.assert_close(sums.reach[name], values @ of_domains.T)
        torch.testing.assert_close(sums.own[name], values.square().sum(1))


def test_distances_are_those_of_the_public_functions():
    draw, head, _ = problem()
    sums = pair_sums(draw, head)
    groups = make_groups(draw.group_domain, draw.group.bincount(), 0)
    found = distance_report(sums, groups, bias=True)
    wanted = ha.hessian_distance(draw.z, head.logits, draw.domain)
    torch.testing.assert_close(found.hessian.measured, wanted)
    attributes = ha.attribute_distances(draw.z, head.logits, draw.y, draw.domain)
    assert set(_BASIC) == set(TABLE_1) - {"loss"}
    for name in _BASIC:
        gram = groups.averaged(sums.groups[name], groups.shares)
        square = gram.diagonal().unsqueeze(1) + gram.diagonal() - 2 * gram
        torch.testing.assert_close(
            square.clamp_min(0).sqrt(), attributes[name], atol=1e-7, rtol=1e-9
        )


def test_float32_is_close_enough(monkeypatch):
    z, y, domain = alike(2, 60, 40)
    z[domain == 1] += 0.3
    results = []
    for precise in (0, 10**6):
        monkeypatch.setattr(module, "_PRECISE", precise)
        draw = draw_samples(z, y, domain)
        logits = draw.z @ torch.linspace(-1, 1, 120, dtype=torch.float64).view(40, 3)
        head = ha.linear_head(draw.z, logits, draw.y, draw.domain)
        groups = make_groups(draw.group_domain, draw.group.bincount(), 0)
        results.append(distance_report(pair_sums(draw, head), groups, bias=True))
    rough, exact = results
    for name in ("hessian", "gradient"):
        torch.testing.assert_close(
            getattr(rough, name).measured, getattr(exact, name).measured, rtol=1e-4, atol=0
        )


def test_contributions_add_up_and_follow_their_definition():
    draw, head, own = problem(sizes=(9, 12))
    sums = pair_sums(draw, head)
    report = contribution_report(sums, draw, [(0, 1)])
    for entry in report.pairs:
        values = own[entry.quantity]
        first, second = (values[draw.domain == e].mean(0) for e in (0, 1))
        delta, middle = first - second, (first + second) / 2
        side = torch.where(draw.domain == 0, 1 / 9, -1 / 12).double()
        shares = side * ((values - middle) @ delta) / delta.square().sum()
        assert float(shares.sum()) == pytest.approx(1)
        by_class = torch.stack([shares[draw.y == c].sum() for c in range(4)])
        torch.testing.assert_close(entry.classes, by_class)
        top = int(shares.argmax())
        best = entry.samples[0]
        assert (best.domain, best.row, best.label) == (
            int(draw.domain[top]),
            int(draw.row[top]),
            int(draw.y[top]),
        )
        assert best.share == pytest.approx(float(shares.max()))


def test_rows_lead_back_to_the_callers_samples():
    z, y, domain = alike(3, 50, 4)
    shuffled = torch.randperm(150, generator=torch.Generator().manual_seed(3))
    z, y, domain = z[shuffled], y[shuffled], domain[shuffled]
    draw = draw_samples(z, y, domain, samples=20, scale=False)
    for e in range(3):
        mine = draw.domain == e
        torch.testing.assert_close(z[domain == e][draw.row[mine]], draw.z[mine])
        assert y[domain == e][draw.row[mine]].tolist() == draw.y[mine].tolist()
    assert draw.sizes == (20, 20, 20)
    assert draw.sampled
    assert draw.half.sum() == (~draw.half).sum() == 30
