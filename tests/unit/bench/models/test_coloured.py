import copy

import torch

from hessalign.bench.models import make_coloured_mlp
from hessalign.bench.models.coloured import _lit_images


def make_images(count=200, seed=0):
    generator = torch.Generator().manual_seed(seed)
    grey = torch.rand(count, 12, generator=generator, dtype=torch.float64)
    grey[:, [0, 5]] = 0
    channel = (torch.arange(count) >= count // 3).long()
    dense = torch.zeros(count, 2, 12, dtype=torch.float64)
    dense[torch.arange(count), channel] = grey
    return dense


def make_network():
    return make_coloured_mlp(2, 12, 5, torch.Generator().manual_seed(0)).double()


def test_dark_pixels_and_channels_are_left_out():
    images = _lit_images(make_images())
    assert images.lit.shape == (200, 10)
    assert images.runs == ((0, 66), (1, 134))
    assert torch.equal(images.lit, make_images().sum(1)[:, images.pixels])


def test_images_that_are_lit_otherwise_are_not():
    images = make_images()
    images[7, 0, 3] = images[7, 1, 3] = 1.0
    assert _lit_images(images) is None
    alternating = make_images()[torch.arange(200).view(2, 100).T.flatten()]
    assert _lit_images(alternating) is None


def results(network, x, by_run):
    network.zero_grad()
    assert (network.featurizer._lit(x) is not None) == by_run
    logits = network(x)
    logits.square().sum().backward()
    return [logits.detach(), *(p.grad.clone() for p in network.parameters())]


def test_the_network_is_the_same_function_whether_or_not_it_leaves_zeros_out():
    x = make_images()
    by_run = results(make_network(), x, True)
    plain = results(make_network(), x.requires_grad_(), False)
    for ours, theirs in zip(by_run, plain, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_a_batch_that_is_changed_is_met_anew():
    network, x = make_network(), make_images()
    before = network(x)
    x.mul_(2)
    after = network(x)
    assert not torch.equal(before, after)
    torch.testing.assert_close(after, network(x.clone()))


def test_a_batch_is_not_kept_alive_and_copies_meet_their_own():
    network, x = make_network(), make_images()
    network(x)
    assert len(network.featurizer._met) == 1
    assert len(copy.deepcopy(network).featurizer._met) == 0
    del x
    assert len(network.featurizer._met) == 0


def test_initial_weights():
    network = make_coloured_mlp(2, 196, 390, torch.Generator().manual_seed(0))
    weights = [p for p in network.parameters() if p.ndim == 2]
    assert [tuple(w.shape) for w in weights] == [(390, 392), (390, 390), (1, 390)]
    for weight in weights:
        bound = (6 / sum(weight.shape)) ** 0.5
        assert float(weight.detach().abs().max()) <= bound
        assert float(weight.detach().std()) > 0.5 * bound
    assert all(float(p.detach().abs().max()) == 0 for p in network.parameters() if p.ndim == 1)
    other = make_coloured_mlp(2, 196, 390, torch.Generator().manual_seed(1))
    assert not torch.equal(next(other.parameters()), next(network.parameters()))
