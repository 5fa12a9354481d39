"""Ctrl-C at a safe moment: the step in progress is finished and saved first."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, final


@final
class Interruption:
    """While it is entered, a first SIGINT or SIGTERM asks to stop; a second one stops at once.

    In a thread other than the main one signals cannot be caught, and nothing is done.
    """

    def __init__(self) -> None:
        self.requested = False
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Interruption:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._request)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _request(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True

    def raise_if_requested(self) -> None:
        """Stop, now that everything is in order.

        Raises:
            KeyboardInterrupt: If a signal came.
        """
        if self.requested:
            raise KeyboardInterrupt
