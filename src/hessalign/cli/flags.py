"""What flags of several verbs take."""

from __future__ import annotations

import argparse

from hessalign._seeds import LARGEST_SEED


def seed_number(text: str) -> int:
    """A seed, as argparse asks for it.

    Args:
        text: What was given.

    Returns:
        A whole number.

    Raises:
        argparse.ArgumentTypeError: If it is something else, or too large.

    Example:
        >>> seed_number("3")
        3
    """
    if not text.isdecimal() or int(text) > LARGEST_SEED:
        raise argparse.ArgumentTypeError(
            f"expected a whole number from 0 to {LARGEST_SEED}, got {text!r}"
        )
    return int(text)
