"""What the processes of one run compute in the tests.

`main` trains every algorithm for some steps, one after another, and writes what this process has in
the end; `trained` is the same by one process.
"""

import time
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # noqa: F401 - it would keep a group made before it
from torch import nn

from hessalign.alignment.parts import Processes
from hessalign.bench.algorithms import ALGORITHMS, Batch, Setting, Step
from hessalign.bench.algorithms.options import penalty_schedule
from hessalign.bench.models import NetworkSpec, make_network
from hessalign.bench.models.sharded import sharing
from hessalign.bench.runs import run_folder, train_job
from hessalign.bench.runs.loop import LoopConfig, start_optimizers, update

SIZES = (5, 4, 6)
SHAPE = (2, 6, 6)
STEPS = 20


class StochasticDepth(nn.Module):
    """Leaves out a branch for some of the rows, as image libraries do."""

    def forward(self, x):
        kept = x.new_empty(len(x), 1, 1, 1).bernoulli_(0.8) if self.training else 1.0
        return x + kept * x.tanh()


def backbone(*between):
    """A small convolutional network with something between its layers."""
    return nn.Sequential(
        nn.Conv2d(SHAPE[0], 4, 3), nn.ReLU(), *between, nn.Conv2d(4, 3, 3), nn.Tanh(), nn.Flatten()
    )


def cases(lane="slow"):
    """Algorithm, options and what describes the network, by name."""
    found = {name: (name, {}, {}) for name in ALGORITHMS}
    for name, info in ALGORITHMS.items():
        if info.deviates:
            found[f"{name}, DomainBed's"] = (name, {"fidelity": "domainbed"}, {})
    found["a nonlinear head"] = ("hgp", {}, {"nonlinear_head": True})
    found["dropout"] = ("dann", {"dropout": 0.2}, {"dropout": 0.3, "hidden": 5})
    found["stochastic depth"] = ("full", {}, {"between": StochasticDepth})
    normal = {"between": partial(nn.BatchNorm2d, 4), "freeze_batch_norm": False}
    found |= {f"batch norm, {name}": (name, {}, normal) for name in ("erm", "iga", "mldg", "arm")}
    if lane == "quick":
        quick = ("iga", "mldg", "arm", "dropout", "batch norm, iga")
        return {name: found[name] for name in quick}
    return found


def batch(step):
    """The same samples of all domains everywhere."""
    generator = torch.Generator().manual_seed(step)
    domain = torch.arange(len(SIZES)).repeat_interleave(torch.tensor(SIZES))
    x = torch.randn(len(domain), *SHAPE, generator=generator, dtype=torch.float64)
    return Batch(
        x + 0.3 * domain.view(-1, 1, 1, 1),
        torch.randint(3, domain.shape, generator=generator),
        domain,
    )


def trained(case):
    """The state of an algorithm after some steps, its terms, and what it predicts in the end."""
    name, options, network = case
    info = ALGORITHMS[name]
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    between = [make() for key, make in network.items() if key == "between"]
    given = {key: value for key, value in network.items() if key != "between"}
    spec = NetworkSpec(SHAPE, 3, backbone=backbone(*between), **given)
    generator = torch.Generator().manual_seed(1)
    setting = Setting(
        partial(make_network, spec), 3, len(SIZES), "cross_entropy", STEPS, generator,
        input_shape=SHAPE, batch_size=SIZES[0],
    )  # fmt: skip
    config = info.configure(options)
    algorithm = info.make(config, setting)
    loop = LoopConfig(STEPS, 0.01, "cross_entropy", l2=1e-3, schedule=penalty_schedule(config))
    optimizers = start_optimizers(algorithm, loop)
    terms = []
    for number in range(STEPS):
        step = Step(algorithm.network, batch(number), number, loop.loss)
        terms.append(
            {key: float(value) for key, value in update(algorithm, step, optimizers, loop).items()}
        )
    algorithm.eval()
    with torch.no_grad():
        predictions = algorithm.network(batch(STEPS).x)
    torch.set_default_dtype(torch.float32)
    return {"state": algorithm.state_dict(), "terms": terms, "predictions": predictions}


def pretended(own, count):
    """One of several processes, which meets nobody."""
    values = {"own": own, "count": count, "group": None}
    return object.__new__(type("Pretended", (Processes,), values))


def train_all(jobs, until=None):
    """Train some jobs, each in its folder, with a checkpoint after every step.

    If a file is given, they go no further than step 10 until it is there.
    """
    run_folder.SECONDS_BETWEEN_CHECKPOINTS = 0

    def report(record):
        while until is not None and record.step == 10 and not until.exists():
            time.sleep(0.02)

    for job, folder in jobs:
        train_job(job, folder, evaluate="all", keep_model=True, report=report)


def main(folder, rank, count, lane):
    store = dist.FileStore(str(folder / "store"), count)
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=count, timeout=timedelta(seconds=200)
    )
    with sharing(Processes(dist.group.WORLD)):
        found = {name: trained(case) for name, case in cases(lane).items()}
    torch.save(found, folder / f"{rank}.pt")
    dist.destroy_process_group()
