"""Malformed inputs for every reader and public function: `python -m benchmarks.fuzz`."""
