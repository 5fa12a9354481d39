"""What the penalties do where nothing changes but a scale: `python -m benchmarks.cheats`.

A head is fitted on two synthetic domains. Then its features are multiplied by c, with logits as
they are (the head is divided by it), and its logits by c, with features as they are: the predictor
decides alike all the way. Draws the Hessian and the gradient term of every metric along both, over
what they are at c = 1.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import torch

from benchmarks.output import write_result
from hessalign import HessianAlignment
from hessalign._files import write_atomically
from hessalign.alignment.metrics import METRICS
from hessalign.bench.data.shifts import make_shifted_data
from hessalign.heads import fit_head
from hessalign.report.page import render_template
from hessalign.report.plot import Axis, Plot
from hessalign.report.tables import markdown_table

SCALES = [10.0 ** (power / 8) for power in range(-16, 17)]
LOWEST, HIGHEST = 1e-4, 1e4
SHOWN = (0.01, 0.1, 10.0, 100.0)
CHEATS = ("features × c", "logits × c")
TERMS = ("hessian", "gradient")

Curves = dict[tuple[str, str, str], list[float]]
"""Values at `SCALES`, by cheat, term and metric."""


def curves() -> Curves:
    """The terms of every metric along both cheats, over those at c = 1."""
    data = make_shifted_data("correlation", 0, samples=1000)
    z = torch.cat([each.x for each in data.source]).double()
    y = torch.cat([each.y for each in data.source])
    domain = torch.arange(2).repeat_interleave(1000)
    *weights, bias = fit_head(z, y, "binary", l2=0.0).parameters[0]
    logits = z @ torch.stack(weights) + bias
    found: Curves = {}
    for metric in METRICS:
        align = HessianAlignment(1.0, 1.0, metric=metric, loss="binary")
        start = align(z, logits, y, domain)
        for cheat in CHEATS:
            for c in SCALES:
                scaled = (c * z, logits) if cheat == CHEATS[0] else (z, c * logits)
                terms = align(*scaled, y, domain)
                for term in TERMS:
                    value = float(getattr(terms, term) / getattr(start, term))
                    found.setdefault((cheat, term, metric), []).append(value)
    return found


def draw(found: Curves) -> str:
    """The curves as an SVG figure: cheats side by side, terms one above the other."""
    panels = []
    for term in TERMS:
        for cheat in CHEATS:
            across = Axis(f"c, {cheat}", SCALES[0], SCALES[-1], log=True)
            up = Axis("over that at c = 1", LOWEST, HIGHEST, log=True)
            plot = Plot(f"{term.capitalize()} term, {cheat}", across, up)
            for index, metric in enumerate(METRICS):
                values = zip(SCALES, found[cheat, term, metric], strict=True)
                points = [(c, value) for c, value in values if LOWEST <= value <= HIGHEST]
                plot.line(points, f"line c{index}")
            panels.append(plot)
    size = {"width": 1010, "height": 670, "title": "Penalties along two cheats"}
    text = render_template("benchmarks", "cheats.svg.j2", panels=panels, names=METRICS, **size)
    text = re.sub(r"</?div[^>]*>", "", text)  # figures of a page scroll in a box of their own
    box = r'<svg viewBox="0 0 ([\d.]+) ([\d.]+)" role="img" style="[^"]*"'
    return re.sub(box, r'<svg viewBox="0 0 \1 \2" width="\1" height="\2"', text)


def main() -> None:
    """Measure, draw and write."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m benchmarks.cheats")
    parser.add_argument("--output", type=Path, default=Path("results/study"), metavar="DIR")
    folder = parser.parse_args().output
    found = curves()
    rows = []
    for (cheat, term, metric), values in found.items():
        shown = [values[min(range(len(SCALES)), key=lambda i: abs(SCALES[i] - c))] for c in SHOWN]
        rows.append([f"{term} term, {cheat}", metric, *(f"{value:.3g}" for value in shown)])
    rows.sort(key=lambda row: row[0])
    header = ["term", "metric", *(f"c = {c:g}" for c in SHOWN)]
    texts = [
        "# Penalties along two cheats",
        "Made by `python -m benchmarks.cheats`: terms over what they are at c = 1.",
        markdown_table(header, rows, text_columns=2),
        "![Penalties along two cheats](cheats.svg)",
    ]
    record = {", ".join(key): values for key, values in found.items()} | {"scales": SCALES}
    write_result(folder, "cheats", record, "\n\n".join(texts))
    write_atomically(folder / "cheats.svg", draw(found).encode())


if __name__ == "__main__":
    main()
