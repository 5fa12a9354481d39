"""Runs elsewhere than on the processor, where there is no such device to try.

The "meta" device has shapes but no numbers, and refuses operations that mix it with the processor:
a tensor that was made in the wrong place is found.
"""

from functools import partial

import pytest
import torch

from hessalign.bench.algorithms import ALGORITHMS, Batch, Setting, make_config
from hessalign.bench.algorithms.options import penalty_schedule
from hessalign.bench.models import NetworkSpec, make_network
from hessalign.bench.runs import LoopConfig, machine, train
from hessalign.bench.runs.sampling import FullBatch, accuracy

META = torch.device("meta")


@pytest.fixture
def readable(monkeypatch):
    """Let what the loop reads when it logs be answered; the first bad step is −1, none."""
    for name, answer in (("__bool__", True), ("__float__", 1.0), ("__int__", -1), ("item", 1.0)):
        read = getattr(torch.Tensor, name)

        def either(self, *arguments, read=read, answer=answer):
            return answer if self.is_meta else read(self, *arguments)

        monkeypatch.setattr(torch.Tensor, name, either)


@pytest.mark.parametrize("hidden", [0, 5])
@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_every_algorithm_makes_its_tensors_where_the_network_is(name, hidden, readable):
    generator = torch.Generator().manual_seed(0)
    spec = NetworkSpec((6,), 3, hidden=hidden, dropout=0.1)
    setting = Setting(
        partial(make_network, spec), 3, 3, "cross_entropy", 3, generator, input_shape=(6,)
    )
    config = make_config(name, {})
    algorithm = ALGORITHMS[name].make(config, setting).to(META)
    batch = Batch(torch.randn(12, 6), torch.arange(12) % 3, torch.arange(3).repeat_interleave(4))
    loop = LoopConfig(3, 0.1, "cross_entropy", schedule=penalty_schedule(config), l2=0.1, clip=1.0)
    records = train(algorithm, FullBatch(batch), lambda network: {}, loop, generator)
    assert [record.step for record in records] == [0, 2]
    assert all(parameter.is_meta for parameter in algorithm.parameters())


def test_mixing_is_refused():
    with pytest.raises(RuntimeError, match="device"):
        torch.zeros(2) + torch.zeros(2, device=META)


def test_evaluation_goes_where_the_network_is():
    class Wherever(torch.nn.Linear):
        def forward(self, x):
            assert x.device == self.weight.device
            return torch.zeros(len(x), 2)

    network = Wherever(3, 2, device=META)
    assert accuracy(network, [torch.ones(4, 3)], torch.tensor([0, 0, 1, 1])) == 0.5


def test_a_graphics_processor_is_taken_if_there_is_one(monkeypatch):
    assert machine.find_device() == torch.device("cuda" if torch.cuda.is_available() else "cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", False)
    assert machine.find_device() == torch.device("cuda")
    assert torch.backends.cudnn.deterministic
