"""What the processes of a group compute in the tests.

`main` runs scenarios, one after another, and writes what this process found to a file of its own;
`whole` is the same by one process with all samples.
"""

from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # noqa: F401 - it would keep a group made before it
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import hessalign as ha

IDS = (5, -2, 11)
PARTS = {2: (17, 7), 4: (9, 3, 8, 4)}
KINDS = ("full", "diagonal", "product", "expected", "sampled", None)
SEED = 3
IGNORING = ha.CrossEntropy(torch.tensor([1.0, 2.0, 0.5]), label_smoothing=0.1, ignore_index=-1)


@dataclass(frozen=True)
class Scenario:
    """A batch, how it is divided, and the penalty."""

    kind: str | None = "full"
    parts: tuple[int, ...] = PARTS[2]
    weighted: bool = False
    target: str = "labels"
    loss: object = "cross_entropy"
    outputs: int = 3
    width: int = 5
    micro: bool = False
    hidden: bool = False
    domain: str = "ids"
    flat: bool = False
    options: dict = field(default_factory=dict)

    @property
    def rows(self):
        """The samples of each process."""
        starts = [sum(self.parts[:place]) for place in range(len(self.parts))]
        return [slice(start, start + size) for start, size in zip(starts, self.parts, strict=True)]

    def data(self):
        """Inputs, targets, domains and weights of all samples."""
        generator = torch.Generator().manual_seed(SEED)
        count = sum(self.parts)
        x = torch.randn(count, 6, generator=generator, dtype=torch.float64)
        y = torch.randint(self.outputs, (count,), generator=generator)
        if self.target == "soft":
            y = torch.rand(count, self.outputs, generator=generator, dtype=torch.float64)
        elif self.target == "real":
            y = torch.randn(count, self.outputs, generator=generator, dtype=torch.float64)
        elif self.target == "flags":
            y = torch.rand(count, self.outputs, generator=generator) < 0.5
        elif self.target == "binary":
            y = torch.randint(2, (count,), generator=generator)
        elif self.target == "ignored":
            y[0] = -1  # a micro-batch of its own
            y[self.rows[-1]] = -1
        # The second process has nothing of the last domain.
        domain = torch.tensor(IDS)[torch.randint(3, (count,), generator=generator)]
        second = self.rows[1]
        domain[second] = torch.where(domain[second] == IDS[2], IDS[0], domain[second])
        domain[:4] = torch.tensor([IDS[2], IDS[0], IDS[1], IDS[2]])
        x = x + 0.3 * domain.unsqueeze(1)
        weight = torch.rand(count, generator=generator, dtype=torch.float64) + 0.1
        return x, y, domain, weight if self.weighted else None

    def network(self):
        """The same network everywhere."""
        torch.manual_seed(SEED)
        return Net(self.width, self.outputs, self.hidden, self.flat).double()

    def align(self, **options):
        return ha.HessianAlignment(
            0.3, 0.7, self.kind, **{"probes": 4, "loss": self.loss, **self.options, **options}
        )


class Net(nn.Module):
    """Features and logits of a small network."""

    def __init__(self, width, outputs, hidden, flat):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, width))
        last = nn.Linear(width, outputs)
        if hidden:
            last = nn.Sequential(nn.Linear(width, 3), nn.Tanh(), nn.Linear(3, outputs))
        self.head, self.flat = last, flat

    def forward(self, x):
        z = self.encoder(x)
        logits = self.head(z)
        return z, logits.squeeze(1) if self.flat else logits


