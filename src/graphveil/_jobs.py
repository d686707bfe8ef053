"""Work that several processes of one machine share; results come as they are ready.

    with closing(do_all(work, items, jobs=4, name=str)) as results:
        for done in results:
            print(done.item, done.take())

Processes are started anew, never forked, so that none holds a copy of another's random numbers,
and each computes with its share of the cores. They end with whoever started them, however that
ends. Nothing is written to disk on the way.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Generic, TypeVar

from graphveil import _validate
from graphveil._errors import GraphveilError
from graphveil._progress import Progress

Item = TypeVar("Item")
Value = TypeVar("Value")
Noticed = list[tuple[type[Warning], str]]  # warnings, by category and text

_MOST = "[1, 1024]"
_OF_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")  # that end a command, which ends its workers
# What Python shows to nobody who does not ask.
_FOR_DEVELOPERS = (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning)
_LOOK = 0.5  # seconds between two looks at whether the parent is there


@dataclass(frozen=True, kw_only=True)
class Done(Generic[Item, Value]):
    """One item, and what came of it: a value, or an error that names the item."""

    item: Item
    value: Value | None = None
    error: Exception | None = None

    def take(self) -> Value:
        """The value; an error is raised."""
        if self.error is not None:
            raise self.error
        return self.value  # type: ignore[return-value]


def check_jobs(jobs: int) -> int:
    """A number of processes."""
    return _validate.integer("jobs", jobs, _MOST)


def do_all(
    work: Callable[[Item], Value], items: Iterable[Item], *, jobs: int, name: Callable[[Item], str]
) -> Generator[Done[Item, Value]]:
    """Do ``work`` on every item, at most ``jobs`` at a time, and return each as it ends.

    An item is taken when a process is free for it, so that ``items`` may still learn from what is
    done. One job is done here, item after item; for several, ``work`` is pickled once for each
    process, which keeps it: what it loads for one item is there for the next. ``name`` is what an
    error calls an item.

    *Guarantee*: a secret stream is never handed to a process; each asks its operating system.
    """
    if check_jobs(jobs) == 1:
        for item in items:
            value, error = _attempt(work, item)
            yield Done(item=item, value=value, error=error and _name_error(error, name(item)))
        return
    yield from _share(work, items, jobs, name)


def count_threads(jobs: int) -> int:
    """The threads of each of so many processes: its share of the cores, or what is set if less."""
    from joblib import cpu_count

    share = max(1, cpu_count() // jobs)
    stated = os.environ.get(_OF_THREADS[0], "")
    return min(share, int(stated)) if stated.isdigit() and int(stated) else share


# --- in the process that asks ---------------------------------------------------------------------


def _share(
    work: Callable[[Item], Value], items: Iterable[Item], jobs: int, name: Callable[[Item], str]
) -> Generator[Done[Item, Value]]:
    # joblib's Parallel would keep processes for minutes, and write large arrays to files.
    from joblib.externals.loky import FIRST_COMPLETED, BrokenProcessPool, ProcessPoolExecutor, wait

    threads, queue = count_threads(jobs), iter(items)
    pool = ProcessPoolExecutor(
        max_workers=jobs,
        initializer=_begin,
        initargs=(pickle.dumps(work), os.getpid()),
        env=dict.fromkeys(_OF_THREADS, str(threads)),  # before torch is loaded, which reads it
    )
    running: dict[Any, Item] = {}
    try:
        while True:
            for item in islice(queue, jobs - len(running)):
                with _without_signals():
                    running[pool.submit(_do, item)] = item
            if not running:
                break
            future = next(iter(wait(running, return_when=FIRST_COMPLETED).done))
            value, error, noticed = future.result()
            item = running.pop(future)
            for category, text in noticed:
                warnings.warn(text, category, stacklevel=2)
            yield Done(item=item, value=value, error=error and _name_error(error, name(item)))
        pool.shutdown()
    except BrokenProcessPool:
        names = "; ".join(name(item) for item in running.values())
        raise GraphveilError(
            f"A process was ended from outside, perhaps for want of memory, at one of: {names}. "
            "Ask for fewer --jobs, or for more memory."
        ) from None
    finally:
        _end(pool)


def _end(pool: Any) -> None:
    """End every process at once; one that is at work holds nothing that is wanted."""
    with warnings.catch_warnings(), _without_signals():
        warnings.simplefilter("ignore")  # without psutil and pgrep it warns, and kills all the same
        pool.shutdown(kill_workers=True)


@contextlib.contextmanager
def _without_signals() -> Iterator[None]:
    """Put off the signals that end a command; a process that starts here never gets them."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [getattr(signal, one) for one in _SIGNALS])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# --- in a process that works ----------------------------------------------------------------------

