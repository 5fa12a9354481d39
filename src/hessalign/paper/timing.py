"""Table 5: training time, relative to ERM and measured in turn."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median, quantiles
from typing import Any, Final

import torch
from torch.nn import functional

from hessalign.bench.algorithms import ALGORITHMS, Batch, Step
from hessalign.bench.data import make_colored_mnist
from hessalign.bench.runs import ColoredMnistConfig
from hessalign.bench.runs.colored_mnist import make_algorithm_for, make_batch, make_loop
from hessalign.bench.runs.entries import make_configuration
from hessalign.bench.runs.loop import update
from hessalign.bench.runs.memory import keep_freed_memory
from hessalign.bench.runs.state import make_optimizers
from hessalign.paper.experiment import Experiment, Finished, Options, Report
from hessalign.paper.published import TABLE_5 as PUBLISHED
from hessalign.report.tables import markdown_table

PROBES: Final = 150
ROUNDS: Final = 5
ROWS: Final[tuple[tuple[str, dict[str, object]], ...]] = (
    ("erm", {}),
    ("coral", {}),
    ("vrex", {}),
    ("irm", {}),
    ("groupdro", {}),
    ("fishr", {}),
    ("hgp", {}),
    ("hutchinson", {"probes": PROBES}),
    ("expected", {"probes": PROBES}),
    ("diagonal", {}),
    ("full", {}),
)
READING: Final = (
    "Time of a full-batch training step relative to ERM's, one thread, median of {rounds} rounds "
    "in which every method takes one step in turn; in brackets the first and third quartile. The "
    "published column is Table 5 (100 steps, its unit is not given) divided by its ERM. *released* "
    "is the same step with the released code's procedure, {probes} double-backward probes per "
    "domain and for the mean loss. Ours has {lit} of the images' {pixels} inputs to multiply, "
    "because one colour channel is always dark and some pixels are never lit; *dense* is ERM "
    "without that saving."
)


def present(finished: Finished, options: Options) -> Report:
    """Measure all rows.

    Args:
        finished: Not used: times cannot be taken from a cache.
        options: Entries of the configuration.

    Returns:
        The table.
    """
    torch.set_num_threads(1)
    keep_freed_memory()
    config = make_configuration({**options.overrides, "seed": options.seed})
    data = make_colored_mnist(
        config.seed, train_images=config.train_images, test_images=config.test_images
    )
    batch = make_batch(data.train)
    steps = {
        name: make_step(config, name, entries, batch)
        for name, entries in ROWS
        if name in ALGORITHMS
    }
    dense = Batch(batch.x.dense(), batch.y, batch.domain)  # type: ignore[union-attr]
    steps["dense"] = make_step(config, "erm", {}, dense)
    steps["released"] = make_released_step(config, dense)
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(ROUNDS + 1):  # the first round warms up
        for name, step in steps.items():
            times[name].append(step())
    times = {name: values[1:] for name, values in times.items()}
    floor = median(times["erm"])
    entries: list[dict[str, Any]] = []
    for name, values in times.items():
        low, middle, high = (value / floor for value in quantiles(values, n=4, method="inclusive"))
        paper = PUBLISHED.get(name)
        entries.append(
            {
                "method": name,
                "seconds": values,
                "ratio": middle,
                "quartiles": [low, high],
                "published": paper and paper[0] / PUBLISHED["erm"][0],
            }
        )
    shape = batch.x.lit.shape[1], data.test.pixels()[0].numel()  # type: ignore[union-attr]
    text = READING.format(rounds=ROUNDS, probes=PROBES, lit=shape[0], pixels=shape[1])
    table = markdown_table(
        ["method", "relative to ERM", "100 steps, s", "published, relative to ERM"],
        [
            [
                _title(entry["method"]),
                f"{entry['ratio']:.2f} [{entry['quartiles'][0]:.2f}, {entry['quartiles'][1]:.2f}]",
                f"{100 * median(entry['seconds']):.0f}",
                f"{entry['published']:.2f}" if entry["published"] else "–",
            ]
            for entry in entries
        ],
    )
    return Report(text + "\n\n" + table, {"rows": entries})


def _title(name: str) -> str:
    special = {"dense": "ERM, dense inputs", "released": "Hutchinson, released procedure"}
    return special.get(name) or ALGORITHMS[name].title


def make_step(
    config: ColoredMnistConfig, name: str, options: dict[str, object], batch: Batch
) -> Callable[[], float]:
    """A training step that takes its own time.

    Args:
        config: The experiment.
        name: The algorithm.
        options: Its options.
        batch: All samples.

    Returns:
        A function that updates once and returns the seconds it took.
    """
    ours = make_configuration({"algorithm": name, "options": options, "width": config.width})
    algorithm = make_algorithm_for(ours, torch.Generator().manual_seed(0))
    loop = make_loop(ours)
    optimizers = make_optimizers(algorithm, loop.learning_rate, loop.weight_decay)

    def step() -> float:
        start = time.perf_counter()
        update(
            algorithm,
            Step(algorithm.network, batch, loop.schedule.jump, loop.loss),
            optimizers,
            loop,
        )
        return time.perf_counter() - start

    return step


def make_released_step(config: ColoredMnistConfig, batch: Batch) -> Callable[[], float]:
    """The released procedure for Hutchinson, by automatic differentiation as published.

    Args:
        config: The experiment.
        batch: All samples, dense.

    Returns:
        A function that returns the seconds of a forward and backward pass with all probes.
    """
    network = make_algorithm_for(
        make_configuration({"algorithm": "erm", "width": config.width}), torch.Generator()
    ).network
    parameters = list(network.head.parameters())

    def flat(grads: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return torch.cat([each.flatten() for each in grads])

    def diagonal(gradient: torch.Tensor) -> torch.Tensor:
        total = torch.zeros_like(gradient)
        for _ in range(PROBES):
            signs = 2.0 * torch.randint_like(gradient, 2) - 1
            product = torch.autograd.grad(
                gradient @ signs, parameters, retain_graph=True, create_graph=True
            )
            total = total + signs * flat(product)
        return total / PROBES

    def step() -> float:
        start = time.perf_counter()
        network.zero_grad()
        risks = [
            functional.binary_cross_entropy_with_logits(network(x).squeeze(1), y.float())
            for x, y in zip(batch.x.split(batch.sizes), batch.y.split(batch.sizes), strict=True)
        ]
        losses = [*risks, torch.stack(risks).mean()]
        gradients = [
            flat(torch.autograd.grad(loss, parameters, create_graph=True)) for loss in losses
        ]
        diagonals = [diagonal(gradient) for gradient in gradients]
        penalty = sum(
            (values[i] - values[-1]).square().sum()
            for values in (gradients, diagonals)
            for i in range(len(risks))
        )
        (losses[-1] + penalty).backward()
        return time.perf_counter() - start

    return step


TABLE_5 = Experiment("table5", "Table 5: training time relative to ERM", (), present)
