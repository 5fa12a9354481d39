"""Metrics that cannot be cheated: against dense matrices of single samples, and what is invariant.

The oracle writes out every sample's Hessian and gradient by torch.func, the metric as a dense
matrix, and dispersions as sums over pairs of samples.
"""

import pytest
import torch
from tests import oracles
from tests.cases import Batch
from torch.autograd import gradcheck, gradgradcheck

import hessalign as ha
from hessalign._errors import InputError
from hessalign.alignment.metrics import METRICS, RIDGE
from hessalign.bench.algorithms import find_algorithm, kinds
from hessalign.bench.models import Network

INVARIANT = ("relative", "whitened", "exact")
ALL = {"alpha": 1.0, "beta": 1.0}


def make_batch(loss="cross_entropy", *, n=14, d=3, seed=0, domains=2):
    """Samples of a classifier; domains differ in their features, every class is in all."""
    generator = torch.Generator().manual_seed(seed)
    domain = torch.arange(n) % domains
    z = torch.randn(n, d, generator=generator, dtype=torch.float64) + 0.3
    z = z * (1 + 0.5 * domain.unsqueeze(1))
    outputs = 3 if loss == "cross_entropy" else 1
    logits = torch.randn(n, outputs, generator=generator, dtype=torch.float64)
    y = torch.arange(n) // domains % max(2, outputs)
    y = y.double() if loss == "squared" else y
    return Batch(z, logits.squeeze(1) if outputs == 1 else logits, y, domain)


def dispersion(gram, domain, *, unbiased):
    """(1/E) Σ_e ‖M_e − M̄‖² from inner products of samples, without pairs n = n if unbiased."""
    ids = domain.unique().tolist()
    inner = torch.zeros(len(ids), len(ids), dtype=gram.dtype)
    for i, e in enumerate(ids):
        for j, f in enumerate(ids):
            pairs = [
                gram[n, m]
                for n in (domain == e).nonzero().flatten()
                for m in (domain == f).nonzero().flatten()
                if not (unbiased and n == m)
            ]
            inner[i, j] = torch.stack(pairs).mean()
    return inner.diagonal().mean() - inner.mean()


def block_diagonal(z, scale, bias):
    """The ridge's shape: the features' mean variance for weights, 1 for the bias."""
    sizes = [scale] * z.shape[1] + [1.0] * bias
    return torch.diag(torch.tensor(sizes, dtype=z.dtype))


def expected_terms(batch, metric, ridge, *, loss, bias=True, conditional=False, unbiased=False):
    """Both terms by dense matrices."""
    z, domain = batch.z, batch.domain
    _, r, S = oracles.per_sample(batch, loss=loss)
    groups = oracles.groups(domain)

    def pooled(values):
        return torch.stack([values[rows].mean(0) for rows in groups]).mean(0)

    if bias and metric != "relative":
        z = z - pooled(z)
    zt = oracles.augmented(z, bias)
    H = torch.einsum("nkc,ni,nj->nkicj", S, zt, zt).flatten(3).flatten(1, 2)
    g = torch.einsum("nk,ni->nki", r, zt).flatten(1)
    classes = batch.y.unique() if conditional else [None]
    parts = [
        torch.ones_like(domain, dtype=torch.bool) if c is None else batch.y == c for c in classes
    ]
    if metric == "relative":
        return relative(parts, domain, (z, r, S), bias=bias, unbiased=unbiased)
    variance, curvature = pooled(z.square()).mean(), pooled(S.diagonal(dim1=1, dim2=2)).mean()
    k, size = S.shape[1], block_diagonal(z, float(variance), bias)
    if metric == "whitened":
        C = (
            pooled(torch.einsum("ni,nj->nij", z, z))
            + ridge * variance * torch.eye(z.shape[1]).double()
        )
        C = torch.block_diag(C, torch.ones(1, 1).double()) if bias else C
        P = torch.kron(pooled(S) + ridge * curvature * torch.eye(k).double(), C)
    else:
        P = pooled(H) + ridge * curvature * torch.kron(torch.eye(k).double(), size)
    inverse = torch.linalg.inv(P)
    hessians = torch.einsum("pq,nqr,rs,msp->nm", inverse, H, inverse, H)
    gradients = g @ inverse @ g.T / 2
    return tuple(
        torch.stack([dispersion(gram[p][:, p], domain[p], unbiased=unbiased) for p in parts]).mean()
        for gram in (hessians, gradients)
    )


