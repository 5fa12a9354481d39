"""Ctrl-C at a safe moment: the step in progress is finished and saved first."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, final


@final
class Interruption:
    """While it is entered, a first SIGINT or SIGTERM asks to stop; a second one stops at once.

    None is lost. One within another knows from the start what the outer was asked before, and tells
    it what it was asked itself; without an outer one, what came too late to be heeded inside raises
    KeyboardInterrupt at the end.

    In a thread other than the main one signals cannot be caught, and nothing is done. A signal that
    is ignored, as nohup has SIGINT ignored, stays so.
    """

    def __init__(self) -> None:
        self.requested = False
        self._previous: dict[int, Any] = {}
        self._outer: Interruption | None = None

    def __enter__(self) -> Interruption:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) is signal.SIG_IGN:
                    continue
                previous = signal.signal(number, self._request)
                self._previous[number] = previous
                outer = getattr(previous, "__self__", None)
                if isinstance(outer, Interruption):
                    self._outer = outer
                    self.requested = self.requested or outer.requested
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        if self._outer is not None:
            self._outer.requested = self._outer.requested or self.requested
        elif kind is None:
            self.raise_if_requested()

    def _request(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True

    def raise_if_requested(self) -> None:
        """Stop by a KeyboardInterrupt if a signal came, now that everything is in order."""
        if self.requested:
            raise KeyboardInterrupt
