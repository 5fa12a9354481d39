"""Build docs/gallery.md: run the examples, keep what they print, and draw it.

    python scripts/build_gallery.py

A page of the documentation and small pictures in docs/images/gallery/ come out. Needs the extras
`plot` and `sklearn`.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[1]
PAGE = _ROOT / "docs" / "gallery.md"
EXAMPLES = {
    "penalty_in_a_loop": "The penalty in a loop of your own",
    "hospitals": "Several hospitals, one model",
    "embeddings_sklearn": "Embeddings and scikit-learn",
    "own_algorithm": "An algorithm of your own",
}

_TOP = """\
# Gallery

The scripts of `examples/`, run: what each is about, its command, what it prints, and that as a
picture. `python scripts/build_gallery.py` makes this page.
"""

_DEMO = """\
## Colored MNIST, the demo

Colour predicts the label in training and misleads in the unseen domain. The demo trains four
methods on data that ship with the package.

```
hessalign demo
```

![Accuracy on the unseen domain and Hessian distance during training](images/colored_mnist.png)
"""


def _run_example(name: str) -> str:
    """What an example prints, on one thread."""
    environment = {**os.environ, "PYTHONPATH": str(_ROOT / "src"), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, str(_ROOT / "examples" / f"{name}.py")]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    return done.stdout


def _section(name: str, printed: str) -> str:
    """The part of the page about one example: docstring, output, picture."""
    source = (_ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8")
    _, _, about = (ast.get_docstring(ast.parse(source)) or "").partition("\n\n")
    return (
        f"## {EXAMPLES[name]}\n\n{about}\n\n```text\n{printed.rstrip()}\n```\n\n"
        f"![{EXAMPLES[name]}](images/gallery/{name}.svg)\n"
    )


def page(printed: dict[str, str]) -> str:
    """The whole page."""
    return "\n".join([_TOP, *(_section(name, printed[name]) for name in EXAMPLES), _DEMO])


def _table(printed: str) -> tuple[list[str], dict[str, list[tuple[float, float]]]]:
    """The titles of columns, that of rows first, and the rows of a table of means ± deviations."""
    rows, header, before = dict[str, list[tuple[float, float]]](), "", ""
    for line in printed.splitlines():
        cells = re.findall(r"(\d+\.\d+) ± (\d+\.\d+)", line)
        if cells:
            header = header or before
            name = re.split(r"\s{2,}", line.strip())[0]
            rows[name] = [(float(mean), float(spread)) for mean, spread in cells]
        before = line
    titles = re.split(r"\s{2,}", header.strip())
    missing = 1 + len(next(iter(rows.values()))) - len(titles)
    return [""] * missing + titles, rows


def _draw_table(axes: Any, printed: str) -> None:  # noqa: ANN401 - of matplotlib
    """Means with their spread: a group for each column, a dot for each row."""
    (corner, *columns), rows = _table(printed)
    title = columns[0] if len(columns) == 1 else "accuracy in %, mean ± standard deviation"
    for number, (name, cells) in enumerate(rows.items()):
        shift = 0.12 * (number - (len(rows) - 1) / 2)
        means, spreads = zip(*cells, strict=True)
        places = [place + shift for place in range(len(cells))]
        axes.errorbar(places, means, spreads, fmt="o", capsize=3, label=name)
    axes.set_xticks(range(len(columns)), columns if len(columns) > 1 else [""])
    axes.set_xlim(-0.5, len(columns) - 0.5)
    axes.set_title(title, fontsize="medium", loc="left")
    axes.legend(title=corner, frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))


def _draw_steps(axes: Any, printed: str) -> None:  # noqa: ANN401 - of matplotlib
    """The accuracy on the unseen domain against steps."""
    found = re.findall(r"step +(\d+): unseen accuracy ([\d.]+)", printed)
    axes.plot(*zip(*((int(step), 100 * float(share)) for step, share in found), strict=True), "o-")
    axes.set_xlabel("step")
    axes.set_title("accuracy on the unseen domain in %", fontsize="medium", loc="left")


def _draw(name: str, printed: str, file: Path) -> None:
    """Draw what an example printed."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    # Text stays text, and nothing in the file depends on the day: small, and the same every time.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure, axes = pyplot.subplots(figsize=(6.4, 2.8), layout="constrained")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", alpha=0.3)
        (_draw_table if "±" in printed else _draw_steps)(axes, printed)
        figure.savefig(file, metadata={"Date": None})
        pyplot.close(figure)


def main() -> None:
    """Run, draw, write."""
    printed = {}
    folder = PAGE.parent / "images" / "gallery"
    folder.mkdir(parents=True, exist_ok=True)
    for name in EXAMPLES:
        printed[name] = _run_example(name)
        _draw(name, printed[name], folder / f"{name}.svg")
        sys.stdout.write(f"{name}\n")
    PAGE.write_text(page(printed), encoding="utf-8")


if __name__ == "__main__":
    main()
