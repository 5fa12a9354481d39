"""`hessalign export`: a trained network in a form that other programs read."""

from __future__ import annotations

import argparse
import sys

from hessalign.bench.runs.trained import export_model, load


def run(options: argparse.Namespace) -> None:
    """Export the network and say what it takes."""
    model = load(options.run_folder)
    export_model(model, options.output, options.format)
    shape = ", ".join(map(str, model.description.input_shape))
    sys.stdout.write(
        f"{options.output}: x [n, {shape}] to logits [n, {model.description.outputs}]; checked.\n"
    )
