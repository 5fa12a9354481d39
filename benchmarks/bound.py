"""Which form of Theorem 1 predicts the gap? `python -m benchmarks.bound`.

Over the trained networks of the study (docs/study-protocol.md), or the heads of Figure 2 on a
feature bank, whose features differ in scale by method: the largest gap between two domains that a
head near the source's best can have, found by direct maximisation (`transfer_measure`), beside the
bound in the Euclidean metric, in that of the source's Hessian, and the second-order term of the
attack of Figure 2.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np

from benchmarks.output import write_result
from benchmarks.study import NAMES, SEEDS, Study, find_data, strengths
from hessalign import transfer_bound, transfer_measure, worst_case_gap
from hessalign.bench.algorithms import find_algorithm
from hessalign.bench.runs import load_run
from hessalign.bench.runs.run import TrainedHead, trained_head
from hessalign.bench.sweep import SerialLauncher
from hessalign.paper.experiment import Options, cached_runs
from hessalign.paper.figure2 import METHODS
from hessalign.paper.sweeps import select_jobs, train_all
from hessalign.report.tables import grouped, markdown_table

FIGURE = "figure2"
TOLERANCE = 0.01
L2 = 1e-3
"""Over the mean square of the features, so that it has their units."""

RADIUS = 0.2
SAMPLES = 300


def measure(trained: TrainedHead, source: int, target: int) -> dict[str, float]:
    """What was found and what was predicted for one pair of domains."""
    rows = (trained.domain == source) | (trained.domain == target)
    z, y, domain = trained.z[rows].double(), trained.y[rows], trained.domain[rows]
    options: dict[str, Any] = {"source": source, "target": target, "tolerance": TOLERANCE}
    options |= {"l2": L2 * float(z.square().mean()), "loss": trained.loss}
    found = transfer_measure(z, y, domain, restarts=2, **options)
    plain = transfer_bound(z, y, domain, strong_convexity="hessian", **options)
    own = transfer_bound(z, y, domain, metric="source", **options)
    attack = worst_case_gap(z, y, domain, trained.head, [RADIUS], loss=trained.loss).attacks[0]
    return {
        "norm": float(z.norm(dim=1).mean()),
        "gap": found.value,
        "euclidean": plain.value,
        "source": own.value,
        "source, guaranteed": own.guaranteed,
        "‖H_T − H_S‖": plain.hessian_distance,
        "λ_max": own.hessian_distance,
        "attack": attack.gap,
        "attack, predicted": attack.predicted,
    }


def studied_heads(options: argparse.Namespace) -> Iterator[tuple[str, TrainedHead]]:
    """The trained heads of the study that there are."""
    for data in find_data(options.data, options.data_dir).values():
        study = Study(data, options.cache)
        study.measure_units()
        yield from heads(study, options.seeds)


def attacked_heads(options: argparse.Namespace) -> Iterator[tuple[str, TrainedHead]]:
    """The heads that Figure 2 attacks: those that model selection takes from a sweep."""
    given = Options(
        SerialLauncher(), cache=options.cache, data_dir=options.data_dir, sweeps=(options.sweep,)
    )
    for name, chosen in select_jobs(given, [method.algorithm for method in METHODS]).items():
        for run in train_all(given, chosen).values():
            yield find_algorithm(name).title, trained_head(run.load(), SAMPLES)


def heads(study: Study, seeds: Sequence[int]) -> Iterator[tuple[str, TrainedHead]]:
    """Those of some seeds."""
    for title in study.data.methods:
        for strength in strengths(title):
            jobs = [study.job(title, seed, strength) for seed in seeds]
            for run in cached_runs(study.folder, jobs):
                data_dir = Path(run.job.data_dir) if run.job.data_dir else None
                yield title, trained_head(load_run(run.folder, data_dir), SAMPLES)


def _ranks(values: Sequence[float]) -> np.ndarray:
    return np.argsort(np.argsort(values)).astype(float)


def agreement(found: Sequence[dict[str, Any]], name: str, wanted: str) -> list[str]:
    """Rank correlation of a prediction with what was found; mean and spread of their log ratio."""
    # Ranks are those among heads with the same pair of domains; the correlation is their mean.
    kept = [each for each in found if each[wanted] > 0 and each[name] > 0]
    alike = grouped(kept, lambda each: each["pair"]).values()
    ranks = [[_ranks([x[key] for x in group]) for key in (name, wanted)] for group in alike]
    rank = fmean(float(np.corrcoef(ours, theirs)[0, 1]) for ours, theirs in ranks)
    ratios = [float(np.log10(each[name] / each[wanted])) for each in kept]
    return [f"{rank:+.2f}", f"{fmean(ratios):+.2f}", f"{stdev(ratios):.2f}", str(len(kept))]


PREDICTIONS = {
    "gap": ("euclidean", "source", "source, guaranteed", "‖H_T − H_S‖", "λ_max", "norm"),
    "attack": ("attack, predicted", "‖H_T − H_S‖", "λ_max", "norm"),
}
"""What is compared with what."""


def describe(found: Sequence[dict[str, Any]], command: str) -> str:
    """The page: by target, so that differences between targets are not taken for prediction."""
    norms = [each["norm"] for each in found]
    header = ["target", "prediction", "rank correlation", "log ratio", "± spread", "heads"]
    texts = [
        "# Theorem 1 in two metrics",
        f"Made by `{command}`: trained networks of the study's data, all methods and strengths, or "
        f"the heads of Figure 2; mean ‖z‖ from {min(norms):.2g} to {max(norms):.2g}; the "
        "source is the first training domain. *Gap* is the transfer measure at an excess risk of "
        f"{TOLERANCE}, by direct maximisation; *attack* the largest gap within {RADIUS} of the "
        "trained head, as in Figure 2. Rank correlation of a prediction with it over heads with "
        "the same pair of domains (the mean over pairs, if there are several), mean and standard "
        "deviation of the decadic logarithm of their ratio.",
    ]
    for wanted, names in PREDICTIONS.items():
        rows = []
        for target in dict.fromkeys(each["target"] for each in found):
            part = [each for each in found if each["target"] == target]
            rows += [[target, name, *agreement(part, name, wanted)] for name in names]
        texts += [f"## {wanted.capitalize()}", markdown_table(header, rows, text_columns=2)]
    return "\n\n".join(texts)


def main() -> None:
    """Measure all heads and write."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m benchmarks.bound")
    parser.add_argument("data", choices=(*NAMES, FIGURE))
    parser.add_argument("--data-dir", default="outputs/features", help="folder of feature banks")
    parser.add_argument("--cache", type=Path, default=Path("outputs/study"), metavar="DIR")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS), help="of the study")
    parser.add_argument("--sweep", type=Path, metavar="DIR", help=f"of {FIGURE}: PACS features")
    parser.add_argument("--output", type=Path, default=Path("results/study"), metavar="DIR")
    options = parser.parse_args()
    if (options.data == FIGURE) != (options.sweep is not None):
        parser.error(f"Expected --sweep with {FIGURE}, and only then.")
    seeds = " ".join(map(str, options.seeds))
    chosen = f"--seeds {seeds}" if options.sweep is None else f"--sweep {options.sweep}"
    make = studied_heads if options.sweep is None else attacked_heads
    found: list[dict[str, Any]] = []
    for title, trained in make(options):
        if not bool(trained.z.std() > 0):
            continue  # no feature is alive
        source, other, *_ = trained.sources
        unseen = trained.targets[-1]
        for target, kind in ((other, "other training domain"), (unseen, "unseen domain")):
            pair = f"{trained.names[source]} → {trained.names[target]}"
            names = {"method": title, "seed": trained.seed, "target": kind, "pair": pair}
            found.append(names | measure(trained, source, target))
        sys.stderr.write(f"{len(found) // 2} heads, {title}\n")
    text = describe(found, f"python -m benchmarks.bound {options.data} {chosen}")
    write_result(options.output, f"bound_{options.data}", {"pairs": found}, text)


if __name__ == "__main__":
    main()
