"""Table 5: training time, relative to ERM and measured in turn."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from statistics import median, quantiles
from typing import Any, Final

import torch
from torch.nn import functional

from hessalign.bench.algorithms import ALGORITHMS, AbstractAlgorithm, Batch, Step
from hessalign.bench.models import Network
from hessalign.bench.runs import plan_job
from hessalign.bench.runs.irm import image_batch, irm_job
from hessalign.bench.runs.loop import LoopConfig, start_optimizers, update
from hessalign.bench.runs.machine import keep_freed_memory
from hessalign.paper.experiment import Experiment, Finished, Options, Report
from hessalign.paper.published import TABLE_5 as PUBLISHED
from hessalign.report.tables import markdown_table

_PROBES: Final = 150
_ROUNDS: Final = 5
_ROWS: Final[tuple[tuple[str, dict[str, object]], ...]] = (
    ("erm", {}),
    ("coral", {}),
    ("vrex", {}),
    ("irm", {}),
    ("groupdro", {}),
    ("fishr", {}),
    ("hgp", {}),
    ("hutchinson", {"probes": _PROBES}),
    ("expected", {"probes": _PROBES}),
    ("diagonal", {}),
    ("full", {}),
)
_READING: Final = (
    "Time of a full-batch training step relative to ERM's, one thread, median of {rounds} rounds "
    "in which every method takes one step in turn; in brackets the first and third quartile. The "
    "published column is Table 5 (100 steps, its unit is not given) divided by its ERM. *released* "
    "is the same step with the released code's procedure, {probes} double-backward probes per "
    "domain and for the mean loss. Ours has {lit} of the images' {pixels} inputs to multiply, "
    "because one colour channel is always dark and some pixels are never lit; *dense* is ERM "
    "without that saving."
)


def _present(finished: Finished, options: Options) -> Report:
    """Measure all rows; times cannot be taken from a cache."""
    torch.set_num_threads(1)
    keep_freed_memory()
    plan = plan_job(irm_job("erm", options.seed, options.entries))
    batch, width = image_batch(plan, plan.inner, plan.sources), plan.options.width
    steps = {
        name: _make_step(*_start(name, width, entries), batch)
        for name, entries in _ROWS
        if name in ALGORITHMS
    }
    dense = _mixed(batch)
    erm, loop = _start("erm", width, {})
    steps["dense"] = _make_step(erm, loop, dense)
    steps["released"] = _make_released_step(erm.network, dense)
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(_ROUNDS + 1):  # the first round warms up
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
    lit = batch.x.ne(0).any(1).any(0)
    text = _READING.format(
        rounds=_ROUNDS, probes=_PROBES, lit=int(lit.sum()), pixels=2 * lit.numel()
    )
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


def _start(
    name: str, width: int, options: Mapping[str, object]
) -> tuple[AbstractAlgorithm, LoopConfig]:
    """An untrained algorithm and how it is trained, whatever the data."""
    few = {"train_images": 200, "test_images": 90}
    plan = plan_job(irm_job(name, 0, {**few, "width": width, **options}))
    return plan.protocol.start(plan)[0], plan.protocol.loop(plan)


def _mixed(batch: Batch) -> Batch:
    """The same samples in another order: where colours are mixed, the network saves nothing."""
    places = torch.arange(len(batch.y)).split(batch.sizes)
    order = torch.cat([each[torch.randperm(len(each))] for each in places])
    return Batch(batch.x[order], batch.y[order], batch.domain)


def _make_step(algorithm: AbstractAlgorithm, loop: LoopConfig, batch: Batch) -> Callable[[], float]:
    """A function that updates once, on all samples, and returns the seconds it took."""
    optimizers = start_optimizers(algorithm, loop)

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


def _make_released_step(network: Network, batch: Batch) -> Callable[[], float]:
    """The released procedure for Hutchinson, by automatic differentiation as published."""
    parameters = list(network.head.parameters())

    def flat(grads: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return torch.cat([each.flatten() for each in grads])

    def diagonal(gradient: torch.Tensor) -> torch.Tensor:
        total = torch.zeros_like(gradient)
        for _ in range(_PROBES):
            signs = 2.0 * torch.randint_like(gradient, 2) - 1
            product = torch.autograd.grad(
                gradient @ signs, parameters, retain_graph=True, create_graph=True
            )
            total = total + signs * flat(product)
        return total / _PROBES

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


TABLE_5 = Experiment("table5", "Table 5: training time relative to ERM", _present)
