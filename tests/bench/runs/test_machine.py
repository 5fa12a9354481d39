"""Runs elsewhere than on the processor, where there is no such device to try.

The "meta" device has shapes but no numbers, and refuses operations that mix it with the processor:
a tensor that was made in the wrong place is found.
"""

from functools import partial

import pytest
import torch

from hessalign.bench.algorithms import ALGORITHMS, Batch, Setting, make_config
from hessalign.bench.algorithms.options import penalty_schedule
from hessalign.bench.data import DomainDataset, DomainSamples
from hessalign.bench.models import NetworkSpec, make_network
from hessalign.bench.runs import LoopConfig, machine, sampling, train
from hessalign.bench.runs.sampling import (
    Ahead,
    FullBatch,
    Minibatches,
    TensorInputs,
    accuracy_and_loss,
)

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
    labels = torch.tensor([0, 0, 1, 1])
    assert accuracy_and_loss(network, [torch.ones(4, 3)], labels) == (0.5, 0.0)


def test_a_graphics_processor_is_taken_if_there_is_one(monkeypatch):
    assert machine.find_device() == torch.device("cuda" if torch.cuda.is_available() else "cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", False)
    assert machine.find_device() == torch.device("cuda")
    assert torch.backends.cudnn.deterministic


def numbered(size=2):
    """Batches whose rows tell where they are from."""
    x = [torch.arange(9.0).unsqueeze(1) + 10 * domain for domain in range(2)]
    return Minibatches(x, [torch.zeros(9, dtype=torch.long)] * 2, size, seed=0)


class Moved(Ahead):
    """As on an accelerator, but with numbers."""

    def __init__(self, sampler):
        super().__init__(sampler, META)
        self._move = lambda batch: batch


def test_batches_that_are_fetched_ahead_are_the_same_and_go_on_from_a_position():
    plain, ahead = numbered(), Moved(numbered())
    expected = [plain.draw().x for _ in range(6)]
    found = []
    for _ in range(3):
        found.append(ahead.draw().x)
        ahead.fetch()
    position = ahead.state_dict()
    found += [ahead.draw().x for _ in range(3)]
    assert all(map(torch.equal, found, expected))
    other = Moved(numbered())
    other.draw()
    other.fetch()
    other.load_state_dict(position)
    assert torch.equal(other.draw().x, expected[3])


def test_on_a_processor_nothing_is_fetched():
    ahead, plain = Ahead(numbered(), torch.device("cpu")), numbered()
    ahead.fetch()
    assert torch.equal(ahead.draw().x, plain.draw().x)


def test_what_is_the_same_in_all_batches_is_copied_once():
    ahead = Ahead(numbered(), META)
    first = ahead.draw()
    ahead.fetch()
    second = ahead.draw()
    assert first.x.is_meta
    assert second.y.is_meta
    assert first.domain is second.domain
    assert first.domains is second.domains
    whole = Ahead(FullBatch(numbered().draw()), META)
    assert whole.draw() is whole.draw()


def test_copies_wait_in_a_stream_of_their_own(monkeypatch):
    """Pinned and copied in a side stream, which the step waits for before it uses the batch."""
    done, sampler = [], numbered()

    class Stream:
        def __init__(self, device=None):
            self.device = device

        def wait_stream(self, other):
            done.append("wait")

        def __enter__(self):
            done.append("enter")

        def __exit__(self, *_):
            done.append("exit")

    def note(word):
        return lambda self, *given: done.append(word) or self

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: stream)
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    monkeypatch.setattr(torch.Tensor, "pin_memory", note("pin"))
    monkeypatch.setattr(torch.Tensor, "record_stream", note("record"))
    monkeypatch.setattr(torch.Tensor, "to", lambda self, *_, **__: done.append("copy") or self)
    ahead = Ahead(sampler, torch.device("cuda"))
    ahead.fetch()
    first = done[done.index("enter") :]
    assert first[1:5] == ["pin", "copy", "pin", "copy"]
    assert set(first[5:-1]) == {"copy"}  # of what domains have, the first time
    assert first[-1] == "exit"
    ahead.draw()
    done.clear()
    ahead.fetch()
    assert done[done.index("enter") :] == ["enter", "pin", "copy", "pin", "copy", "exit"]
    done.clear()
    ahead.draw()
    assert done == ["wait", "record", "record"]


@pytest.mark.parametrize("free", [10**6, 100])
def test_a_bank_is_kept_on_the_device_if_there_is_room(free, monkeypatch):
    monkeypatch.setattr(sampling, "free_memory", lambda device: free)
    x, y = torch.arange(24.0).reshape(12, 2), torch.arange(12) % 3
    domains = tuple(DomainSamples(name, x, y) for name in ("a", "b"))
    inputs = TensorInputs(DomainDataset("bank", ("0", "1", "2"), domains))
    inputs.suit(META, None)
    rows = {domain: torch.arange(6).numpy() for domain in (0, 1)}
    batch = inputs.sampler(rows, 3, seed=0).draw()
    assert {each.is_meta for each in (batch.x, batch.y, batch.domain)} == {free > 100}
    assert next(iter(inputs.chunks(0, rows[0]))).is_meta == (free > 100)
    assert batch.sizes == (3, 3)
    assert machine.free_memory(META) == 0


def test_a_module_without_parameters_is_on_the_processor():
    assert machine.device_of(torch.nn.Flatten()) == torch.device("cpu")