def scenarios(parts, lane="slow"):
    """All of them for such parts, by name, or those that every run of the tests has time for."""
    found = {
        f"{kind}, weights {weighted}": Scenario(kind, parts, weighted)
        for kind in KINDS
        for weighted in (False, True)
    }
    if lane == "quick":
        return found
    for kind in KINDS:
        found[f"{kind}, micro-batches"] = Scenario(kind, parts, True, micro=True)
    for fidelity in ("domainbed", "released"):
        for kind in ("product", "sampled", "diagonal"):
            found[f"{kind}, {fidelity}"] = Scenario(kind, parts, options={"fidelity": fidelity})
    for kind in ("full", "diagonal", None):
        for weighted in (False, True):
            found[f"{kind}, unbiased, weights {weighted}"] = Scenario(
                kind, parts, weighted, options={"unbiased": True}
            )
        empty = (sum(parts), *[0] * (len(parts) - 1))
        found[f"{kind}, no samples"] = Scenario(kind, empty)
        found[f"{kind}, soft"] = Scenario(kind, parts, target="soft")
        found[f"{kind}, no bias"] = Scenario(kind, parts, options={"bias": False})
    for kind in ("diagonal", None):
        found[f"{kind}, dual"] = Scenario(kind, parts, options={"evaluation": "dual"})
        found[f"{kind}, wide"] = Scenario(kind, (6, *[5] * (len(parts) - 1)), True, width=60)
        found[f"{kind}, wide, unbiased"] = Scenario(
            kind, (6, *[5] * (len(parts) - 1)), width=60, options={"unbiased": True}
        )
    for kind in ("full", "diagonal"):
        found[f"{kind}, ignored labels"] = Scenario(
            kind, parts, True, target="ignored", loss=IGNORING, micro=kind == "full"
        )
        found[f"{kind}, squared"] = Scenario(kind, parts, target="real", loss="squared")
        found[f"{kind}, several labels"] = Scenario(kind, parts, target="flags", loss="multilabel")
        found[f"{kind}, one logit"] = Scenario(
            kind, parts, True, target="binary", loss="binary", outputs=1, flat=True
        )
        found[f"{kind}, a layout"] = Scenario(kind, parts, domain="layout")
    own = ha.OwnLoss(lambda a, y: (a.exp() - y * a).sum())
    found["own loss"] = Scenario("diagonal", parts, target="real", loss=own)
    found["a head with a hidden layer"] = Scenario("diagonal", parts, hidden=True)
    return found


def terms_of(align, scenario, network, batch, rows):
    """Terms of some samples, after a backward pass of the penalty through the network."""
    x, y, domain, weight = batch
    x, y, domain, weight = x[rows], y[rows], domain[rows], None if weight is None else weight[rows]
    if scenario.domain == "layout":
        domain = ha.domain_layout(domain)
    if not scenario.micro:
        z, logits = network(x)
        head = getattr(network, "module", network).head if scenario.hidden else None
        terms = align(z, logits, y, domain, head=head, weight=weight)
        terms.penalty.backward()
        return terms
    pieces, cuts = ha.MicroBatches(align), [slice(0, 1), slice(1, 3), slice(3, None)]
    with torch.no_grad():
        for cut in cuts:
            part = None if weight is None else weight[cut]
            pieces.add(*getattr(network, "module", network)(x[cut]), y[cut], domain[cut], part)
    terms = pieces.terms()
    for index, cut in enumerate(cuts):
        last = index == len(cuts) - 1 or not hasattr(network, "no_sync")
        with nullcontext() if last else network.no_sync():
            pieces.surrogate(index, *network(x[cut])).backward()
    return terms


def whole(scenario):
    """Terms and slopes by one process with the whole batch."""
    network, generator = scenario.network(), torch.Generator().manual_seed(SEED)
    if scenario.kind == "sampled":
        seed = int(torch.randint(2**62, (), generator=generator))
        generator = torch.Generator().manual_seed(seed)
    align = scenario.align(generator=generator)
    alone = replace(scenario, micro=False)
    terms = terms_of(align, alone, network, alone.data(), slice(None))
    return numbers(terms), slopes(network)


def numbers(terms):
    return [x.item() for x in (terms.penalty, terms.hessian, terms.gradient)]


def slopes(network):
    module = getattr(network, "module", network)
    return {name: parameter.grad for name, parameter in module.named_parameters()}


