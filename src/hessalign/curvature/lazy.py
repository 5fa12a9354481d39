"""Attributes that are computed when they are first asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, final, overload

_Value = TypeVar("_Value")


@final
class lazy(Generic[_Value]):  # noqa: N801 - a decorator
    """A property whose value is kept, like `functools.cached_property`.

    That one takes a lock, up to Python 3.11, with which torch can compile no graph.

    Example:
        >>> class Square:
        ...     side = 3
        ...     @lazy
        ...     def area(self):
        ...         print("computed")
        ...         return self.side**2
        >>> square = Square()
        >>> square.area + square.area
        computed
        18
    """

    def __init__(self, function: Callable[[Any], _Value]) -> None:
        self.function = function
        self.__doc__ = function.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, instance: None, owner: type) -> lazy[_Value]: ...

    @overload
    def __get__(self, instance: object, owner: type) -> _Value: ...

    def __get__(self, instance: object | None, owner: type) -> lazy[_Value] | _Value:
        if instance is None:
            return self
        value = self.function(instance)
        object.__setattr__(instance, self.name, value)
        return value
