"""Build `heart.csv`, the heart disease data of four hospitals that ship with the package.

    python scripts/build_heart.py HEART_DIR

HEART_DIR holds the four `processed.*.data` files of the UCI repository, doi 10.24432/C52P4X, which
are checked by their SHA-256. The result has a line of names, the patients in their order, hospital
by hospital, an empty place for every `?`, numbers in their shortest form, and `disease`, which is
`healthy` for 0 and `sick` for 1 to 4. After a change, put the printed digest into
`tests/unit/bench/data/test_heart.py`.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from pathlib import Path

OUTPUT = Path(__file__).resolve().parents[1] / "src" / "hessalign" / "bench" / "data" / "heart.csv"

COLUMNS = (
    "age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak",
    "slope", "ca", "thal",
)  # fmt: skip

FILES = {
    "Cleveland": (
        "processed.cleveland.data",
        "a74b7efa387bc9d108d7d0115d831fe9b414b29ae7124f331b622b4efa0427c8",
    ),
    "Hungary": (
        "processed.hungarian.data",
        "d1ad108f785768cd3d7e82dc522e6f5a61eea93cccfb3a46ee8076f73fc3d796",
    ),
    "Switzerland": (
        "processed.switzerland.data",
        "834a405ccf5b66ab4056bb77794adc8df0b7125186454c0a1d002d33c6c3b314",
    ),
    "VA Long Beach": (
        "processed.va.data",
        "e7c93d8d0d2acdadfa4c5e8de768e2191e7f618b952e29623f1f0d5949ff6b8f",
    ),
}
"""The file of each hospital, and its SHA-256."""


def tidy(folder: Path) -> str:
    """The table, from the original files.

    Args:
        folder: Where they are.

    Returns:
        The text of the shipped file.

    Raises:
        ValueError: If a file is not the one it should be.
    """
    lines = [",".join(("hospital", *COLUMNS, "disease"))]
    for hospital, (name, sha256) in FILES.items():
        content = (folder / name).read_bytes()
        found = hashlib.sha256(content).hexdigest()
        if found != sha256:
            raise ValueError(f"{name}: expected SHA-256 {sha256}, found {found}.")
        for line in content.decode("ascii").splitlines():
            *cells, stage = line.split(",")
            values = ["" if cell == "?" else f"{float(cell):g}" for cell in cells]
            lines.append(",".join((hospital, *values, "sick" if int(stage) else "healthy")))
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Build the file.

    Args:
        arguments: Command line without the program name; that of the process by default.

    Returns:
        Exit status: 0, or 1 if an input file is missing or wrong.
    """
    parser = argparse.ArgumentParser(description="Build the heart disease table hessalign ships.")
    parser.add_argument("heart_dir", type=Path, help="folder of the four processed files")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="file to write")
    options = parser.parse_args(arguments)
    try:
        content = tidy(options.heart_dir).encode()
    except (FileNotFoundError, ValueError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    options.output.write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()
    sys.stdout.write(f"{options.output.name}: {len(content):,} bytes, SHA-256 {digest}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
