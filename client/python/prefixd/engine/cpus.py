"""Which CPUs the threads of an adapter may run on."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator


@contextlib.contextmanager
def unbound_threads() -> Iterator[None]:
    """Threads that begin in here may run where the parent process may. Engines bind the thread that
    computes to one core, and threads that it begins would share that core with it."""
    bound = os.sched_getaffinity(0)
    with contextlib.suppress(OSError):  # the parent is gone, or another user's
        os.sched_setaffinity(0, os.sched_getaffinity(os.getppid()) | bound)
    try:
        yield
    finally:
        os.sched_setaffinity(0, bound)
