"""`hessalign export`: a trained network in a form that other programs read."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the verb.

    Args:
        verbs: The parser's verbs.
    """
    parser = verbs.add_parser(
        "export",
        help="write a trained network as ONNX, TorchScript, pt2 or safetensors",
        description="Example: hessalign export runs/PACS --format onnx --output model.onnx. The "
        "file takes prepared inputs in batches of any size and gives logits; it carries the names "
        "of the classes and says how images are prepared. It is read back and compared with the "
        "network before it is left there.",
    )
    add = parser.add_argument
    add("run_folder", type=Path, metavar="RUN", help="a trained run")
    add("--format", required=True, help="safetensors, torchscript, onnx or pt2")
    add("--output", type=Path, required=True, metavar="FILE", help="the file to write")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Export the network and say what it takes.

    Args:
        options: The parsed command line.
    """
    from hessalign.bench.runs.exported_model import export_model
    from hessalign.bench.runs.trained import load

    model = load(options.run_folder)
    export_model(model, options.output, options.format)
    shape = ", ".join(map(str, model.description.input_shape))
    sys.stdout.write(
        f"{options.output}: x [n, {shape}] to logits [n, {model.description.outputs}]; checked.\n"
    )
