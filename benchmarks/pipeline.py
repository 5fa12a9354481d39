"""Images into the training step: `python -m benchmarks.pipeline --data PACS_FOLDER`.

Our pipeline (cache, augmentation of tensors, one pool of workers) against what DomainBed does: one
image at a time, Pillow and torchvision's transforms, in a DataLoader. Both have two worker
processes, and give batches of 3 × 32 images of 224×224 pixels. They take turns, and while one is
measured the other is stopped. What is compared is processor time for each image, of all processes
together, which does not depend on what else runs on the machine; elapsed time is given beside it.

Also: the share of a ResNet-18's training step, the processes and the memory of a run, and how many
images a run evaluates.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, WeightedRandomSampler

from benchmarks.collect import STEPS
from benchmarks.machine import package_version
from benchmarks.output import add_output, write_result
from benchmarks.processes import cpu_seconds, descendants, resident_megabytes
from hessalign.bench.data import (
    Augmentation,
    DomainDataset,
    ImageReader,
    cache_folder,
    prepare_images,
    read_image_folder,
    split_domain,
)
from hessalign.bench.models import NetworkSpec, make_network
from hessalign.bench.models.backbones import import_library
from hessalign.bench.runs.domainbed import evaluated_parts
from hessalign.bench.runs.image_batches import ImageMinibatches
from hessalign.bench.runs.job import Job
from hessalign.bench.runs.plan import Evaluated, plan_job

BATCH = 32
SOURCES = (1, 2, 3)
"""Training domains; the first, art_painting, is the test domain."""

WORKERS = 2
TARGET = 5.0
MOST_PROCESSES = 4
DOMAINBED_PROCESSES = 88
"""3 training and 8 evaluation loaders with 8 workers each."""


class Pictures(torch.utils.data.Dataset[tuple[Tensor, int]]):
    """One domain as DomainBed reads it: Pillow, then torchvision's transforms."""

    def __init__(self, paths: Sequence[Path], labels: Sequence[int]) -> None:
        transforms = import_library("torchvision").transforms
        self.items = list(zip(map(str, paths), labels, strict=True))
        self.change = transforms.Compose(
            [
                transforms.RandomResizedCrop(224, scale=(0.7, 1.0)),
                transforms.RandomHorizontalFlip(),
                transforms.ColorJitter(0.3, 0.3, 0.3, 0.3),
                transforms.RandomGrayscale(),
                transforms.ToTensor(),
                transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
            ]
        )

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """Read and change one image."""
        from PIL import Image

        path, label = self.items[index]
        with Path(path).open("rb") as file:
            return self.change(Image.open(file).convert("RGB")), label


def training_rows(data: DomainDataset) -> dict[int, Any]:
    """What trial 0 trains on.

    Args:
        data: The data set.

    Returns:
        Indices by domain.
    """
    return {each: split_domain(len(data.domains[each]), 0, each).inner for each in SOURCES}


def domainbed_batches(data: DomainDataset) -> Iterator[Tensor]:
    """Batches of all training domains alike from one DataLoader with two workers.

    Args:
        data: The data set.

    Returns:
        Images, for ever.
    """
    parts = [
        Pictures([data.domains[d].paths[i] for i in rows], data.domains[d].labels[rows].tolist())
        for d, rows in training_rows(data).items()
    ]
    joined = ConcatDataset(parts)
    weights = [1 / len(part) for part in parts for _ in range(len(part))]
    sampler = WeightedRandomSampler(weights, BATCH * len(SOURCES) * 10**4)
    loader = DataLoader(joined, BATCH * len(SOURCES), sampler=sampler, num_workers=WORKERS)
    return (x for x, _ in loader)


def our_batches(reader: ImageReader) -> Iterator[Tensor]:
    """Batches of all training domains from our pool of two workers.

    Args:
        reader: The images.

    Yields:
        Images, for ever.
    """
    rows = training_rows(reader.data)
    with ImageMinibatches(reader, rows, BATCH, 0, Augmentation(), WORKERS) as sampler:
        while True:
            yield sampler.draw().x


