import torch

from hessalign.bench.models import make_coloured_images, make_coloured_mlp


def make_images(seed=0):
    generator = torch.Generator().manual_seed(seed)
    grey = torch.rand(9, 12, generator=generator, dtype=torch.float64)
    grey[:, [0, 5]] = 0
    channel = torch.tensor([0, 0, 1, 1, 1, 0, 1, 0, 0])
    dense = torch.zeros(9, 2, 12, dtype=torch.float64)
    dense[torch.arange(9), channel] = grey
    return make_coloured_images(grey, channel, 2), dense


def test_dark_pixels_are_left_out_and_come_back():
    images, dense = make_images()
    assert images.lit.shape == (9, 10)
    assert images.runs == ((0, 2), (1, 3), (0, 1), (1, 1), (0, 2))
    assert torch.equal(images.dense(), dense.flatten(1))


def test_the_network_is_the_same_function_of_dense_and_compressed_images():
    network = make_coloured_mlp(2, 12, 5, torch.Generator().manual_seed(0)).double()
    images, dense = make_images()
    results = []
    for x in (images, dense):
        network.zero_grad()
        logits = network(x)
        logits.square().sum().backward()
        results.append([logits.detach(), *(p.grad.clone() for p in network.parameters())])
    for compressed, full in zip(*results, strict=True):
        torch.testing.assert_close(compressed, full, rtol=1e-12, atol=1e-12)


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
