"""The one thread that owns the device: jobs wait in a bounded queue and run one by one, in order of arrival."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from pilotfish.errors import BusyError, PilotfishError

log = logging.getLogger("pilotfish")

Work = Callable[["Job"], Iterator[Any]]


class CancelledJobError(PilotfishError):
    """Raised inside a job that nobody waits for any more."""


class Job:
    """An iterator that runs on the device's thread. Its items, and at last `Done`, go to `deliver`, in order.

    `cancel` may be called from any thread and at any time; the job ends at its next item, or where it calls `check`.
    """

    def __init__(self, work: Work, deliver: Callable[[Any], None]) -> None:
        self._work, self._deliver = work, deliver
        self._cancelled = threading.Event()

    def cancel(self) -> None:
        """Nobody waits for this job any more."""
        self._cancelled.set()

    def check(self) -> None:
        """Raise CancelledJobError where the job was cancelled."""
        if self._cancelled.is_set():
            raise CancelledJobError("the request was cancelled")

    def run(self) -> None:
        """To the end, or until it is cancelled; an error is delivered, never raised."""
        self._deliver(Done(self._ended_by()))

    def _ended_by(self) -> Exception | None:
        """Run; the error that ended it, without its traceback: that would hold every array of the request."""
        items: Iterator[Any] | None = None
        try:
            self.check()
            items = self._work(self)
            for item in items:
                self._deliver(item)
                self.check()
        except Exception as failure:
            if not isinstance(failure, PilotfishError):
                log.exception("a request failed")
            failure.__context__ = None
            return failure.with_traceback(None)
        finally:
            if items is not None and hasattr(items, "close"):
                items.close()
        return None


class Done:
    """The end of a job, with the error that ended it, if any."""

    def __init__(self, error: Exception | None) -> None:
        self.error = error


class Worker:
    """Runs jobs on a thread of its own.

    `tick` is called on that thread when no job waits, and says after how many seconds it wants to be called again
    (None: only after the next job).
    """

    def __init__(self, limit: int, tick: Callable[[], float | None] = lambda: None) -> None:
        self.limit = limit
        self._tick = tick
        self._waiting: deque[Job] = deque()
        self._changed = threading.Condition()
        self._running: Job | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._loop, name="pilotfish-device", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Jobs in the queue."""
        return len(self._waiting)

    @property
    def busy(self) -> bool:
        """Whether a job runs."""
        return self._running is not None

    def submit(self, job: Job) -> None:
        """Put a job at the end of the queue. Raises BusyError where as many wait as may."""
        with self._changed:
            if len(self._waiting) >= self.limit:
                raise BusyError(f"server busy, please try again. {self.limit} requests are waiting")
            self._waiting.append(job)
            self._changed.notify()

    def close(self) -> None:
        """Cancel everything and end the thread."""
        with self._changed:
            self._closed = True
            for job in (*self._waiting, *([self._running] if self._running else [])):
                job.cancel()
            self._changed.notify()
        self._thread.join(timeout=30)

    def _loop(self) -> None:
        while True:
            with self._changed:
                while not self._waiting:
                    if self._closed:
                        return
                    self._changed.wait(self._tick())
                self._running = self._waiting.popleft()
            self._running.run()
            self._running = None