def measure(
    pipelines: dict[str, Callable[[], Iterator[Tensor]]], rounds: int, batches: int
) -> dict[str, list[dict[str, float]]]:
    """Take turns; the workers of the pipeline whose turn it is not are stopped.

    Args:
        pipelines: Makes each pipeline.
        rounds: How often each has its turn.
        batches: How many batches it gives in a turn.

    Returns:
        Milliseconds for each image, processor and elapsed, of every turn.
    """
    iterators, workers = {}, {}
    for name, make in pipelines.items():
        before = descendants(os.getpid())
        iterators[name] = make()
        next(iterators[name])
        workers[name] = sorted(descendants(os.getpid()) - before)
        _signal(workers[name], signal.SIGSTOP)
    samples: dict[str, list[dict[str, float]]] = {name: [] for name in pipelines}
    for _ in range(rounds):
        for name, iterator in iterators.items():
            _signal(workers[name], signal.SIGCONT)
            for _ in range(2 * WORKERS):  # what was made ahead does not count
                next(iterator)
            cpu, wall, images = cpu_seconds([os.getpid(), *workers[name]]), time.perf_counter(), 0
            for _ in range(batches):
                images += len(next(iterator))
            cpu = cpu_seconds([os.getpid(), *workers[name]]) - cpu
            wall = time.perf_counter() - wall
            _signal(workers[name], signal.SIGSTOP)
            samples[name].append({"cpu_ms": 1e3 * cpu / images, "wall_ms": 1e3 * wall / images})
    for each in workers.values():
        _signal(each, signal.SIGCONT)
    return samples


def _signal(processes: Sequence[int], kind: signal.Signals) -> None:
    for process in processes:
        os.kill(process, kind)


def training_step(reader: ImageReader, steps: int) -> dict[str, float]:
    """A ResNet-18's training step on our batches, and the processes and memory of such a run.

    Args:
        reader: The images.
        steps: How many steps to measure, after one that does not count.

    Returns:
        Processor milliseconds of a step in the training process, how many processes there are, and
        their resident memory in megabytes.
    """
    network = make_network(NetworkSpec((3, 224, 224), 7, backbone="resnet18")).train()
    optimizer = torch.optim.Adam(network.parameters(), 5e-5)
    seconds = []
    rows = training_rows(reader.data)
    with ImageMinibatches(reader, rows, BATCH, 0, Augmentation()) as sampler:
        for _ in range(steps + 1):
            batch = sampler.draw()
            start = time.process_time()
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(network(batch.x), batch.y).backward()
            optimizer.step()
            seconds.append(time.process_time() - start)
        processes = {os.getpid(), *descendants(os.getpid())}
        memory = sum(map(resident_megabytes, processes))
    return {
        "step_cpu_ms": 1e3 * statistics.median(seconds[1:]),
        "processes": len(processes),
        "resident_mb": memory,
    }


def evaluated_images(folder: Path) -> dict[str, dict[str, float]]:
    """Images that a run evaluates at a time: what model selection reads, and what DomainBed does.

    Args:
        folder: The folder of PACS.

    Returns:
        Means over the test domains, by the selection methods that read such runs.
    """
    singles = [(each,) for each in range(4)]
    kinds = {
        "training domains, oracle (one test domain)": singles,
        "leave one domain out (two test domains)": list(combinations(range(4), 2)),
    }
    found = {}
    for kind, sets in kinds.items():
        plans = [
            plan_job(Job("PACS", "erm", held_out, 0, 0, str(folder.parent))) for held_out in sets
        ]
        found[kind] = {
            evaluated: statistics.mean(
                sum(len(rows) for _, rows in evaluated_parts(plan, evaluated).values())
                for plan in plans
            )
            for evaluated in get_args(Evaluated)
        }
    return found


def summarise(samples: dict[str, list[dict[str, float]]], step: dict[str, float]) -> dict[str, Any]:
    """Medians, ratios with their quartiles, and the targets.

    Args:
        samples: What `measure` gave.
        step: What `training_step` gave.

    Returns:
        The record.

    Example:
        >>> turn = {"cpu_ms": 1.0, "wall_ms": 1.0}
        >>> samples = {"ours": [turn, turn], "domainbed": [{"cpu_ms": 6.0, "wall_ms": 8.0}] * 2}
        >>> step = {"step_cpu_ms": 9600.0, "processes": 3, "resident_mb": 900.0}
        >>> record = summarise(samples, step)
        >>> record["ratio_cpu"]["median"], record["share_of_step"], record["met"]
        (6.0, 0.01, True)
    """
    ours, theirs = samples["ours"], samples["domainbed"]
    record: dict[str, Any] = {"samples": samples, **step}
    for kind in ("cpu", "wall"):
        ratios = [b[f"{kind}_ms"] / a[f"{kind}_ms"] for a, b in zip(ours, theirs, strict=True)]
        first, middle, third = statistics.quantiles(ratios, n=4, method="inclusive")
        record[f"ratio_{kind}"] = {"median": middle, "quartiles": [first, third]}
        for name, turns in samples.items():
            record[f"{name}_{kind}_ms"] = statistics.median(turn[f"{kind}_ms"] for turn in turns)
    images = BATCH * len(SOURCES)
    record["share_of_step"] = images * record["ours_cpu_ms"] / step["step_cpu_ms"]
    record["met"] = bool(
        record["ratio_cpu"]["median"] >= TARGET and step["processes"] <= MOST_PROCESSES
    )
    return record


