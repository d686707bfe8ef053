"""Several processes that train one model: who they are, and the little that they exchange.

    with processes.join():                 # started by torchrun; alone, nothing happens
        method.fit(data, directory="run")

Every process, a *rank*, holds the data. Rank 0 draws every batch and all noise, keeps the files and
speaks to the ledger. The others clip and add up their share of the drawn terms. So six things are
asked here, and nowhere else:

========  ==========================================================================================
share     which of the drawn terms this rank computes: those whose public id is its own
rows      which of the rows of a sum this rank computes: as many as any other
once      what only rank 0 draws, and all ranks use: a batch, the key of masks, a noisy vector
add       the sum of all ranks' vectors, in float64, which only rank 0 holds
collect   the rows of all ranks, one after the other, which only rank 0 holds
agree     that something is the same on all ranks, or none goes on
========  ==========================================================================================

What travels is secret (batches, sums before noise) and goes over TCP as it is: one machine, or a
network that its owner trusts. See docs/processes.md.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from graphveil import _errors, _validate, devices
from graphveil._errors import GraphveilError, InvalidInputError

if TYPE_CHECKING:
    from torch import Tensor

TIMEOUT = 600.0  # seconds that a rank waits for another
MOST = 64  # ranks, whose roundings in one more sum are paid for; see docs/processes.md
_HEADER = 10  # numbers that say what a tensor is: its type, how many sizes it has, and these
_GRACE, _SHORT = 10.0, 2.0  # seconds for a word of rank 0 to arrive, and of another rank
_REASON, _END, _LEFT = "reason", "end", "left"  # what stands in the store


class LostRankError(GraphveilError):
    """Another process of the run is gone: rank 0, if it is known to be."""

    lost: int | None = None

    def __str__(self) -> str:
        """The message, and what is left of the run."""
        return " ".join([super().__str__(), *getattr(self, "__notes__", ())])


class EndedError(GraphveilError):
    """Rank 0 has ended the run, and has said why."""


@dataclass(frozen=True)
class Place:
    """Where a process stands among those that a launcher started, as its environment says."""

    rank: int
    world: int
    host: str
    port: int


def place() -> Place | None:
    """This process's place; None where it is alone."""
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    rank, world, host, port = (os.environ.get(name) for name in names)
    if not (rank and world and host and port) or world == "1":
        return None
    try:
        where = Place(int(rank), int(world), host, int(port))
    except ValueError:
        where = Place(-1, 0, host, 0)
    if not (0 <= where.rank < where.world and 0 < where.port < 2**16):
        raise InvalidInputError(
            f"RANK, WORLD_SIZE and MASTER_PORT must be as a launcher sets them. Got {rank!r}, "
            f"{world!r} and {port!r} instead; start with torchrun, or leave them out."
        )
    return where


class Ranks:
    """One process, alone: what it draws it uses, and its sum is the sum."""

    rank, world = 0, 1

    @property
    def first(self) -> bool:
        """Whether this is rank 0: it draws, keeps files, and speaks to whoever looks on."""
        return self.rank == 0

    def share(self, ids: Tensor) -> Tensor:
        """Those of the public ``ids`` that this rank computes; each is one rank's."""
        return ids

    def once(self, draw: Callable[[], Tensor]) -> Tensor:
        """What rank 0 draws; all ranks get it, and the others draw nothing."""
        return draw()

    def once_named(self, draw: Callable[[], Mapping[str, Tensor]]) -> dict[str, Tensor]:
        """As :meth:`once`, of tensors by their names."""
        return dict(draw())

    def tell(self, make: Callable[[], Any]) -> Any:
        """As :meth:`once`, of plain JSON values."""
        return make()

    def add(self, vector: Tensor) -> Tensor:
        """On rank 0 the sum of all ranks' vectors (float64); elsewhere nothing that is of use."""
        return vector

    def rows(self, some: slice) -> slice:
        """Those of the rows ``some`` that this rank computes, before :meth:`collect`."""
        return some

    def collect(self, rows: Tensor, some: slice) -> Tensor:
        """On rank 0 all rows ``some`` (float64), of which each rank computed its own."""
        return rows

    def agree(self, what: str, content: bytes) -> None:
        """Refuse to go on where ``content`` is not the same on all ranks."""


ALONE = Ranks()
_seat: ContextVar[Ranks] = ContextVar("ranks", default=ALONE)


def current() -> Ranks:
    """The ranks that this process trains with; one that is alone unless somebody joined."""
    return _seat.get()


