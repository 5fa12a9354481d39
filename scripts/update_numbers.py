"""Put the newest results into README.md, docs/benchmarks.md and docs/images/overview.svg.

    python -m scripts.update_numbers

What stands between `<!-- name -->` and `<!-- /name -->` is replaced; a test checks that it is up to
date. Run it after `make bench`, `python -m benchmarks.marginal` or `hessalign reproduce table2`.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.report import number, summary, table

_ROOT = Path(__file__).resolve().parents[1]
OVERVIEW = _ROOT / "docs" / "images" / "overview.svg"
_SHOWN = ("ERM", "IRM", "V-REx", "Fishr", "HGP", "Exact diagonal", "Full Hessian")


def _results(name: str) -> Any:  # noqa: ANN401 - JSON
    """A file of results."""
    return json.loads((_ROOT / "results" / name).read_text(encoding="utf-8"))


def _accuracies() -> dict[str, dict[str, Any]]:
    """Table 2 by method."""
    rows = _results("table2/table2.json")["versions"]["Colored MNIST"]
    return {row["method"]: row for row in rows}


def _steps() -> dict[str, float]:
    """What a Colored MNIST step costs, relative to plain training."""
    targets = _results("bench/bench.json")["tables"]["cmnist"]["targets"]
    found = {re.sub(r"^.*?step, |, relative.*$", "", t["what"]): t["measured"] for t in targets}
    return {name: found[name] for name in sorted(found, key=lambda each: found[each])}


def figures() -> str:
    """The sentence of the README."""
    rows = _accuracies()
    erm, hgp, full = (f"{rows[name]['test_mean']:.1f}" for name in ("ERM", "HGP", "Full Hessian"))
    heads = _results("bench/bench.json")["tables"]["head"]["heads"]
    faster = [head["rows"]["full + gradient"]["times_faster_than_released"] for head in heads]
    steps = list(_steps().values())
    return (
        f"**Left**: colour misleads on the unseen domain; plain training (ERM) reaches {erm} % "
        f"there, HGP {hgp} % and the full Hessian\n{full} %, where 75 % is the best without colour "
        f"(5 restarts, `hessalign reproduce table2 --restarts 5`). **Right**: the\nexact penalty, "
        f"{number(min(faster))} to {number(max(faster))} times as fast as the released procedure; "
        f"a whole Colored MNIST step takes {min(steps):.2f} to {max(steps):.2f}\ntimes a plain one "
        "(`make bench`, [all numbers](docs/benchmarks.md))."
    )


def bench() -> str:
    """The penalty beside the released procedure, and a whole step beside a plain one."""
    steps = ", ".join(f"{name} {value:.2f}×" for name, value in _steps().items())
    return (
        "Forward and backward of the penalty, 3 domains × 32 samples, one thread; in brackets, how "
        "many times faster than\nthe released procedure:\n\n"
        f"{summary(_results('bench/bench.json')['tables']['head'])}\n\n"
        "A whole Colored MNIST training step (2 × 25,000 samples), relative to plain training:\n"
        f"{steps}."
    )


def marginal() -> str:
    """What the penalty adds to cross-entropy."""
    full, product = "full + gradient", "product + gradient"
    rows = []
    for name, cells in _results("bench/marginal.json")["heads"].items():
        of_plain = {key: f"{cell['marginal_of_plain'] or 0:.2f}" for key, cell in cells.items()}
        ours = cells[f"{full}, layout"]["marginal_ms"]
        row = [name, f"{cells['cross-entropy alone']['low_ms']:.2f}"]
        row += [f"{cells[f'{full}, plain']['marginal_ms']:.2f}"]
        row += [f"{ours:.2f} ({of_plain[f'{full}, layout']})", of_plain[f"{full}, ids"]]
        row += [of_plain[f"{full}, layout, compiled"], of_plain[f"{product}, layout"]]
        rows.append([*row, of_plain[f"{product}, layout, compiled"]])
    header = "head (d×C)|cross-entropy|plain full + gradient|ours, with a layout|with ids|compiled"
    return (
        "What a step pays, (cross-entropy + penalty) − cross-entropy in milliseconds, beside the "
        "same closed form in a dozen lines of\nplain float32 without checks; in brackets and to "
        "the right, relative to that form (`python -m benchmarks.marginal`):\n\n"
        + table([*header.split("|"), "product", "product, compiled"], rows)
    )


def rest() -> str:
    """The other benchmarks."""
    overhead = _results("bench/engine/bench.json")["tables"]["engine"]["overhead"]
    page = (_ROOT / "results" / "bench" / "pipeline.md").read_text(encoding="utf-8")
    (images,) = re.findall(r"Ratio of processor times: ([\d.]+)", page)
    engine = ", ".join(f"{median(values):.2f} ({name})" for name, values in overhead.items())
    rows = [
        ["the training engine, relative to a bare loop", engine, "`make bench`"],
        ["images into the step, relative to Pillow and torchvision", f"{images} times as many",
         "`python -m benchmarks.pipeline --data PACS`"],
    ]  # fmt: skip
    return table(["what", "result", "made by"], rows)


BLOCKS = {
    _ROOT / "README.md": {"figures": figures},
    _ROOT / "docs" / "benchmarks.md": {"bench": bench, "marginal": marginal, "rest": rest},
}


def filled(page: Path) -> str:
    """A page with its blocks from the newest results."""
    text = page.read_text(encoding="utf-8")
    for name, make in BLOCKS[page].items():
        start, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
        if (text.count(start), text.count(end)) != (1, 1):
            raise ValueError(f"Expected {start.strip()} and {end} once in {page}.")
        before, _, rest = text.partition(start)
        text = f"{before}{start}{make()}\n{end}{rest.partition(end)[2]}"
    return text


def _draw_accuracies(axes: Any) -> None:  # noqa: ANN401 - of matplotlib
    """Accuracy on the unseen domain of Colored MNIST by method."""
    rows = _accuracies()
    for place, name in enumerate(_SHOWN):
        mean, spread = rows[name]["test_mean"], rows[name]["test_std"]
        aligned = name in {"HGP", "Exact diagonal", "Full Hessian"}
        axes.barh(place, mean, xerr=spread, color="#009e73" if aligned else "#999999")
        axes.text(84, place, f"{mean:.1f} ± {spread:.1f}", va="center", fontsize="small")
    axes.axvline(75, color="black", linestyle=":", linewidth=1)
    axes.text(74, 0, "best without colour", ha="right", va="center", fontsize="small")
    axes.set_yticks(range(len(_SHOWN)), _SHOWN)
    axes.invert_yaxis()
    axes.set_xlim(0, 100)
    axes.set_title("Colored MNIST: accuracy on the unseen domain, %", fontsize="medium", loc="left")


def _draw_times(axes: Any) -> None:  # noqa: ANN401 - of matplotlib
    """Milliseconds of the penalty by size of the head."""
    heads = _results("bench/bench.json")["tables"]["head"]["heads"]
    titles = [f"{head['features']}×{head['classes']}" for head in heads]
    for name, label, colour in (
        ("released procedure", "released procedure, 300 probes", "#b2182b"),
        ("full + gradient", "exact full Hessian + gradient", "#009e73"),
        ("plain cross-entropy (the floor)", "plain cross-entropy", "#666666"),
    ):
        times = [head["rows"][name]["median_ms"] for head in heads]
        axes.plot(titles, times, "o-", color=colour, label=label)
    axes.set_yscale("log")
    axes.set_ylim(top=1e7)
    axes.set_xlabel("head: features × classes", fontsize="small")
    axes.set_title("Milliseconds for the penalty", fontsize="medium", loc="left")
    axes.legend(frameon=False, fontsize="small", loc="upper left")


def draw(file: Path) -> None:
    """Draw the first picture of the README."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "overview"}):
        figure, (left, right) = pyplot.subplots(1, 2, figsize=(9.6, 3.2), layout="constrained")
        for axes in (left, right):
            axes.spines[["top", "right"]].set_visible(False)
        _draw_accuracies(left)
        _draw_times(right)
        figure.patch.set_facecolor("white")
        figure.savefig(file, metadata={"Date": None})
        pyplot.close(figure)


def main() -> None:
    """Fill the pages and draw the picture."""
    for page in BLOCKS:
        page.write_text(filled(page), encoding="utf-8")
        sys.stdout.write(f"{page.relative_to(_ROOT)}\n")
    draw(OVERVIEW)


if __name__ == "__main__":
    main()
