"""Random batches: hypothesis chooses the shapes and a seed, torch draws the numbers."""

import torch
from hypothesis import strategies as st
from tests.cases import Batch

ACTIVATIONS = ["identity", "sigmoid", "tanh", "softplus", torch.sin]


@st.composite
def batches(draw, losses=("cross_entropy", "binary", "squared"), min_domains=1):
    """A batch of a few domains in any order, and the options that describe its head."""
    loss = draw(st.sampled_from(losses))
    outputs = 1 if loss == "binary" else draw(st.integers(2 if loss == "cross_entropy" else 1, 6))
    sizes = draw(st.lists(st.integers(1, 5), min_size=min_domains, max_size=4))
    features = draw(st.integers(1, 6))
    scale = draw(st.sampled_from([0.1, 1.0, 10.0]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    n = sum(sizes)
    ids = draw(
        st.lists(
            st.integers(-(2**62), 2**62), min_size=len(sizes), max_size=len(sizes), unique=True
        )
    )
    domain = torch.tensor(ids).repeat_interleave(torch.tensor(sizes))
    domain = domain[torch.randperm(n, generator=generator)]
    z = torch.randn(n, features, generator=generator, dtype=torch.float64)
    logits = scale * torch.randn(n, outputs, generator=generator, dtype=torch.float64)
    options = {"loss": loss, "bias": draw(st.booleans())}
    if loss == "cross_entropy":
        y = torch.randint(outputs, (n,), generator=generator)
    elif loss == "binary":
        y = torch.randint(2, (n,), generator=generator)
    else:
        y = torch.randn(n, outputs, generator=generator, dtype=torch.float64)
        options["activation"] = draw(st.sampled_from(ACTIVATIONS))
    return Batch(z, logits, y, domain), options
