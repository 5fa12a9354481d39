"""`hessalign report`: a sweep as one page, also while it goes on, and as a table for LaTeX."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from hessalign._errors import InputError
from hessalign._files import write_atomically
from hessalign.bench.sweep.overview import Overview, look, remembering
from hessalign.bench.sweep.page import render_sweep_page, summarise
from hessalign.bench.sweep.printed import FORMATS
from hessalign.report.page import REFRESH
from hessalign.report.progress import Progress


def run(options: argparse.Namespace) -> None:
    """Write what was asked for, and say in short what there is."""
    if options.watch and options.html is None:
        raise InputError(
            "Expected --html FILE with --watch, got none: the page is what it updates."
        )
    overview = _watch(options) if options.watch else look(options.folder, mix=options.mix)
    _write(options, overview)
    sys.stdout.write(summarise(overview))
    for path in filter(None, (options.html, options.latex)):
        sys.stdout.write(f"Saved in {path}\n")


def _watch(options: argparse.Namespace) -> Overview:
    """Write the page again and again, until the sweep is complete."""
    read = remembering()
    with Progress("watching", "runs") as progress:
        while True:
            start = time.monotonic()
            overview = look(options.folder, read, mix=options.mix)
            done, total = overview.states.get("done", 0), sum(overview.states.values())
            progress(done, total, now=overview.complete)
            if overview.complete:
                return overview
            try:
                _write(options, overview, refresh=True)
                # A sweep that takes long to read is read less often.
                time.sleep(max(REFRESH, 4 * (time.monotonic() - start)))
            except KeyboardInterrupt:  # nobody updates the page any more
                _write(options, overview)
                raise


def _write(options: argparse.Namespace, overview: Overview, *, refresh: bool = False) -> None:
    if options.html is not None:
        _save(options.html, render_sweep_page(overview, refresh=refresh))
    if options.latex is not None:
        _save(options.latex, FORMATS["latex"](overview.collection))


def _save(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, text.encode())
