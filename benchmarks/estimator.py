"""`AlignedClassifier` beside scikit-learn's LogisticRegression: `python -m benchmarks.estimator`.

Each fit is done in a process of its own with one thread, with the same tolerance of 1e-4 (ours is a
share of single samples' gradients), and its processor time and the peak of memory are compared.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

import hessalign
from benchmarks.output import add_output, write_result

_PROGRAM = """
import json, re, sys, time, warnings
warnings.simplefilter("ignore")
import numpy as np
samples, features, classes, domains, repeat = map(int, sys.argv[1:6])
rng = np.random.default_rng(int(sys.argv[8]))
X = rng.standard_normal((samples, features))
domain = np.arange(samples) * domains // samples
if sys.argv[7] == "shifted":
    X += (rng.normal(size=(domains, features)) / 3)[domain]
W = rng.normal(size=(features, classes)) / np.sqrt(features)
y = np.empty(samples, dtype=int)
for rows in np.array_split(np.arange(samples), 100):
    y[rows] = (X[rows] @ W + rng.gumbel(size=(len(rows), classes))).argmax(1)
if sys.argv[6] == "plain":
    from sklearn.linear_model import LogisticRegression
    model, extra = LogisticRegression(tol=1e-4), ()
else:
    from hessalign import AlignedClassifier
    model, extra = AlignedClassifier(json.loads(sys.argv[6]), tol=1e-4), (domain,)
took = []
for _ in range(repeat):
    start = time.process_time()
    model.fit(X, y, *extra)
    took.append(time.process_time() - start)
peak = int(re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1]) / 1024
print(json.dumps({"seconds": min(took), "megabytes": peak, "steps": int(np.max(model.n_iter_)),
                  "kind": getattr(model, "alignment_", "plain")}))
"""


@final
@dataclass(frozen=True)
class Case:
    """What is fitted, and how many times longer and larger it may be than a plain fit.

    Memory is open, None, where there are so few numbers that imports make most of it.
    """

    samples: int
    features: int
    classes: int
    domains: int
    alignment: str | None
    data: str
    most_time: float
    most_memory: float | None

    def __str__(self) -> str:
        kind = "gradients" if self.alignment is None else self.alignment
        size = f"{self.samples:,} × {self.features}, {self.classes} classes, {self.data}"
        return f"{kind}: {size}"


CASES = (
    *(
        Case(100_000, 500, 2, 4, kind, data, 3.0, 1.5)
        for data in ("alike", "shifted")
        for kind in ("diagonal", None)
    ),
    *(
        Case(*size, kind, data, 3.0, None)
        for size in ((50_000, 200, 3, 3), (200_000, 100, 2, 4))
        for data in ("alike", "shifted")
        for kind in ("diagonal", None)
    ),
    Case(5_000, 64, 50, 4, "auto", "alike", 10.0, None),
    Case(5_000, 64, 50, 4, "auto", "shifted", 10.0, None),
)


def measure(case: Case, kind: str, repeat: int, seed: int) -> dict[str, Any]:
    """Fit in a process of its own; `kind` is "plain" or a kind of alignment as JSON."""
    sizes = [case.samples, case.features, case.classes, case.domains, repeat]
    result = subprocess.run(
        [sys.executable, "-c", _PROGRAM, *map(str, sizes), kind, case.data, str(seed)],
        capture_output=True,
        text=True,
        check=False,
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(Path(hessalign.__file__).parents[1]),
        },
    )
    if result.returncode != 0:
        raise RuntimeError(f"Fitting {case} failed: {result.stderr}")
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def main(arguments: list[str]) -> int:
    """Fit all cases and report ratios.

    Args:
        arguments: The command line.

    Returns:
        The exit status, 0 also if a target is missed: that is a finding, not an error.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.estimator", description=__doc__)
    parser.add_argument("--divide", type=int, default=1, metavar="N", help="samples by this much")
    parser.add_argument(
        "--repeat", type=int, default=5, metavar="N", help="fits; the fastest counts"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the data")
    add_output(parser)
    options = parser.parse_args(arguments)
    rows = []
    for full in CASES:
        case = Case(**{**asdict(full), "samples": full.samples // options.divide})
        plain = measure(case, "plain", options.repeat, options.seed)
        ours = measure(case, json.dumps(case.alignment), options.repeat, options.seed)
        ratios = {
            "time": ours["seconds"] / plain["seconds"],
            "memory": ours["megabytes"] / plain["megabytes"],
        }
        rows.append({"case": str(case), **asdict(case), "plain": plain, "ours": ours, **ratios})
        sys.stderr.write(f"{case}: {ratios['time']:.1f} times the time\n")
    lines = [
        "# AlignedClassifier beside LogisticRegression",
        "",
        "Processor time and peak memory of a fit with default weights and a tolerance of 1e-4, one "
        "thread, as multiples of LogisticRegression's in the same run (the process with its data "
        "and imports included in the memory). *Shifted* domains differ in the means of their "
        "features. Made by `python -m benchmarks.estimator`.",
        "",
        "| fit | seconds | LogisticRegression | times | allowed | MB, times | allowed |",
        "|---|---|---|---|---|---|---|",
        *(
            f"| {row['case']} | {row['ours']['seconds']:.2f} | {row['plain']['seconds']:.2f} | "
            f"{row['time']:.1f} | {row['most_time']:g} | {row['ours']['megabytes']:.0f}, "
            f"{row['memory']:.2f} | {row['most_memory'] or '–'} |"
            for row in rows
        ),
    ]
    record = {"seed": options.seed, "cases": rows}
    write_result(options.output, "estimator", record, "\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