class Counter:
    """Bytes that a process sends in a ring, by what it hands to torch.distributed."""

    def __init__(self):
        self.sent = 0
        self.gather, self.reduce = dist.all_gather, dist.all_reduce

    def all_gather(self, found, own, group=None):
        assert all(x.shape == own.shape for x in found)
        self.sent += (len(found) - 1) * own.numel() * own.element_size()
        return self.gather(found, own, group=group)

    def all_reduce(self, own, group=None):
        count = dist.get_world_size(group)
        self.sent += -(-2 * (count - 1) * own.numel() * own.element_size() // count)
        return self.reduce(own, group=group)

    def __enter__(self):
        dist.all_gather, dist.all_reduce = self.all_gather, self.all_reduce
        return self

    def __exit__(self, *_):
        dist.all_gather, dist.all_reduce = self.gather, self.reduce


def together(scenario, rank, group):
    """Terms and slopes of this process, which sees its part alone."""
    generator = torch.Generator().manual_seed(SEED + rank)
    align = scenario.align(generator=generator, group=group)
    network = DistributedDataParallel(scenario.network())
    counts, call = [], align.__class__.__call__

    def counted(self, *arguments, **options):
        with Counter() as counter:
            terms = call(self, *arguments, **options)
        counts.append(counter.sent)
        return terms

    ha.HessianAlignment.__call__ = counted
    try:
        terms = terms_of(align, scenario, network, scenario.data(), scenario.rows[rank])
    finally:
        ha.HessianAlignment.__call__ = call
    (sent,) = counts
    return {
        "terms": numbers(terms),
        "slopes": slopes(network),
        "sent": align.sent,
        "counted": sent,
    }


def refusals(rank, count):
    """What is said where parts do not suit, by name."""
    scenario = Scenario(parts=PARTS[count])
    x, y, domain = (part[scenario.rows[rank]] for part in scenario.data()[:3])
    z, logits = (part.detach() for part in scenario.network()(x))
    odd = rank == 1
    weight = torch.ones(len(z), dtype=torch.float64)
    empty = (part[:0] for part in (z, logits, y, domain))
    nan = z.clone().fill_(torch.nan) if odd else z
    calls = {
        "values": lambda align: align(nan, logits, y, domain),
        "width": lambda align: align(z[:, 1:] if odd else z, logits, y, domain),
        "dtype": lambda align: align(z, logits.float() if odd else logits, y, domain),
        "weights": lambda align: align(z, logits, y, domain, weight=weight if odd else None),
        "settings": lambda _: scenario.align(group="world", bias=odd)(z, logits, y, domain),
        "no weight": lambda _: ha.HessianAlignment(1.0, 1.0, "diagonal", group="world")(
            z, logits, y, domain, weight=weight * (domain != IDS[0])
        ),
        "single": lambda _: ha.HessianAlignment(1.0, 1.0, "diagonal", group="world", unbiased=True)(
            z, logits, y, torch.where((torch.arange(len(z)) == 0) & odd, 7, 1)
        ),
        "empty": lambda align: align(*empty),
        "device": lambda align: align(z, logits, y.to("meta") if odd else y, domain),
        "not a member": lambda _: ha.HessianAlignment(1.0, 1.0, group=-100)(z, logits, y, domain),
    }
    said = {}
    for name, call in calls.items():
        try:
            said[name] = str(call(scenario.align(group="world")))
        except Exception as error:
            said[name] = f"{type(error).__name__}: {error}"
    return said


def main(folder, rank, count, lane):
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=count,
        timeout=timedelta(seconds=200),
    )
    group = dist.new_group(list(range(count)))
    found = {
        name: together(scenario, rank, "world" if index % 2 else group)
        for index, (name, scenario) in enumerate(scenarios(PARTS[count], lane).items())
    }
    torch.save({"found": found, "refusals": refusals(rank, count)}, folder / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()
