"""Table 4: what the training engine costs, and how near a full-batch step is to the limit.

The engine's loop (sampling, statistics of the head, checks, terms, optimiser) is compared with a
bare loop of the same network: forward, loss, backward, update. Where arrays come to lie in memory
changes the time of one and the same loop by several percent, for as long as it keeps them. So both
are made anew in every round, and the overhead is the median of the rounds' ratios.

The rate of a Colored MNIST step is the multiplications it needs divided by its time, relative to
the rate of the machine's own float32 matrix product, measured in the same rounds.
"""

from __future__ import annotations

import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.targets import Target
from benchmarks.timing import Effort, Run, Timing, measure, seconds
from hessalign.bench.algorithms import Batch, Setting, make_algorithm
from hessalign.bench.data.catalog import COLORED_MNIST
from hessalign.bench.models import Network
from hessalign.bench.runs import FullBatch, Job, LoopConfig, Minibatches, plan_job, train
from hessalign.bench.runs.machine import keep_freed_memory
from hessalign.bench.runs.plan import Plan
from hessalign.bench.runs.records import RESULTS, read_records
from hessalign.bench.runs.run import train_job
from hessalign.bench.runs.sampling import Sampler
from hessalign.bench.sweep import LocalLauncher, SerialLauncher, run_jobs
from hessalign.report.progress import Progress

OVERHEAD, RATE, SCALING = 1.03, 0.75, 1.6
GEMM = 2048
STEPS = 3
ROUNDS = {"Colored MNIST": 7, "small CNN": 31}
CNN_STEPS = 20
CNN_DOMAINS, CNN_BATCH, CNN_CLASSES = 3, 32, 7


def make_cnn() -> Network:
    """A small convolutional network for 28×28 images.

    Returns:
        Four layers and a linear head.
    """
    widths = (3, 16, 32, 32, 64)
    layers: list[nn.Module] = []
    for index, (before, after) in enumerate(itertools.pairwise(widths)):
        layers += [nn.Conv2d(before, after, 3, stride=1 + index % 2, padding=1), nn.ReLU()]
    featurizer = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return Network(featurizer, nn.Linear(widths[-1], CNN_CLASSES))


def engine(network: Network, sampler: Sampler, config: LoopConfig, outputs: int) -> Run:
    """Training with the engine.

    Args:
        network: What to train.
        sampler: The source of batches.
        config: How to train.
        outputs: Outputs of the head.

    Returns:
        The procedure.
    """
    generator = torch.Generator().manual_seed(0)
    setting = Setting(lambda **_: network, outputs, 2, config.loss, config.steps, generator)
    algorithm = make_algorithm("erm", {}, setting)
    return lambda: train(algorithm, sampler, lambda _: {"nothing": 0.0}, config, generator)


def bare(network: Network, sampler: Sampler, config: LoopConfig) -> Run:
    """The same training written out, with nothing around it.

    Args:
        network: What to train.
        sampler: The source of batches.
        config: How to train.

    Returns:
        The procedure.
    """
    parameters = list(network.parameters())

    def loss_of(batch: Batch) -> Tensor:
        logits = network(batch.x)
        if config.loss == "binary":
            loss = functional.binary_cross_entropy_with_logits(logits.squeeze(1), batch.y.float())
        else:
            loss = functional.cross_entropy(logits, batch.y)
        if config.l2:
            loss = loss + config.l2 * torch.stack([p.square().sum() for p in parameters]).sum()
        return loss

    def run() -> None:
        optimizer = torch.optim.Adam(parameters, lr=config.learning_rate)
        for _ in range(config.steps):
            optimizer.zero_grad()
            loss_of(sampler.draw()).backward()  # type: ignore[no-untyped-call]
            optimizer.step()

    return run


def overhead_ratios(make: Mapping[str, Callable[[], Run]], rounds: int) -> list[float]:
    """Processor time of the engine relative to the bare loop, both made anew in every round.

    Args:
        make: Makes "engine" and "bare".
        rounds: How many; the first of the two takes turns.

    Returns:
        One ratio per round.
    """
    ratios = []
    for index in range(rounds):
        times = {}
        for name in sorted(make, reverse=index % 2 == 1):
            run = make[name]()
            run()
            times[name], _ = seconds(run, 1)
        ratios.append(times["engine"] / times["bare"])
    return ratios


def lit_pixels(images: Tensor) -> int:
    """How many pixels are lit in some image.

    Args:
        images: Coloured images.

    Returns:
        Their number.
    """
    return int((images != 0).any(1).any(0).sum())


def step_products(images: Tensor, width: int) -> int:
    """Multiplications and additions of the matrix products that one step needs.

    Args:
        images: The batch, of coloured images.
        width: Width of both hidden layers.

    Returns:
        Forward: both layers and the head. Backward: weights of all three, inputs of two.
    """
    samples, lit = len(images), lit_pixels(images)
    return 2 * samples * (2 * lit * width + 3 * width**2 + 3 * width)


def make_product() -> Run:
    """The machine's own matrix product, of two large square matrices.

    Returns:
        The procedure.
    """
    a, b, out = torch.rand(GEMM, GEMM), torch.rand(GEMM, GEMM), torch.empty(GEMM, GEMM)
    return lambda: torch.mm(a, b, out=out)


