"""The autograd backend against dense derivatives, for linear heads and for any other."""

import pytest
import torch
from tests import cases, oracles
from tests.cases import CASES, UNSORTED
from tests.comparison import assert_agrees, assert_same_slopes
from torch import nn

import hessalign as ha
from hessalign.curvature import autograd_head, linear_head

FIELDS = ("risk", "gradient", "hessian", "diagonal", "hgp")


def make_linear(case):
    """A batch whose logits do come from a linear head."""
    batch = case.build()
    head = nn.Linear(case.features, case.outputs, bias=case.bias, dtype=torch.float64)
    logits = head(batch.z)
    return batch._replace(logits=logits.squeeze(1) if case.flat else logits), head


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("case", CASES, ids=cases.name)
def test_a_linear_head_has_the_fields_of_the_oracle(case, field):
    batch, head = make_linear(case)
    options = {"loss": case.loss, "activation": case.activation}
    actual = getattr(autograd_head(head, batch.z, batch.y, batch.domain, **options), field)
    expected = {
        "risk": oracles.risk,
        "gradient": oracles.gradient,
        "hessian": oracles.dense_hessian,
        "diagonal": oracles.diagonal,
        "hgp": oracles.hgp,
    }[field](batch, **case.options)
    assert_agrees(actual, expected)
    assert_same_slopes(actual, expected, (batch.z, *head.parameters()))


@pytest.mark.parametrize("case", CASES, ids=cases.name)
def test_both_backends_agree_on_a_linear_head(case):
    batch, head = make_linear(case)
    closed = linear_head(*batch, **case.options)
    options = {"loss": case.loss, "activation": case.activation}
    other = autograd_head(head, batch.z, batch.y, batch.domain, **options)
    assert other.num_parameters == closed.num_parameters
    assert other.domains.ids.tolist() == closed.domains.ids.tolist()
    for field in FIELDS:
        assert_agrees(getattr(other, field), getattr(closed, field))


def make_mlp(loss):
    outputs = 3 if loss == "cross_entropy" else 2 if loss == "squared" else 1
    n = len(UNSORTED)
    head = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, outputs)).double()
    z = torch.randn(n, 3, dtype=torch.float64, requires_grad=True)
    y = torch.randint(max(outputs, 2), (n,))
    if loss == "squared":
        y = torch.randn(n, outputs, dtype=torch.float64)
    options = {"loss": loss}
    if loss == "squared":
        options["activation"] = "softplus"
    return head, (z, y, torch.tensor(UNSORTED)), options


@pytest.mark.parametrize("loss", ["cross_entropy", "binary", "squared"])
class TestTwoLayers:
    def test_fields(self, loss):
        head, data, options = make_mlp(loss)
        statistics = autograd_head(head, *data, **options)
        gradient = oracles.module_gradient(head, *data, **options)
        hessian = oracles.module_hessian(head, *data, **options)
        parameters = dict(head.named_parameters())
        risks = [f(parameters) for f in oracles.module_risks(head, *data, **options)]
        assert statistics.num_parameters == sum(p.numel() for p in head.parameters())
        expected = {
            "risk": torch.stack(risks),
            "gradient": gradient,
            "hessian": hessian,
            "diagonal": hessian.diagonal(dim1=1, dim2=2),
            "hgp": torch.einsum("epq,eq->ep", hessian, gradient),
        }
        inputs = (data[0], *head.parameters())
        for field in FIELDS:
            actual = getattr(statistics, field)
            assert actual.dtype == torch.float64
            assert_agrees(actual, expected[field])
            assert_same_slopes(actual, expected[field], inputs)

    @pytest.mark.pairwise
    @pytest.mark.parametrize("axes", [(), (4,), (2, 3)], ids=str)
    @pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])
    def test_hvp_broadcasts(self, loss, shared, axes):
        head, data, options = make_mlp(loss)
        statistics = autograd_head(head, *data, **options)
        hessian = oracles.module_hessian(head, *data, **options)
        rows = 1 if shared else 3
        vectors = torch.randn(*axes, rows, hessian.shape[1], dtype=torch.float64)
        expected = torch.einsum("epq,...eq->...ep", hessian, vectors.expand(*axes, 3, -1))
        actual = statistics.hvp(vectors)
        assert_agrees(actual, expected)
        assert_same_slopes(actual, expected, (data[0], *head.parameters()))


@pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])
def test_probed_diagonal(shared):
    head, data, options = make_mlp("cross_entropy")
    dense = oracles.module_hessian(head, *data, **options)
    signs = torch.randn(4, 1 if shared else 3, dense.shape[1], dtype=torch.float64).sign()
    each = signs.expand(-1, 3, -1)
    expected = torch.einsum("mep,epq,meq->ep", each, dense, each)
    assert_agrees(autograd_head(head, *data, **options).probed_diagonal(signs), expected)


def test_a_frozen_head_still_gives_slopes_in_the_features():
    head, data, options = make_mlp("cross_entropy")
    expected = oracles.module_hessian(head, *data, **options)
    (slope,) = torch.autograd.grad(expected.square().sum(), data[0])
    head.requires_grad_(False)
    actual = autograd_head(head, *data, **options).hessian
    assert_agrees(torch.autograd.grad(actual.square().sum(), data[0])[0], slope)


def test_a_head_that_squeezes_its_single_output():
    class Squeezing(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 1, dtype=torch.float64)

        def forward(self, z):
            return self.linear(z).squeeze(1)

    head, (z, _, domain) = Squeezing(), make_mlp("binary")[1]
    y = torch.randint(2, (len(z),))
    squeezed = autograd_head(head, z, y, domain, loss="binary")
    plain = autograd_head(head.linear, z, y, domain, loss="binary")
    assert_agrees(squeezed.hessian, plain.hessian)


def test_a_head_without_parameters_is_refused():
    z = torch.randn(4, 2)
    with pytest.raises(ValueError, match="Expected a head with parameters, got Identity with none"):
        autograd_head(nn.Identity(), z, torch.tensor([0, 1, 0, 1]), torch.tensor([0, 0, 1, 1]))


@pytest.mark.parametrize(
    ("layer", "does"),
    [
        (nn.Dropout(0.1), "draws random numbers"),
        (nn.BatchNorm1d(3), "changes its buffer '0.running_mean'"),
    ],
    ids=["dropout", "batch normalisation"],
)
def test_a_head_that_is_not_deterministic_is_refused_without_a_trace(layer, does):
    _, (z, y, domain), _ = make_mlp("cross_entropy")
    head = nn.Sequential(layer, nn.Linear(3, 3)).double()
    before = [buffer.clone() for buffer in head.buffers()], torch.get_rng_state()
    with pytest.raises(ValueError, match=f"Expected a deterministic head, .* {does}. .* head.eval"):
        autograd_head(head, z, y, domain)
    assert all(map(torch.equal, head.buffers(), before[0]))
    assert torch.equal(torch.get_rng_state(), before[1])
    expected = oracles.module_hessian(head.eval(), z, y, domain, loss="cross_entropy")
    assert_agrees(autograd_head(head, z, y, domain).hessian, expected)


def test_a_head_that_mixes_samples_is_refused():
    _, (z, y, domain), _ = make_mlp("cross_entropy")
    norm = nn.BatchNorm1d(3, track_running_stats=False)
    head = nn.Sequential(nn.Linear(3, 3), norm).double().eval()
    mixed = (head(z)[:2] - head(z[:2])).abs().max()
    assert mixed > 0.1
    with pytest.raises(ValueError, match="got BatchNorm1d without running statistics as '1'"):
        autograd_head(head, z, y, domain)


def test_a_parametrised_linear_head():
    _, (z, y, domain), _ = make_mlp("cross_entropy")
    head = nn.utils.parametrizations.spectral_norm(nn.Linear(3, 3)).double()
    with pytest.raises(ValueError, match=r"changes its buffer 'parametrizations.weight.0._u'"):
        autograd_head(head, z, y, domain)
    expected = oracles.module_hessian(head.eval(), z, y, domain, loss="cross_entropy")
    assert_agrees(autograd_head(head, z, y, domain).hessian, expected)


def test_inputs_are_checked():
    head, (z, y, domain), _ = make_mlp("cross_entropy")
    with pytest.raises(ValueError, match="Expected labels from 0 to 2"):
        autograd_head(head, z, y + 5, domain)
    head[0].bias.data[0] = torch.nan
    with pytest.raises(ValueError, match="Expected finite logits"):
        autograd_head(head, z, y, domain)
    assert not autograd_head(head, z, y, domain, checks=False).risk.isfinite().any()
    align = ha.HessianAlignment(1.0, 1.0, checks=False)
    assert not align(z, head(z), y, domain, head=head).penalty.isfinite()
