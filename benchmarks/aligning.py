"""Does aligning help, and is the strength found? `python -m benchmarks.aligning`.

Each domain in turn, or the target of a synthetic set, is left out. All kinds and strengths are
fitted to the others and tested on it; `AlignedClassifierCV`'s choice, with its defaults, is made
without it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import hessalign as ha
from benchmarks.output import add_output, write_result
from hessalign.bench.data import make_shifted_data
from hessalign.estimator_cv import STRENGTHS as SEARCHED
from hessalign.heads.held_out import choose, held_out_scores, make_candidates
from hessalign.heads.labelled import Labelled

STRENGTHS = (0.05, 0.1, 0.3, 1.0, 10.0, 100.0)
KINDS = ("diagonal", None)
PACS = Path("outputs/features/PACS@efficientnet_lite0.safetensors")
PART = 0.8  # of each hospital, in a part of heart


class Task(NamedTuple):
    """Samples, and the domain that is left out."""

    name: str
    x: np.ndarray
    y: np.ndarray
    domain: np.ndarray
    held: int


def synthetic(shift: str, strength: float, seeds: range) -> Iterator[Task]:
    """Four sources of 500 samples, tested on their target."""
    name = f"{shift}, {'strong' if strength else 'none'}"
    for seed in seeds:
        data = make_shifted_data(shift, seed, domains=4, strength=strength)
        parts = [*data.source, data.target]
        x = np.concatenate([part.x.double().numpy() for part in parts])
        y = np.concatenate([part.y.numpy() for part in parts])
        yield Task(name, x, y, np.arange(5).repeat(500), 4)


def each(name: str, x: np.ndarray, y: np.ndarray, domain: np.ndarray) -> Iterator[Task]:
    """Every domain left out in turn; missing values are medians of the others."""
    for held in range(int(domain.max()) + 1):
        middle = np.nan_to_num(np.nanmedian(x[domain != held], axis=0))
        yield Task(name, np.where(np.isnan(x), middle, x), y, domain, held)


def heart(seeds: range | None = None) -> Iterator[Task]:
    """The four hospitals; with seeds four fifths of the patients of each, for a spread."""
    domains = ha.load_heart().domains
    x = np.concatenate([own.inputs.double().numpy() for own in domains])
    y = np.concatenate([own.labels.numpy() for own in domains])
    domain = np.arange(4).repeat([len(own) for own in domains])
    if seeds is None:
        yield from each("heart", x, y, domain)
    for seed in seeds or ():
        rng = np.random.default_rng(seed)
        drawn = [rng.permutation(np.flatnonzero(domain == e)) for e in range(4)]
        rows = np.concatenate([np.sort(own[: int(PART * len(own))]) for own in drawn])
        yield from each("heart, parts", x[rows], y[rows], domain[rows])


def digits(kind: str, seeds: range) -> Iterator[Task]:
    """Digits of scikit-learn in five domains of 300, rotated or noisy to different degrees."""
    from scipy.ndimage import rotate
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    for seed in seeds:
        rng = np.random.default_rng(seed)
        rows = rng.permutation(len(images))[:1500]
        domain = np.arange(5).repeat(300)
        x = images[rows].reshape(-1, 8, 8)
        if kind == "rotated":
            angles = np.array([-30, -15, 0, 15, 30])[domain]
            turned = (
                rotate(image, angle, reshape=False, order=1)
                for image, angle in zip(x, angles, strict=True)
            )
            x = np.stack(list(turned))
        else:
            x = x + rng.normal(size=x.shape) * np.array([0, 1, 2, 4, 6])[domain][:, None, None]
        yield from each(f"digits, {kind}", x.reshape(1500, 64), labels[rows], domain)


def pacs(path: Path, seeds: range) -> Iterator[Task]:
    """200 images of each domain of a file that `hessalign features` wrote."""
    from safetensors.numpy import load_file

    data = load_file(path)
    for seed in seeds:
        rng = np.random.default_rng(seed)
        own = [rng.permutation(np.flatnonzero(data["domain"] == e))[:200] for e in range(4)]
        rows = np.concatenate(own)
        yield from each("PACS features", data["x"][rows], data["y"][rows], data["domain"][rows])


def measure(task: Task) -> dict[str, Any]:
    """Accuracy of every candidate in the domain left out, and which one the others choose."""
    count, ones = int(task.domain.max()) + 1, np.ones(len(task.y))
    classes = len(np.unique(task.y))
    options: dict[str, Any] = {"tolerance": 1e-4, "still": 1e-3, "max_steps": 1000}
    candidates, searched = (make_candidates(KINDS, own) for own in (STRENGTHS, SEARCHED))

    def samples(rows: np.ndarray, domain: np.ndarray, domains: int) -> Labelled:
        own = ones[rows]
        labels = np.unique(task.y, return_inverse=True)[1][rows]
        return Labelled(task.x[rows], labels, classes, domain, domains, own, own, True, 1e-3)

    every = samples(ones > 0, task.domain, count)
    outer = held_out_scores(every, candidates, task.held, **options).accuracy
    seen = task.domain != task.held
    others = np.unique(task.domain[seen], return_inverse=True)[1]
    inner = samples(seen, others, count - 1)
    scores = [held_out_scores(inner, searched, e, **options) for e in range(count - 1)]
    chosen = candidates.index(searched[choose(searched, scores)])
    return {"set": task.name, "held": task.held, "accuracy": outer.tolist(), "chosen": chosen}


def table(rows: list[dict[str, Any]]) -> list[str]:
    """One line per set: means over what was left out and over seeds, in percent."""
    lines = [
        "| set | fits | plain | "
        + " | ".join(f"{s:g}" for s in STRENGTHS)
        + " | chosen | gain of the choice | best fixed gain | aligned |",
        "|---" * (len(STRENGTHS) + 7) + "|",
    ]
    for name in dict.fromkeys(row["set"] for row in rows):
        own = [row for row in rows if row["set"] == name]
        accuracy = 100 * np.array([row["accuracy"] for row in own])
        chosen = np.array([row["chosen"] for row in own])
        picked = accuracy[np.arange(len(own)), chosen]
        gain = picked - accuracy[:, 0]
        gains = accuracy - accuracy[:, :1]
        best = int(gains.mean(0).argmax())
        # Of two kinds the better, strength by strength.
        means = accuracy.mean(0)[1:].reshape(len(KINDS), -1).max(0)
        cells = [f"{value:.1f}" for value in (accuracy[:, 0].mean(), *means, picked.mean())]
        spread = [_spread(gain), _spread(gains[:, best])]
        share = f"{(chosen > 0).sum()} of {len(own)}"
        lines.append(f"| {name} | {len(own)} | " + " | ".join([*cells, *spread, share]) + " |")
    return lines


def _spread(gains: np.ndarray) -> str:
    return f"{gains.mean():+.1f} ± {gains.std(ddof=1) / np.sqrt(len(gains)):.1f}"


def main(arguments: list[str]) -> int:
    """Measure all sets and write the table.

    Args:
        arguments: The command line.

    Returns:
        The exit status.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.aligning", description=__doc__)
    parser.add_argument(
        "--seeds", type=int, default=5, metavar="N", help="of digits and PACS; 20 N of the others"
    )
    parser.add_argument("--first", type=int, default=2000, metavar="SEED", help="the first seed")
    parser.add_argument("--pacs", type=Path, default=PACS, metavar="FILE", help="features of PACS")
    add_output(parser)
    options = parser.parse_args(arguments)
    few, many = (range(options.first, options.first + n * options.seeds) for n in (1, 20))
    tasks: list[Iterator[Task]] = [
        synthetic(shift, strength, many)
        for shift in ("correlation", "diversity", "label")
        for strength in (1.0, 0.0)
    ]
    tasks += [heart(), heart(many), *(digits(kind, few) for kind in ("rotated", "noisy"))]
    if options.pacs.exists():
        tasks.append(pacs(options.pacs, few))
    else:
        sys.stderr.write(f"Without PACS: {options.pacs} is not there.\n")
    rows = []
    for own in tasks:
        for task in own:
            rows.append(measure(task))
            sys.stderr.write(f"{task.name} {task.held}\n")
    lines = [
        "# Does aligning help?",
        "",
        "Accuracy in % in a domain left out, by strength (the better of diagonals with gradients "
        "and gradients only), and what `AlignedClassifierCV` chooses without it; gains over plain "
        "with their standard errors over fits. *Best fixed* is the kind and strength that is best "
        "in hindsight over all fits of a row. Synthetic sets and *heart, parts* (four fifths of "
        f"each hospital's patients) have the seeds from {options.first} on, "
        f"{len(many)} of them, digits and PACS features {len(few)}. "
        "Made by `python -m benchmarks.aligning`.",
        "",
        *table(rows),
    ]
    if not options.pacs.exists():
        lines += ["", "PACS features are not among them: their file was not there."]
    write_result(
        options.output,
        "aligning",
        {"strengths": STRENGTHS, "searched": SEARCHED, "first": options.first, "fits": rows},
        "\n".join(lines),
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