def markdown(record: dict[str, Any]) -> str:
    """The record for people.

    Args:
        record: The record.

    Returns:
        Markdown text.
    """
    rows = [
        f"| {title} | {record[f'{name}_cpu_ms']:.2f} | {2e3 / record[f'{name}_cpu_ms']:.0f} | "
        f"{1e3 / record[f'{name}_wall_ms']:.0f} |"
        for name, title in (
            ("domainbed", "Pillow and torchvision's transforms, DataLoader with 2 workers"),
            ("ours", "hessalign: cache, tensors, one pool of 2 workers"),
        )
    ]
    spread = {
        kind: f"{ratio['median']:.1f} (quartiles {ratio['quartiles'][0]:.1f} to "
        f"{ratio['quartiles'][1]:.1f})"
        for kind, ratio in (("cpu", record["ratio_cpu"]), ("wall", record["ratio_wall"]))
    }
    lines = [
        "# Images into the training step",
        "",
        f"PACS, batches of 3 × {BATCH} images of 224×224 pixels; torchvision "
        f"{record['torchvision']}. Made by `python -m benchmarks.pipeline --data PACS`.",
        "",
        "| pipeline | ms of processor time per image | images/s on 2 free cores | as measured |",
        "|---|---|---|---|",
        *rows,
        "",
        f"- Ratio of processor times: {spread['cpu']}; target: at least {TARGET:g}. Ratio of "
        f"elapsed times: {spread['wall']}, which depends on what else the machine does.",
        f"- A step of a ResNet-18 takes {record['step_cpu_ms'] / 1e3:.1f} s of processor time; "
        f"making its batch takes {100 * record['share_of_step']:.1f} % of that, elsewhere.",
        f"- A run has {record['processes']} processes (target: at most {MOST_PROCESSES}; "
        f"DomainBed's has {DOMAINBED_PROCESSES}, 11 loaders with 8 workers) with "
        f"{record['resident_mb']:.0f} MB of resident memory, shared pages counted in each.",
        "",
        "## Images evaluated by a run",
        "",
        f"At each of its {len(STEPS)} evaluations, mean over test domains.",
        "",
        "| runs for selection by | hessalign | DomainBed | share |",
        "|---|---|---|---|",
        *(
            f"| {kind} | {images['needed']:,.0f} | {images['all']:,.0f} | "
            f"{images['needed'] / images['all']:.0%} |"
            for kind, images in record["evaluated"].items()
        ),
    ]
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    """Measure and report.

    Args:
        arguments: The command line.

    Returns:
        The exit status, 0 also if a target is missed: that is a finding, not an error.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pipeline", description=__doc__)
    add = parser.add_argument
    add("--data", type=Path, required=True, metavar="DIR", help="the folder of PACS")
    add("--cache", type=Path, metavar="DIR", help="its cache (default: beside it)")
    add("--rounds", type=int, default=7, metavar="N", help="turns of each pipeline")
    add("--batches", type=int, default=6, metavar="N", help="batches in a turn")
    add("--steps", type=int, default=2, metavar="N", help="training steps to measure")
    add_output(parser)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    data = read_image_folder(options.data, "PACS")
    reader = prepare_images(data, options.cache or cache_folder(options.data))
    pipelines = {
        "ours": lambda: our_batches(reader),
        "domainbed": lambda: domainbed_batches(data),
    }
    samples = measure(pipelines, options.rounds, options.batches)
    record = summarise(samples, training_step(reader, options.steps))
    record["torchvision"] = package_version("torchvision")
    record["evaluated"] = evaluated_images(options.data)
    write_result(options.output, "pipeline", record, markdown(record))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