def checkpoint_seconds(plan: Plan) -> float:
    """How long one checkpoint takes.

    Args:
        plan: The run.

    Returns:
        Elapsed seconds, the smallest of five.
    """
    from hessalign.bench.runs.loop import start_optimizers
    from hessalign.bench.runs.run_folder import RunFolder, TrainingState

    algorithm, _ = plan.protocol.start(plan)
    batch = Batch(torch.zeros(2, 2, 14, 14), torch.tensor([0, 1]), torch.tensor([0, 1]))
    optimizers = start_optimizers(algorithm, LoopConfig(1, 1e-3, "cross_entropy"))
    algorithm.network(batch.x).sum().backward()
    optimizers["main"].step()
    state = TrainingState(algorithm, optimizers, FullBatch(batch), torch.Generator())
    times = []
    with (
        tempfile.TemporaryDirectory() as name,
        RunFolder(Path(name), {}, lambda message: None) as folder,
    ):
        for _ in range(5):
            start = time.perf_counter()
            folder.save(state)
            times.append(time.perf_counter() - start)
    return min(times)


def scaling(quick: bool) -> dict[str, float]:
    """Two runs one after the other, and two at once on two cores.

    Args:
        quick: Fewer images and steps.

    Returns:
        Training seconds of each, without the start of processes.
    """
    size = {"train_images": 2000, "steps": 6} if quick else {"train_images": 50_000, "steps": 12}
    seconds = {}
    for count, name in ((1, "one_after_the_other"), (2, "at_once")):
        jobs = [colored_job(seed=seed, evaluate_every=10**6, **size) for seed in (0, 1)]
        launcher = SerialLauncher() if count == 1 else LocalLauncher(count)
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            run_jobs(folder, jobs, launcher, train_job)
            records = [read_records(folder / job.folder / RESULTS) for job in jobs]
        times = [each[-1].seconds - each[0].seconds for each in records]
        seconds[name] = sum(times) if count == 1 else max(times)
    return seconds


def colored_job(steps: int, seed: int = 0, **options: object) -> Job:
    """Plain training on Colored MNIST.

    Args:
        steps: Updates.
        seed: Of everything random.
        options: What differs from the published protocol.

    Returns:
        The job.
    """
    hparams = json.dumps(options)
    return Job(COLORED_MNIST, "ERM", (2,), 0, seed, "", steps=steps, hparams=hparams)


def run(quick: bool, effort: Effort, progress: Progress) -> tuple[dict[str, Any], list[Target]]:
    """Measure the table.

    Args:
        quick: Fewer samples; the ratios are then not those of the real step.
        effort: How long to measure each procedure.
        progress: Where to report.

    Returns:
        The table as it is written to JSON, and the targets.
    """
    progress.title = "engine"
    keep_freed_memory()
    plan = plan_job(colored_job(STEPS, train_images=5000 if quick else 50_000))
    protocol = plan.protocol
    source = protocol.sampler(plan, protocol.inputs(plan, lambda message: None)).draw()
    coloured = protocol.loop(plan)

    def make_mlp() -> Network:
        return protocol.start(plan)[0].network

    sources: dict[str, dict[str, Callable[[], Run]]] = {
        "Colored MNIST": {
            "engine": lambda: engine(make_mlp(), FullBatch(source), coloured, 1),
            "bare": lambda: bare(make_mlp(), FullBatch(source), coloured),
        }
    }
    generator = torch.Generator().manual_seed(0)
    x = [torch.rand(200, 3, 28, 28, generator=generator) for _ in range(CNN_DOMAINS)]
    y = [torch.randint(CNN_CLASSES, (200,), generator=generator) for _ in range(CNN_DOMAINS)]
    small = LoopConfig(CNN_STEPS, 1e-3, "cross_entropy", evaluate_every=10**6)

    def batches() -> Minibatches:
        return Minibatches(x, y, CNN_BATCH, seed=0)

    sources["small CNN"] = {
        "engine": lambda: engine(make_cnn(), batches(), small, CNN_CLASSES),
        "bare": lambda: bare(make_cnn(), batches(), small),
    }
    overheads = {}
    for name, rounds in ROUNDS.items():
        progress.note(f"overhead, {name}")
        overheads[name] = overhead_ratios(sources[name], 2 if quick else rounds)
    procedures = {
        "Colored MNIST step × 3": sources["Colored MNIST"]["engine"](),
        "float32 matrix product": make_product(),
    }
    timings = measure(procedures, effort, progress)
    return summarise(plan, source, timings, overheads, scaling(quick))


def summarise(
    plan: Plan,
    source: Batch,
    timings: dict[str, Timing],
    overheads: dict[str, list[float]],
    two: dict[str, float],
) -> tuple[dict[str, Any], list[Target]]:
    """Ratios and targets.

    Args:
        plan: The run.
        source: Its batch.
        timings: By procedure.
        overheads: Ratios of engine and bare loop, by network.
        two: Seconds of two runs, one after the other and at once.

    Returns:
        The table as it is written to JSON, and the targets.
    """
    limit = 2 * GEMM**3 / timings["float32 matrix product"].median
    needed = step_products(source.x, plan.options.width)
    rate = STEPS * needed / timings["Colored MNIST step × 3"].median
    gain = two["one_after_the_other"] / two["at_once"]
    targets = [
        *(
            Target(
                f"engine, {name}, relative to the bare loop",
                statistics.median(ratios),
                "at most",
                OVERHEAD,
            )
            for name, ratios in overheads.items()
        ),
        Target(
            "full-batch Colored MNIST, of the float32 product's rate",
            rate / limit,
            "at least",
            RATE,
        ),
        Target("two runs at once, faster than one after the other", gain, "at least", SCALING),
    ]
    record = {
        "samples": len(source.x),
        "lit_pixels": lit_pixels(source.x),
        "gigaflop_per_step": needed / 1e9,
        "product_gigaflop_per_second": limit / 1e6,
        "step_gigaflop_per_second": rate / 1e6,
        "overhead": overheads,
        "checkpoint_seconds": checkpoint_seconds(plan),
        "two_runs_seconds": two,
        "rows": {name: timing.record() for name, timing in timings.items()},
        "targets": [target.record() for target in targets],
    }
    return record, targets
