"""Build the MNIST file that hessalign ships: every training image at 14×14 pixels.

    python scripts/build_mnist14.py MNIST_DIR

MNIST_DIR holds `train-images-idx3-ubyte.gz` and `train-labels-idx1-ubyte.gz`. Every second row
and column of the 60,000 training images is kept (offset 0, no smoothing), as in the Colored MNIST
setup of Arjovsky et al. (2019).

Format of the result: one xz stream (LZMA2, CRC32) whose content is 60,000 × 14 × 14 bytes of grey
values, image by image and row by row, followed by 60,000 bytes, one digit each. It holds no time
stamp and no name, so the same liblzma writes the same bytes again. After a change, put the printed
digest into `_SHIPPED_SHA256` of `hessalign/bench/data/mnist.py`.

The inputs are checked by the SHA-256 of what they hold, not of the gzip files: mirrors compress
the same MNIST differently.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import lzma
import os
import sys
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

OUTPUT = (
    Path(__file__).resolve().parents[1] / "src" / "hessalign" / "bench" / "data" / "mnist14.bin.xz"
)

_UNSIGNED_BYTE = 0x08


@dataclass(frozen=True)
class IdxFile:
    """An idx file of unsigned bytes in gzip, and what it must hold.

    Attributes:
        name: File name.
        shape: Length of every axis.
        sha256: Hexadecimal SHA-256 of the decompressed file, header included.
    """

    name: str
    shape: tuple[int, ...]
    sha256: str


IMAGES = IdxFile(
    "train-images-idx3-ubyte.gz",
    (60_000, 28, 28),
    "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
)
LABELS = IdxFile(
    "train-labels-idx1-ubyte.gz",
    (60_000,),
    "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
)

_REMEDY = "Download the MNIST training set again and pass the folder that holds it."


def read_idx(folder: Path, expected: IdxFile) -> npt.NDArray[np.uint8]:
    """Read one idx file and check its header and content.

    Args:
        folder: Folder of the gzip files.
        expected: Name, shape and digest of the file.

    Returns:
        The bytes of the file in the expected shape.

    Raises:
        FileNotFoundError: If the file is not there.
        ValueError: If the file is not gzip, has another header or another content.
    """
    path = folder / expected.name
    if not path.is_file():
        raise FileNotFoundError(f"Expected {path}, found no such file. {_REMEDY}")
    try:
        content = gzip.decompress(path.read_bytes())
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is not a complete gzip file ({error}). {_REMEDY}") from error
    header = bytes([0, 0, _UNSIGNED_BYTE, len(expected.shape)]) + b"".join(
        length.to_bytes(4, "big") for length in expected.shape
    )
    found_header = content[: len(header)]
    if found_header != header:
        raise ValueError(
            f"{path}: expected the idx header {header.hex()} (unsigned bytes of shape "
            f"{expected.shape}), found {found_header.hex()}. {_REMEDY}"
        )
    found = hashlib.sha256(content).hexdigest()
    if found != expected.sha256:
        raise ValueError(
            f"{path}: expected content of SHA-256 {expected.sha256}, found {found}. {_REMEDY}"
        )
    return np.frombuffer(content, np.uint8, offset=len(header)).reshape(expected.shape)


def packed(images: npt.NDArray[np.uint8], digits: npt.NDArray[np.uint8]) -> bytes:
    """Subsample the images and compress them together with their digits.

    Args:
        images: Grey values, [n, 28, 28].
        digits: Digits, [n].

    Returns:
        The bytes of the shipped file.

    Example:
        >>> images = np.arange(784, dtype=np.uint8).reshape(1, 28, 28)
        >>> content = lzma.decompress(packed(images, np.array([7], np.uint8)))
        >>> len(content), list(content[:3]), content[-1]
        (197, [0, 2, 4], 7)
    """
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 4, "pb": 0}]
    raw = images[:, ::2, ::2].tobytes() + digits.tobytes()
    return lzma.compress(raw, format=lzma.FORMAT_XZ, check=lzma.CHECK_CRC32, filters=filters)


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that its name never points to half of it.

    Args:
        path: Where to write.
        content: What to write.
    """
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def main(arguments: list[str] | None = None) -> int:
    """Build the file.

    Args:
        arguments: Command line without the program name; that of the process by default.

    Returns:
        Exit status: 0, or 1 if an input file is missing or wrong.
    """
    parser = argparse.ArgumentParser(description="Build the 14×14 MNIST file hessalign ships.")
    parser.add_argument(
        "mnist_dir", type=Path, help="folder of the gzipped idx files of the MNIST training set"
    )
    parser.add_argument("--output", type=Path, default=OUTPUT, help="file to write")
    options = parser.parse_args(arguments)
    try:
        images = read_idx(options.mnist_dir, IMAGES)
        digits = read_idx(options.mnist_dir, LABELS)
    except (FileNotFoundError, ValueError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    content = packed(images, digits)
    write_atomically(options.output, content)
    digest = hashlib.sha256(content).hexdigest()
    sys.stdout.write(f"{options.output}: {len(content):,} bytes, SHA-256 {digest}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