def relative(parts, domain, samples, *, bias, unbiased):
    """Blocks over the squared norm of their mean; errors over the mean squared norm of samples."""
    z, r, S = samples
    S = S.flatten(1)
    blocks = [S, torch.einsum("ns,ni->nsi", S, z), torch.einsum("ns,ni,nj->nsij", S, z, z)]
    errors = [r, torch.einsum("nk,ni->nki", r, z)]
    terms = ([], [])
    for p in parts:
        groups = oracles.groups(domain[p])
        found = ([], [])
        for place, quantities in enumerate(
            (blocks[0 if bias else 2 :], errors[0 if bias else 1 :])
        ):
            for quantity in quantities:
                values = quantity[p].flatten(1)
                value = dispersion(values @ values.T, domain[p], unbiased=unbiased)
                means = torch.stack([values[rows].mean(0) for rows in groups])
                squares = torch.stack([values[rows].square().sum(1).mean() for rows in groups])
                size = means.mean(0).square().sum() if place == 0 else squares.mean()
                found[place].append(value / size)
        for term, values in zip(terms, found, strict=True):
            term.append(torch.stack(values).mean())
    return tuple(torch.stack(each).mean() for each in terms)


@pytest.mark.pairwise
@pytest.mark.parametrize("unbiased", [False, True])
@pytest.mark.parametrize("conditional", [False, True])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("d", [3, 20])  # fewer and more features than samples
@pytest.mark.parametrize("loss", ["cross_entropy", "binary", "squared"])
@pytest.mark.parametrize("metric", INVARIANT)
def test_terms(metric, loss, d, bias, conditional, unbiased):
    if loss == "squared" and conditional:
        pytest.skip("has no classes")
    batch, ridge = make_batch(loss, d=d), 0.2
    options = {"conditional": conditional, "unbiased": unbiased, "bias": bias, "loss": loss}
    align = ha.HessianAlignment(**ALL, metric=metric, ridge=ridge, **options)
    terms = align(*batch)
    hessian, gradient = expected_terms(batch, metric, ridge, **options)
    torch.testing.assert_close(terms.hessian, hessian, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(terms.gradient, gradient, rtol=1e-9, atol=1e-12)
    alone = ha.HessianAlignment(0.0, 1.0, None, metric=metric, ridge=ridge, **options)(*batch)
    torch.testing.assert_close(alone.penalty, gradient, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("unbiased", [False, True])
@pytest.mark.parametrize("kind", ["full", "diagonal", None])
def test_conditional_terms_of_the_plain_distance(kind, unbiased):
    batch = make_batch()
    align = ha.HessianAlignment(**ALL, hessian=kind, unbiased=unbiased)
    parts = [align(*(part[batch.y == c] for part in batch)) for c in range(3)]
    found = ha.HessianAlignment(**ALL, hessian=kind, unbiased=unbiased, conditional=True)(*batch)
    torch.testing.assert_close(found.penalty, sum(part.penalty for part in parts) / 3)


def sloped(metric, d):
    z, logits, y, domain = make_batch("binary", n=4, d=d)
    align = ha.HessianAlignment(0.7, 0.4, metric=metric, loss="binary")

    def penalty(z, logits):
        return align(z, logits, y, domain).penalty

    return penalty, (z.requires_grad_(), logits.requires_grad_())


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("d", [2, 5])
@pytest.mark.parametrize("metric", INVARIANT)
def test_slopes(metric, d):
    """What terms are divided by is in the graph, too."""
    assert gradcheck(*sloped(metric, d))


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("d", [2, 5])
@pytest.mark.parametrize("metric", INVARIANT)
def test_slopes_of_slopes(metric, d):
    assert gradgradcheck(*sloped(metric, d), atol=1e-4)


@pytest.mark.parametrize("metric", INVARIANT)
def test_weights_are_repetitions(metric):
    """A sample that counts twice is there twice, in the metric too."""
    batch = make_batch()
    weight = 1.0 + (torch.arange(len(batch.y)) % 3).double()
    align = ha.HessianAlignment(**ALL, metric=metric)
    repeated = align(*(part.repeat_interleave(weight.long(), 0) for part in batch))
    torch.testing.assert_close(align(*batch, weight=weight).penalty, repeated.penalty)


def assert_same_terms(found, wanted):
    for name in ("hessian", "gradient", "penalty"):
        actual, expected = (getattr(terms, name) for terms in (found, wanted))
        torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-12)


def orthogonal(d, seed=1):
    matrix = torch.randn(d, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.linalg.qr(matrix)[0]


@pytest.mark.pairwise
@pytest.mark.parametrize("loss", ["cross_entropy", "binary"])
@pytest.mark.parametrize("conditional", [False, True])
@pytest.mark.parametrize("unbiased", [False, True])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("scale", [1e-8, 40.0])
@pytest.mark.parametrize("metric", INVARIANT)
def test_features_times_a_number(metric, scale, bias, unbiased, conditional, loss):
    """All metrics are as they were, whatever the ridge; the head is changed so that logits are."""
    z, logits, y, domain = make_batch(loss)
    options = {
        "metric": metric,
        "bias": bias,
        "unbiased": unbiased,
        "conditional": conditional,
        "loss": loss,
    }
    align = ha.HessianAlignment(**ALL, **options)
    before, after = align(z, logits, y, domain), align(scale * z, logits, y, domain)
    assert_same_terms(before, after)


@pytest.mark.parametrize("d", [4, 20])
@pytest.mark.parametrize("metric", ["whitened", "exact"])
def test_moved_and_rotated_features(metric, d):
    """Exact for every ridge: what a head with a bias can undo by a rotation of its weights."""
    z, logits, y, domain = make_batch(d=d)
    align = ha.HessianAlignment(**ALL, metric=metric)
    changed = 5 * z @ orthogonal(d) + torch.linspace(-3, 4, d, dtype=torch.float64)
    assert_same_terms(align(z, logits, y, domain), align(changed, logits, y, domain))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("unbiased", [False, True])
@pytest.mark.parametrize("metric", ["whitened", "exact"])
def test_any_linear_change_of_the_features(metric, unbiased, bias):
    """In the limit of small ridges, towards which the difference goes down with them."""
    z, logits, y, domain = make_batch("binary", n=40)
    change = orthogonal(3) @ torch.diag(torch.tensor([0.1, 1.0, 5.0], dtype=torch.float64))

    def difference(ridge):
        options = {
            "metric": metric,
            "ridge": ridge,
            "bias": bias,
            "unbiased": unbiased,
            "loss": "binary",
        }
        align = ha.HessianAlignment(**ALL, **options)
        before, after = (align(x, logits, y, domain).penalty for x in (z, z @ change))
        return float((after / before - 1).abs())

    assert difference(1e-9) < 1e-5
    assert difference(1e-3) > 10 * difference(1e-5)
    plain = ha.HessianAlignment(**ALL, loss="binary")
    assert plain(z @ change, logits, y, domain).penalty > 2 * plain(z, logits, y, domain).penalty


@pytest.mark.parametrize("metric", METRICS)
def test_label_shift_alone_has_no_conditional_terms(metric):
    """Domains with the same samples of each class, as often as they like."""
    z, logits, y, _ = make_batch()
    rows = torch.arange(len(y)).repeat(2)
    more = torch.cat([torch.arange(len(y)), (y == 1).nonzero().flatten().repeat(3)])
    rows = torch.cat([torch.arange(len(y)), more])
    domain = torch.arange(2).repeat_interleave(torch.tensor([len(y), len(more)]))
    batch = (z[rows], logits[rows], y[rows], domain)
    assert ha.HessianAlignment(**ALL, metric=metric)(*batch).penalty > 1e-4
    found = ha.HessianAlignment(**ALL, metric=metric, conditional=True)(*batch)
    assert abs(found.penalty) < 1e-12


def test_classes_of_one_domain_are_left_out():
    z, logits, y, domain = make_batch()
    domain = torch.where(y == 2, 0, domain)
    align = ha.HessianAlignment(**ALL, metric="relative", conditional=True)
    kept = y != 2
    found = align(z, logits, y, domain).penalty
    torch.testing.assert_close(found, align(z[kept], logits[kept], y[kept], domain[kept]).penalty)
    nothing = align(z, logits, (y == 1).long() * 0 + domain, domain)
    assert nothing.penalty == 0


@pytest.mark.parametrize("metric", INVARIANT)
def test_neither_cheat_pays(metric):
    """Along both cheats the plain penalty goes to nothing, these do not."""
    z, logits, y, domain = make_batch("binary", n=60, seed=3)

    def penalty(metric, features=1.0, sureness=1.0):
        align = ha.HessianAlignment(**ALL, metric=metric, loss="binary", hessian="full")
        terms = align(features * z, sureness * logits, y, domain)
        return float(terms.hessian), float(terms.gradient)

    plain, start = penalty("euclidean"), penalty(metric)
    small = penalty("euclidean", features=0.01)
    assert small[0] < 0.05 * plain[0]
    assert penalty("euclidean", sureness=100.0)[0] < 0.05 * plain[0]
    for hessian, gradient in (penalty(metric, features=0.01), penalty(metric, sureness=100.0)):
        assert hessian > 0.5 * start[0]
        assert gradient > 0.5 * start[1]


def test_newton_decrement():
    """For squared error, the gain of a step down a domain's own slope by the mean Hessian."""
    z, _, y, domain = make_batch("squared", n=30)
    zt = oracles.augmented(z, bias=True)
    theta = torch.linalg.lstsq(zt, y.unsqueeze(1)).solution  # ḡ = 0: domains are of equal size
    align = ha.HessianAlignment(0.0, 1.0, None, metric="exact", ridge=1e-12, loss="squared")
    found = align(z, (zt @ theta).squeeze(1), y, domain).gradient
    hessian = zt.T @ zt / len(zt)
    gains = []
    for rows in oracles.groups(domain):
        slope = (zt[rows] * (zt[rows] @ theta - y[rows].unsqueeze(1))).mean(0)
        gains.append(slope @ torch.linalg.solve(hessian, slope) / 2)
    torch.testing.assert_close(found, torch.stack(gains).mean(), rtol=1e-6, atol=0)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("options", "message"),
    {
        "kind": ({"metric": "exact", "hessian": "diagonal"}, "other metrics are for hessian="),
        "name": ({"metric": "whitend"}, "Did you mean 'whitened'"),
        "ridge": ({"metric": "exact", "ridge": 0.0}, "ridge"),
        "group": ({"metric": "exact", "group": "world"}, "Expected no group"),
    }.values(),
)
def test_bad_options(options, message):
    with pytest.raises(InputError, match=message):
        ha.HessianAlignment(**ALL, **options)


def test_bad_input():
    z, logits, y, domain = make_batch("squared")
    with pytest.raises(InputError, match="Expected one class for each sample"):
        ha.HessianAlignment(**ALL, loss="squared", conditional=True)(z, logits, y, domain)
    head = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh()).double()
    z, logits, y, domain = make_batch()
    align = ha.HessianAlignment(**ALL, metric="exact")
    with pytest.raises(InputError, match="Expected a linear head for a metric"):
        align(z, head(z), y, domain, head=head)
    assert align.ridge == RIDGE
    bent = ha.HessianAlignment(**ALL, metric="whitened", loss="squared", activation="sigmoid")
    with pytest.raises(InputError, match="positive definite"):
        bent(z, -3 - logits[:, 0].abs(), torch.ones(len(z), dtype=z.dtype), domain)


@pytest.mark.parametrize("conditional", [False, True])
@pytest.mark.parametrize("metric", METRICS)
def test_metrics_are_those_of_the_drop_in_penalty(metric, conditional):
    """Algorithms train with what the library exports."""
    z, _, y, domain = make_batch()
    options = {"metric": metric, "ridge": 0.3, "conditional": conditional, "unbiased": True}
    info = find_algorithm("full")
    network = Network(torch.nn.Identity(), torch.nn.Linear(3, 3)).double()
    generator = torch.Generator()
    setting = kinds.Setting(lambda: network, 3, 2, "cross_entropy", 10, generator)
    config = info.configure({"alpha": 0.7, "beta": 0.4, **options})
    order = domain.argsort(stable=True)
    step = kinds.Step(network, kinds.Batch(z[order], y[order], domain[order]), 0, "cross_entropy")
    found = info.make(config, setting).terms(step).penalty
    expected = ha.HessianAlignment(0.7, 0.4, **options)(z, network.head(z), y, domain).penalty
    torch.testing.assert_close(found, expected)