class Group(Ranks):
    """A rank among others, over gloo; made by :func:`join`.

    Sums that are on GPUs, each rank's on its own, are added up over nccl.

    *Guarantee conditions*: who can read what the ranks send each other reads batches, and sums
    before noise. What rank 0 draws is drawn once, whatever the number of ranks.
    """

    def __init__(self, place: Place, timeout: float) -> None:
        import torch.distributed as dist

        if not dist.is_available():
            raise InvalidInputError(
                "Several processes need a torch with torch.distributed. Got one without instead; "
                "train with one process, or install another build."
            )
        self.rank, self.world, self.timeout = place.rank, place.world, timeout
        wait = timedelta(seconds=timeout)
        # torchrun keeps a store of its own, which outlives every rank.
        self._hosts = self.first and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        try:
            store = dist.TCPStore(
                place.host,
                place.port,
                place.world,
                self._hosts,
                timeout=wait,
                wait_for_workers=False,
            )
            self._store = dist.PrefixStore(f"graphveil/{attempt}", store)
            self._group: Any = dist.ProcessGroupGloo(self._store, self.rank, self.world, wait)
            self._dist: Any = dist
            self._gpus: Any = None
        except (RuntimeError, ValueError) as error:  # torch's own are kinds of these
            raise LostRankError(
                f"The {place.world} processes must reach each other at {place.host}:{place.port} "
                f"within {timeout:g} seconds. Rank {place.rank} did not reach all; start all of "
                "them, or raise --rank-timeout."
            ) from error

    # --- what is exchanged -----------------------------------------------------------------------

    def share(self, ids: Tensor) -> Tensor:
        """Every so-many-th id: a public rule, which no draw moves."""
        return ids[ids % self.world == self.rank]

    def once(self, draw: Callable[[], Tensor]) -> Tensor:
        import torch

        value = draw().detach().cpu().contiguous() if self.first else None
        with self._watch():
            header = torch.zeros(_HEADER, dtype=torch.int64)
            if value is not None:
                sizes = [_types().index(value.dtype), value.dim(), *value.shape]
                header[: len(sizes)] = torch.tensor(sizes)
            self._broadcast(header)
            number, dim, *sizes = header.tolist()
            if value is None:
                value = torch.empty(sizes[:dim], dtype=_types()[number])
            if value.numel():
                self._broadcast(value.view(-1).view(torch.uint8))
        return value

    def once_named(self, draw: Callable[[], Mapping[str, Tensor]]) -> dict[str, Tensor]:
        drawn = dict(draw()) if self.first else {}
        names = self.tell(lambda: list(drawn))
        return {name: self.once(partial(drawn.__getitem__, name)) for name in names}

    def tell(self, make: Callable[[], Any]) -> Any:
        import torch

        def written() -> Tensor:
            return torch.frombuffer(bytearray(json.dumps(make()).encode()), dtype=torch.uint8)

        return json.loads(bytes(self.once(written).tolist()))

    def add(self, vector: Tensor) -> Tensor:
        import torch

        total = vector.detach().to(dtype=torch.float64, copy=True).contiguous()
        group = self._group
        with self._watch():
            if total.device.type != devices.CPU and self._each_on_its_own():
                group = self._join_gpus()
            else:
                total = total.cpu()
            if total.numel():
                options = self._dist.ReduceOptions()
                options.rootRank = 0
                work = group.reduce([total], options)
                if group is not self._group:  # who is gone is known at once by gloo alone
                    self._group.barrier().wait()
                work.wait()
        return total.cpu()

    def _each_on_its_own(self) -> bool:
        """Whether nccl is there, and every rank has a GPU for itself: the same on all ranks."""
        if self._gpus is not None:
            return True
        name = f"{socket.gethostname()} {devices.current()}"
        every = self._exchange(name.encode() if self._dist.is_nccl_available() else b"")
        without = hashlib.sha256(b"").digest()
        return len(set(every)) == self.world and without not in every

    def _join_gpus(self) -> Any:
        """The ranks over nccl."""
        if self._gpus is None:
            nccl = self._dist.ProcessGroupNCCL
            options = nccl.Options()
            options._timeout = timedelta(seconds=self.timeout)
            store = self._dist.PrefixStore("nccl", self._store)
            self._gpus = nccl(store, self.rank, self.world, options)
        return self._gpus

    def rows(self, some: slice) -> slice:
        """As many as any other rank, one after the other; the last may have fewer."""
        size = self._rows_each(some)
        first = min(some.start + self.rank * size, some.stop)
        return slice(first, min(first + size, some.stop))

    def collect(self, rows: Tensor, some: slice) -> Tensor:
        import torch

        own = torch.zeros(self._rows_each(some), *rows.shape[1:], dtype=torch.float64)
        own[: len(rows)] = rows.detach()
        every = [torch.empty_like(own) for _ in range(self.world)] if self.first else []
        if own.numel():
            with self._watch():
                options = self._dist.GatherOptions()
                options.rootRank = 0
                self._group.gather([every] if self.first else [], [own], options).wait()
        return torch.cat(every)[: some.stop - some.start] if self.first else own

    def _rows_each(self, some: slice) -> int:
        return -(-(some.stop - some.start) // self.world)

    def agree(self, what: str, content: bytes) -> None:
        with self._watch():
            every = self._exchange(content)
        others = [rank for rank, one in enumerate(every) if one != every[0]]
        if others:
            raise InvalidInputError(
                f"All processes must have the same {what}. Rank {others[0]} has another than rank "
                "0; give every process the same files, settings and versions, or train with one."
            )

    def _exchange(self, content: bytes) -> list[bytes]:
        """A hash of every rank's content."""
        import torch

        own = torch.tensor(list(hashlib.sha256(content).digest()), dtype=torch.uint8)
        every = [torch.empty_like(own) for _ in range(self.world)]
        self._group.allgather([every], [own]).wait()
        return [bytes(one.tolist()) for one in every]

    def _broadcast(self, tensor: Tensor) -> None:
        options = self._dist.BroadcastOptions()
        options.rootRank, options.rootTensor = 0, 0
        self._group.broadcast([tensor], options).wait()

    # --- whoever is gone -------------------------------------------------------------------------

    @contextlib.contextmanager
    def _watch(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:  # a connection that was closed, or silent for too long
            raise self._explain_loss() from error

    def _explain_loss(self) -> GraphveilError:
        """Why another rank is gone, as it said itself, or that nobody knows."""
        # A rank says why before it closes its connections; rank 0 may first put files in order.
        reason = self._read(_REASON, _SHORT / 4) if self.first else self._read(_END, _GRACE)
        if reason is None:
            whose = f"one of the {self.world - 1} other ranks"
            if self.world == 2:
                whose = f"rank {1 - self.rank}"
            lost = LostRankError(
                f"The training ended as {whose} was lost: its process is gone, or did not answer "
                f"within {self.timeout:g} seconds."
            )
            lost.lost = None if self.first else 0
            return lost
        if not self.first:
            return EndedError("Rank 0 has ended the run.")
        content = json.loads(reason)
        kind = getattr(_errors, content["kind"], None)
        if not (isinstance(kind, type) and issubclass(kind, GraphveilError)):
            kind = LostRankError
        return kind(f"On rank {content['rank']}: {content['message']}")

    def _read(self, key: str, patience: float) -> str | None:
        """What stands in the store, now or soon; None if nothing comes or there is no store."""
        end = time.monotonic() + patience
        try:
            while not self._store.check([key]):
                if time.monotonic() > end:
                    return None
                time.sleep(0.02)
            return bytes(self._store.get(key)).decode()
        except RuntimeError:  # whoever kept it is gone
            return None

    def leave(self, error: BaseException | None) -> None:
        """Leave the others, who are told why; rank 0's leaving is the end of the run.

        Another rank that failed waits until rank 0 has ended, which says so in its own words.
        """
        failed = error is not None and not isinstance(error, (EndedError, LostRankError))
        if self.first and error is None:  # what was sent last must arrive first
            self._wait_for_others(_GRACE)
        with contextlib.suppress(RuntimeError):
            if self.first:
                self._store.set(_END, "failed" if error is not None else "done")
            elif failed:
                content = {"rank": self.rank, "kind": type(error).__name__, "message": str(error)}
                if not isinstance(error, GraphveilError):
                    content["message"] = f"{type(error).__name__}: {error}"
                self._store.set(_REASON, json.dumps(content))
        self._group.abort()
        if self._gpus is not None:
            self._gpus.abort()
        waits = failed and not self.first and isinstance(error, Exception)
        ended = waits and self._read(_END, _GRACE) is not None
        if not self.first:
            with contextlib.suppress(RuntimeError):
                self._store.add(_LEFT, 1)
        elif self._hosts:  # the store goes with rank 0, and others may still read why
            self._wait_for_others(_SHORT)
        if ended:
            raise EndedError("Rank 0 has ended the run.") from error

    def _wait_for_others(self, patience: float) -> None:
        """Until all others have left, one has failed, or it takes too long."""
        end = time.monotonic() + patience
        with contextlib.suppress(RuntimeError):
            while self._store.add(_LEFT, 0) < self.world - 1 and time.monotonic() < end:
                if self._store.check([_REASON]) and not self._store.check([_END]):
                    return
                time.sleep(0.02)


@contextlib.contextmanager
def join(timeout: float = TIMEOUT) -> Iterator[Ranks]:
    """Train with the processes that torchrun started beside this one; alone where there are none.

    ``timeout`` is how many seconds a rank waits for another, loading of data included.

    *Guarantee*: that of one process. Batches and noise are drawn once, by rank 0, from its secret
    stream; who can listen between the processes is outside it.
    """
    _validate.number("timeout", timeout, "(0, 1e6]")
    where = place()
    if where is None or current() is not ALONE:
        yield current()
        return
    if where.world > MOST:
        raise InvalidInputError(
            f"At most {MOST} processes may train one model. Got {where.world} instead; start fewer."
        )
    group = Group(where, timeout)
    token = _seat.set(group)
    try:
        yield group
    except BaseException as error:
        group.leave(error)
        raise
    else:
        group.leave(None)
    finally:
        _seat.reset(token)


def _types() -> list[Any]:
    import torch

    return [
        torch.uint8, torch.bool, torch.int32, torch.int64, torch.float16, torch.bfloat16,
        torch.float32, torch.float64,
    ]  # fmt: skip
