"""One penalty over micro-batches: values and slopes as of the whole batch."""

import pytest
import torch
from tests.group_jobs import IGNORING, KINDS, Scenario, numbers, terms_of, whole

import hessalign as ha

EXACT = 1e-12


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_slopes_of_parameters(kind, weighted):
    check(Scenario(kind, weighted=weighted, micro=True))


@pytest.mark.parametrize(
    "scenario",
    [
        Scenario("diagonal", micro=True, target="soft"),
        Scenario(micro=True, target="real", loss="squared"),
        Scenario(micro=True, target="flags", loss="multilabel"),
        Scenario(micro=True, target="binary", loss="binary", outputs=1, flat=True),
        Scenario(micro=True, target="real", loss=ha.OwnLoss(lambda a, y: (a.exp() - y * a).sum())),
        Scenario(micro=True, target="ignored", loss=IGNORING),
        Scenario("product", micro=True, options={"fidelity": "released"}),
        Scenario("diagonal", micro=True, options={"unbiased": True}),
    ],
    ids=["soft", "squared", "multilabel", "binary", "own", "ignored", "released", "unbiased"],
)
def test_other_losses(scenario):
    check(scenario)


def check(scenario):
    expected, slopes = whole(scenario)
    network, generator = scenario.network(), torch.Generator().manual_seed(3)
    if scenario.kind == "sampled":
        generator.manual_seed(int(torch.randint(2**62, (), generator=generator)))
    align = scenario.align(generator=generator)
    terms = terms_of(align, scenario, network, scenario.data(), slice(None))
    assert numbers(terms) == pytest.approx(expected, rel=EXACT, abs=1e-300)
    for name, parameter in network.named_parameters():
        error = (parameter.grad - slopes[name]).abs().max() / slopes[name].abs().max()
        assert error <= EXACT, name


CUTS = (slice(0, 2), slice(2, 9), slice(9, 24))


def pieces_of(dtype=torch.float64, **options):
    scenario = Scenario(**options)
    x, y, domain, _ = scenario.data()
    network = scenario.network()
    batch = [
        (*(t.detach().to(dtype) for t in network(x[cut])), y[cut], domain[cut]) for cut in CUTS
    ]
    return ha.MicroBatches(scenario.align()), batch


def filled(**options):
    pieces, batch = pieces_of(**options)
    for piece in batch:
        pieces.add(*piece)
    return pieces, batch


def test_values_add_up_to_the_penalty():
    pieces, batch = filled()
    terms = pieces.terms()
    values = [pieces.surrogate(i, *piece[:2]) for i, piece in enumerate(batch)]
    assert torch.allclose(sum(values), terms.penalty, rtol=1e-14, atol=0)
    assert torch.allclose(values[1] / terms.penalty, torch.tensor(7 / 24, dtype=torch.float64))
    assert pieces.terms() is terms
    assert not terms.penalty.requires_grad


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_lower_precision(dtype):
    pieces, batch = filled(dtype=dtype)
    terms = pieces.terms()
    z, logits = (x.requires_grad_() for x in batch[1][:2])
    scalar = pieces.surrogate(1, z, logits)
    scalar.backward()
    assert scalar.dtype == terms.penalty.dtype == torch.float32
    assert z.grad.dtype == dtype
    assert z.grad.abs().max() > 0


def test_it_can_be_used_again():
    pieces, batch = filled()
    first = pieces.terms().penalty
    pieces.clear()
    assert len(pieces) == 0
    for piece in batch:
        pieces.add(*piece)
    assert torch.equal(pieces.terms().penalty, first)


def test_one_domain_has_nothing_to_align():
    pieces, batch = pieces_of()
    for z, logits, y, domain in batch:
        pieces.add(z, logits, y, torch.zeros_like(domain))
    with pytest.warns(UserWarning, match="one domain"):
        assert pieces.terms().penalty == 0
    z = batch[0][0].requires_grad_()
    pieces.surrogate(0, z, batch[0][1]).backward()
    assert not z.grad.any()


def test_calls_out_of_order():
    pieces, batch = pieces_of()
    with pytest.raises(ValueError, match="Expected micro-batches, got none"):
        pieces.terms()
    pieces.add(*batch[0])
    with pytest.raises(ValueError, match=r"Expected terms\(\) before surrogate"):
        pieces.surrogate(0, *batch[0][:2])
    pieces.add(*batch[1])
    pieces.terms()
    with pytest.raises(ValueError, match=r"before terms\(\), got another one after it"):
        pieces.add(*batch[2])


@pytest.mark.parametrize("index", [3, -1])
def test_no_such_piece(index):
    pieces, batch = filled()
    pieces.terms()
    with pytest.raises(ValueError, match=f"from 0 to 2, got {index}"):
        pieces.surrogate(index, *batch[0][:2])


def test_pieces_that_do_not_match():
    pieces, (first, second, _) = pieces_of()
    pieces.add(*first)
    z, logits, y, domain = second
    with pytest.raises(ValueError, match=r"features z as in the first micro-batch, .*\[n, 5\]"):
        pieces.add(z[:, 1:], logits, y, domain)
    with pytest.raises(ValueError, match="weights as in the first micro-batch, none"):
        pieces.add(z, logits, y, domain, torch.ones(len(z)))
    with pytest.raises(ValueError, match="Expected labels from 0 to 2"):
        pieces.add(z, logits, y + 5, domain)
    assert len(pieces) == 1


def test_another_piece_in_the_second_pass():
    pieces, batch = filled()
    pieces.terms()
    with pytest.raises(ValueError, match=r"features z of micro-batch 0, \[2, 5\] .* got \[7, 5\]"):
        pieces.surrogate(0, *batch[1][:2])
    z, logits = batch[1][:2]
    with pytest.raises(ValueError, match="logits of micro-batch 1, "):
        pieces.surrogate(1, z, logits[:, :2])
    with pytest.raises(ValueError, match="features z of micro-batch 1 as in the first pass, found"):
        pieces.surrogate(1, torch.nn.functional.dropout(z), logits)
