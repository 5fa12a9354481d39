"""Peak memory of a procedure beyond what was there before it started."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from torch.profiler import ProfilerActivity, profile

from benchmarks.timing import Run

METHOD = (
    "largest sum of bytes that torch's CPU allocator had handed out and not yet taken back during "
    "one forward and backward pass, read from the memory events of torch.profiler; inputs are not "
    "counted, intermediate results and the returned gradients are"
)


def peak_memory(run: Run) -> int:
    """Largest number of bytes allocated at once by one call.

    Args:
        run: The procedure; call it once before so that nothing is set up for the first time.

    Returns:
        Bytes beyond those allocated before the call.
    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        result = run()
        del result
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    changes = [(event["ts"], event["args"]) for event in events if event.get("name") == "[memory]"]
    changes.sort(key=lambda change: (change[0], change[1]["Ev Idx"]))
    held = peak = 0
    for _, change in changes:
        held += change["Bytes"]
        peak = max(peak, held)
    return peak
