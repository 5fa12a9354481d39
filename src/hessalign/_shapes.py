"""Shape annotations: `Float[Tensor, "n d"]` reads as a float tensor of n rows and d columns.

The names are jaxtyping's where it is installed (the tests check every call against them), elsewhere
inert stand-ins. Index letters used throughout: e domain, n sample, c or k class (output of the
head), d feature, p parameter of the head (k·d, plus the bias), m probe.
"""

from __future__ import annotations

from typing import Any

try:
    from jaxtyping import Bool as Bool
    from jaxtyping import Float as Float
    from jaxtyping import Int as Int
except ImportError:

    class _AnyShape:
        def __class_getitem__(cls, item: tuple[Any, str]) -> Any:  # noqa: ANN401
            return item[0]

    Bool = Float = Int = _AnyShape  # type: ignore[assignment]