_packed = b""  # the work, until it is first asked for


def _begin(packed: bytes, parent: int) -> None:
    global _packed
    _packed = packed
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # where signals cannot be put off
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    """End this process when its parent is gone, however that ended."""
    while os.getppid() == parent:
        time.sleep(_LOOK)
    os._exit(1)


_unpacked: list[Callable[[Any], Any]] = []


def _do(item: Any) -> tuple[Any, Exception | None, Noticed]:
    with warnings.catch_warnings(record=True) as noticed:
        warnings.simplefilter("always")
        if not _unpacked:
            _unpacked.append(pickle.loads(_packed))
        value, error = _attempt(_unpacked[0], item)
    wanted = [one for one in noticed if not issubclass(one.category, _FOR_DEVELOPERS)]
    texts = dict.fromkeys((one.category, str(one.message)) for one in wanted)
    return value, error and _portable(error), list(texts)


def _portable(error: Exception) -> Exception:
    """The error, or one that says the same where another process could not read it."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return GraphveilError(_describe(error))
    return error


# --- errors ---------------------------------------------------------------------------------------


def _attempt(work: Callable[[Item], Value], item: Item) -> tuple[Value | None, Exception | None]:
    try:
        return work(item), None
    except Exception as error:
        if not isinstance(error, GraphveilError) and os.environ.get("GRAPHVEIL_DEBUG"):
            traceback.print_exception(error)
        return None, error


def _name_error(error: Exception, name: str) -> Exception:
    """The same error, saying what it befell; one that nobody expected stays its cause."""
    if isinstance(error, GraphveilError):
        return type(error)(f"{name}: {error}")
    named = GraphveilError(f"{name}: {_describe(error)} (GRAPHVEIL_DEBUG=1 shows where)")
    named.__cause__ = error
    return named


def _describe(error: Exception) -> str:
    return f"unexpected {type(error).__name__}: {error}"


class Failures:
    """Errors of items: raised at once, or kept until the others are done (``go_on``)."""

    def __init__(self, *, go_on: bool) -> None:
        self.go_on = go_on
        self._errors: list[tuple[int, Exception]] = []

    def add(self, place: int, error: Exception) -> None:
        """One more; ``place`` is the item's among all."""
        if not self.go_on:
            raise error
        self._errors.append((place, error))

    def raise_first(self) -> None:
        """Raise the first of them by place, and say how many there are besides."""
        if not self._errors:
            return
        first = min(self._errors, key=lambda one: one[0])[1]
        if others := len(self._errors) - 1:
            what = "another one" if others == 1 else f"{others} others"
            more = type(first)(f"{str(first).rstrip('.')}. And {what} failed.")
            raise more from first.__cause__
        raise first


# --- progress -------------------------------------------------------------------------------------


@contextlib.contextmanager
def show_progress(progress: Progress | None, total: int) -> Iterator[Callable[[], None]]:
    """A function to be called once for each of ``total`` things that is done, in any order."""
    if progress is None:
        yield lambda: None
        return
    steps = iter(progress(range(total)))
    next(steps, None)
    try:
        yield lambda: next(steps, None)
    finally:
        if close := getattr(steps, "close", None):
            close()
