"""A store built from a source in streaming passes, with no more memory than is allowed.

    build_store("ward/", "ward.store")                          # nodes.parquet, edges-*.parquet
    build_store("duckdb:///ward.db?nodes=...&edges=...", "ward.store")
    build_store(nodes=reader, edges=batches, out="ward.store")  # whatever streams Arrow

==========  ===========================================================================
pass        what it does
==========  ===========================================================================
nodes       reads the nodes; writes features, masks, labels and ids
index       sorts the ids by hash, and refuses those that are there twice
edges       reads the edges; finds the rows of their ends, and sorts by ranges of senders
order       sorts range by range; writes each message once
checksums   reads all arrays, and writes the manifest: the store is finished
==========  ===========================================================================

What was done is noted in a file. A build that was killed goes on from there, if its files are what
they were. Every pass is linear in nodes or edges.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from operator import length_hint
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from graphveil import _validate
from graphveil._errors import InvalidInputError
from graphveil._files import private_directory, write_file
from graphveil._inputs import at_home, json_of
from graphveil.data.store_format import (
    ARRAYS,
    BUILDING,
    ArrayFacts,
    Manifest,
    Track,
    array_path,
    is_store,
    sha256_of,
    track_nothing,
)

if TYPE_CHECKING:
    from graphveil.data.store_nodes import NodeWriter
    from graphveil.data.store_sources import Source

STATE = "state.json"
LOCK = "lock"
PASSES = ("nodes", "index", "edges", "order", "checksums")
DTYPES = ("float32", "float16")
LEAST_MEMORY = 64 << 20
_NOTE_EVERY = {"nodes": 32, "edges": 64}  # parts that are read between two notes of the state
_NOTE_MESSAGES = 1 << 26  # that are written between two notes
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
          "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}  # fmt: skip
_GOES_ON = "the same command goes on where it stopped"


def parse_memory(memory: str | int) -> int:
    """Bytes, of a number or of text such as ``4GiB``."""
    if isinstance(memory, str):
        words = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", memory)
        unit = None if words is None else _UNITS.get(words[2].upper())
        if words is None or unit is None:
            raise InvalidInputError(
                f"The 'memory' parameter must be bytes or text such as 4GiB. Got {memory!r} "
                "instead."
            )
        memory = int(float(words[1]) * unit)
    size = _validate.integer("memory", memory, "[1, 1e18]")
    if size < LEAST_MEMORY:
        raise InvalidInputError(
            f"The 'memory' parameter must be at least {LEAST_MEMORY >> 20}MiB. Got {size:,} bytes "
            "instead."
        )
    return size


def build_store(
    source: Any = None,
    out: str | Path = "",
    *,
    nodes: Any = None,
    edges: Any = None,
    dtype: str = "float32",
    memory: str | int = "4GiB",
    force: bool = False,
    track: Track = track_nothing,
    **stated: Any,
) -> Manifest:
    """Build a store of the graph ``source`` in the directory ``out``, and say what is in it.

    ``source`` is a name of the catalog; a folder with tables, ``nodes.csv`` or ``nodes.parquet`` or
    several parts ``nodes-*.parquet``, and edges likewise; a folder with the raw files of OGB; a
    ``.npz`` or ``.pt``; ``duckdb:///file.db?nodes=SELECT...&edges=SELECT...``; or a graph in
    memory. Instead of it, ``nodes`` and ``edges`` may be tables of any kind that streams Arrow,
    iterables of batches of Arrow, or DataFrames. Beside a file of DuckDB they are its queries.

    ``stated`` may hold ``root``, ``schema``, ``classes`` and ``directed``, which mean what they do
    to :func:`graphveil.data.load`. So does the result: features, labels, masks and ids are the
    same, bit for bit, and messages are those that methods read, each once and without self-loops.
    ``dtype`` float16 halves the room of features. ``memory`` bounds what a pass holds, beyond what
    the program itself takes (0.4 GiB); files in the page cache do not count. ``out`` needs room for
    the store and, while it is built, 8 bytes for every message and 16 for every id.

    A build that ends early, for whatever reason, goes on when it is called again with the same
    source. ``force`` starts anew, and replaces a finished store once the new one is finished.
    ``track`` is shown the name and the parts of every pass.

    *Guarantee*: none; reading is not releasing. What counts as public is as for ``load``.
    """
    out, size = at_home(out), parse_memory(memory)
    _validate.choice("dtype", dtype, DTYPES)
    place = _place_for(out, force)
    with _writing(out):
        private_directory(place)
        work = place / BUILDING
        work.mkdir(mode=0o700, exist_ok=True)
    with _locked(place), _writing(out):
        if is_store(place):  # finished by somebody else since
            raise _is_there(out)
        if force:
            _clear(place)
        from graphveil.data.store_sources import open_source

        opened = open_source(
            source, nodes=nodes, edges=edges, memory=size, temporary=work / "duckdb", **stated
        )
        build = _Build(opened, place, out, size, dtype, track)
        try:
            manifest = build.run()
        except KeyboardInterrupt as error:
            error.add_note(f"{out} is not finished; {_GOES_ON}.")
            raise
        if place != out:
            _swap(place, out)
    return manifest


class _Build:
    """The passes of a build, from where the last process stopped."""

    def __init__(
        self, source: Source, place: Path, out: Path, memory: int, dtype: str, track: Track
    ) -> None:
        self.source, self.place, self.out, self.memory = source, place, out, memory
        self.dtype, self.track, self.work = dtype, track, place / BUILDING
        asked = [source.fingerprint(), dtype]
        # As JSON gives it back.
        self.state = self._read_state(json.loads(json.dumps(asked, default=str)))

    def run(self) -> Manifest:
        """Make every pass that was not finished."""
        for name in PASSES:
            if name not in self.state["done"]:
                getattr(self, f"_pass_{name}")()
                if name != PASSES[-1]:
                    self.state["done"].append(name)
                    self._note()
        return Manifest.read(self.place)

    # --- the state --------------------------------------------------------------------------------

    def _read_state(self, asked: Any) -> dict[str, Any]:
        path = self.work / STATE
        if not path.is_file():
            _clear(self.place)
            return {"asked": asked, "done": []}
        try:
            state = json_of(path.read_bytes())
            done = state["done"]
        except (ValueError, TypeError, KeyError) as error:
            raise InvalidInputError(
                f"{path} is damaged ({error}); use --force to start anew."
            ) from None
        if state["asked"] != asked:
            raise InvalidInputError(
                f"{self.out} was begun from another source, from files that changed since, or with "
                "other settings. Got one that is not the same; use --force to start anew."
            )
        if not self.source.is_repeatable:  # rows that were read cannot be skipped
            state = {n: v for n, v in state.items() if n not in ("nodes", "edges") or n in done}
        return state

    def _note(self) -> None:
        write_file(self.work / STATE, json.dumps(self.state).encode(), private=True)

    def _parts(self, name: str, parts: Iterable[Any], length: int | None, done: int) -> Any:
        """The ``parts`` of a pass, shown to whoever waits."""
        count = None if length is None else max(0, length - done)
        return self.track(f"reading {name}", _Sized(parts, count))

    # --- the passes -------------------------------------------------------------------------------

    def _pass_nodes(self) -> None:
        from graphveil.data.store_nodes import NodeWriter

        state, source = self.state.setdefault("nodes", {}), self.source
        source.facts = state.get("facts", source.facts)
        source.cut = state.get("cut", {})
        writer = NodeWriter(self.place, self.work, state, self.dtype)
        try:
            parts = source.nodes(self.memory, state["rows"])
            for number, (where, rows) in enumerate(
                self._parts("nodes", parts, source.lengths(self.memory)[0], 0), start=1
            ):
                writer.add(where, rows)
                if number % _NOTE_EVERY["nodes"] == 0 and source.is_repeatable:
                    writer.note()
                    state |= {"facts": source.facts, "cut": source.cut}
                    self._note()
            self._finish_nodes(writer)
        finally:
            writer.close()

    def _finish_nodes(self, writer: NodeWriter) -> None:
        from graphveil.data.encoding import say_cut
        from graphveil.data.store_edges import check_nodes
        from graphveil.data.store_nodes import check_split, write_classes

        state, source = self.state["nodes"], self.source
        if state["rows"] == 0:
            raise InvalidInputError(f"{source.where} has no rows; give each node one.")
        check_nodes(source.where, state["rows"])
        writer.finish()
        facts, names = dict(source.facts), set(state["arrays"])
        if writer.notes.rows("labels"):
            facts = write_classes(writer, source.where, source.classes, facts)
            names.add("y")
        check_split(self.place, source.where, names)
        state |= {"facts": facts, "cut": source.cut}
        say_cut(source.where, Counter(source.cut))

    def _pass_index(self) -> None:
        from graphveil.data.store_index import Ids, build_index

        state = self.state["index"] = {}
        if self.state["nodes"]["notes"].keys() & {"owners", "owner_offsets"}:
            self._check_owners()
        if not self.source.has_ids:
            return
        ids = Ids(self.place, text=bool(self.state["nodes"].get("id_text")))
        if ids.are_places():
            state["seed"] = None
            return
        seed, twice = build_index(ids, self.work, self.memory, self.track)
        if twice is not None:
            _refuse_twice(
                self.source.where, ids, twice, "id", "unlike all other ids",
                "keep one row for each node",
            )  # fmt: skip
        state["seed"] = seed

    def _check_owners(self) -> None:
        from graphveil.data.store_index import Ids, build_index

        owners = Ids(self.work, text=bool(self.state["nodes"].get("owner_text")), stem="owner")
        _, twice = build_index(owners, self.work, self.memory, self.track)
        if twice is not None:
            name = self.state["nodes"]["facts"]["schema"]["owner"]
            _refuse_twice(
                self.source.where, owners, twice, name, "another in each row",
                "a store holds one row of each, so that a row is the unit; keep one row for each, "
                "or read the tables into memory, where all rows of an owner are one unit",
            )  # fmt: skip

    def _pass_edges(self) -> None:
        from graphveil.data.store_edges import Ranges, Spill

        state, source = self.state.setdefault("edges", {}), self.source
        look_up = self._look_up()
        ranges = Ranges(self.work, self.state["nodes"]["rows"])
        spill = Spill(ranges, state, mirror=source.mirror)
        try:
            parts = source.edges(self.memory, state["lines"])
            for number, ends in enumerate(
                self._parts("edges", parts, source.lengths(self.memory)[1], 0), start=1
            ):
                spill.add(*look_up(ends))
                if number % _NOTE_EVERY["edges"] == 0 and source.is_repeatable:
                    spill.sync()
                    self._note()
            spill.sync()
        finally:
            spill.close()

    def _look_up(self) -> Callable[[Any], tuple[Any, Any]]:
        """What gives the rows of both ends of edges, or refuses them."""
        from graphveil.data.store_index import Ids, Index

        source, number = self.source, self.state["nodes"]["rows"]
        index = None
        if source.has_ids:
            ids = Ids(self.place, text=bool(self.state["nodes"].get("id_text")))
            index = Index(ids, self.work, self.state["index"]["seed"], self.memory)

        def look_up(ends: Any) -> tuple[Any, Any]:
            rows = []
            for side, keys in zip(source.ends, ends[2:], strict=True):
                if index is None:
                    places = np.where((keys >= 0) & (keys < number), keys, -1)
                else:
                    places = index.look_up(keys)
                if len(places) and places.min() < 0:
                    _refuse_unknown(source, ends, side, keys, int(np.argmax(places < 0)))
                rows.append(places)
            return rows[0], rows[1]

        return look_up

    def _pass_order(self) -> None:
        from graphveil.data.frames import say_odd_lines
        from graphveil.data.store_edges import Ranges, write_range
        from graphveil.data.store_nodes import Arrays

        edges, source = self.state["edges"], self.source
        state = self.state.setdefault("order", {"ranges": 0, "written": 0, "arrays": {}})
        ranges = Ranges(self.work, self.state["nodes"]["rows"])
        for number in range(state["ranges"]):
            ranges.path(number).unlink(missing_ok=True)
        arrays = Arrays(self.place, state["arrays"])
        offsets, receivers = arrays.get("offsets", np.int64), arrays.get("receivers", np.int32)
        try:
            if offsets.rows == 0:
                offsets.append(np.zeros(1, np.int64))
            noted = receivers.rows
            ranges.check(edges["sizes"], state["ranges"])
            for number in self.track("sorting edges", range(state["ranges"], ranges.count)):
                state["written"] += write_range(ranges, number, offsets, receivers, self.memory)
                if receivers.rows - noted >= _NOTE_MESSAGES:
                    self._note_ranges(arrays, ranges, number + 1)
                    noted = receivers.rows
            self._note_ranges(arrays, ranges, ranges.count)
            arrays.finish()
        finally:
            arrays.close()
        state["repeats"] = _count_repeats(
            edges["lines"] - edges["loops"], state["written"], receivers.rows, source.mirror
        )
        say_odd_lines(source.edges_where, edges["loops"], state["repeats"])

    def _note_ranges(self, arrays: Any, ranges: Any, done: int) -> None:
        """Note that so many ranges are written, whose files nobody needs any more."""
        state = self.state["order"]
        before, state["ranges"] = state["ranges"], done
        arrays.note()
        self._note()
        for number in range(before, done):
            ranges.path(number).unlink()

    def _pass_checksums(self) -> None:
        nodes, facts = self.state["nodes"], self.state["nodes"]["facts"]
        grown = {**nodes["arrays"], **self.state["order"]["arrays"]}
        names = [name for name in ARRAYS if name in grown]
        if self.state["nodes"]["notes"].get("labels"):
            names.append("y")
        arrays = {}
        for name in self.track("computing checksums", names):
            path = array_path(self.place, name)
            array = np.load(path, mmap_mode="r" if path.stat().st_size > 128 else None)
            arrays[name] = ArrayFacts(str(array.dtype), array.shape, sha256_of(path))
        width = nodes["width"] if "x_values" in arrays else arrays["x"].shape[1]
        manifest = Manifest(
            num_nodes=nodes["rows"],
            num_features=width,
            num_messages=arrays["receivers"].shape[0],
            arrays=arrays,
            directed=self.source.directed,
            owner=(facts.get("schema") or {}).get("owner"),
            source=self.source.name,
            loops_removed=self.state["edges"]["loops"],
            repeats_removed=self.state["order"]["repeats"],
            **{name: facts[name] for name in facts if name not in ("directed",)},
        )
        for name in ARRAYS:
            if name not in arrays:  # ids that turned out to be text
                array_path(self.place, name).unlink(missing_ok=True)
        manifest.write(self.place)
        shutil.rmtree(self.work, ignore_errors=True)


class _Sized:
    """Parts with a number of them, if it is known, for bars of progress."""

    def __init__(self, parts: Iterable[Any], length: int | None) -> None:
        self._parts, self._length = parts, length

    def __iter__(self) -> Iterator[Any]:
        return iter(self._parts)

    def __length_hint__(self) -> int:
        return length_hint(self._parts) if self._length is None else self._length


def _count_repeats(lines: int, written: int, messages: int, mirror: bool) -> int:
    """How many lines repeat another; that a friendship is told from both sides is nothing odd."""
    if mirror and written < messages:
        return lines - messages // 2
    return lines - written


def _refuse_twice(where: Any, ids: Any, row: int, column: str, rule: str, way_out: str) -> None:
    import pandas as pd

    from graphveil.data import _tables
    from graphveil.data.store_texts import as_texts

    text = as_texts(ids.part(row, row + 1)).text(0)
    with _tables.counting_rows(row):
        value = pd.Series([text if ids.is_text else int(text)], name=column)
        _tables.check_cells(where, value, pd.Series([True]), rule, way_out)


def _refuse_unknown(source: Source, ends: Any, side: str, keys: Any, place: int) -> None:
    """Refuse an end of an edge that is no node."""
    import pandas as pd

    from graphveil.data import _tables
    from graphveil.data.store_texts import Texts

    value = keys.text(place) if isinstance(keys, Texts) else int(keys[place])
    rule, way_out = f"an id in {Path(str(source.where)).name}", "add the node or drop the edge"
    if not source.has_ids:
        rule = "the number of a node"
    with _tables.counting_rows(ends.before + place):
        cell = pd.Series([value], name=side)
        _tables.check_cells(ends.where, cell, pd.Series([True]), rule, way_out)


# --- places ---------------------------------------------------------------------------------------


def _place_for(out: Path, force: bool) -> Path:
    """Where to build: in ``out``, or beside a finished store that is to be replaced."""
    if str(out) in ("", "."):
        raise InvalidInputError("The 'out' parameter must name the directory of the store.")
    if is_store(out):
        if not force:
            raise _is_there(out)
        return out.absolute().with_name(f".{out.absolute().name}.partial")
    if out.exists() and not out.is_dir():
        raise InvalidInputError(f"{out} cannot be a directory for a store; choose another.")
    ours = {BUILDING, *(f"{name}.npy" for name in ARRAYS)}
    others = sorted(p.name for p in out.iterdir() if p.name not in ours) if out.is_dir() else []
    if others:
        raise InvalidInputError(
            f"The directory {out} must be new, empty, or an unfinished store. Got one with "
            f"{others[0]!r} instead; choose another."
        )
    return out


def _is_there(out: Path) -> InvalidInputError:
    return InvalidInputError(
        f"The store {out} is there and is not written over; choose another name, or use --force."
    )


def _clear(place: Path) -> None:
    """Remove what an unfinished build left, but for its lock."""
    for name in ARRAYS:
        array_path(place, name).unlink(missing_ok=True)
    for path in (place / BUILDING).iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != LOCK:
            path.unlink()


def _swap(place: Path, out: Path) -> None:
    """Put a finished store in the place of another."""
    old = out.absolute().with_name(f".{out.absolute().name}.old")
    if old.exists():
        shutil.rmtree(old)
    out.rename(old)
    place.rename(out)
    shutil.rmtree(old)


@contextlib.contextmanager
def _locked(place: Path) -> Iterator[None]:
    from filelock import FileLock, Timeout

    lock = FileLock(place / BUILDING / LOCK, timeout=0, mode=0o600)
    try:
        lock.acquire()
    except Timeout:
        raise InvalidInputError(
            f"The store {place} is being built by another process; wait for it, or end it."
        ) from None
    try:
        yield
    finally:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            lock.release()


@contextlib.contextmanager
def _writing(out: Path) -> Iterator[None]:
    """Say in one line that the store cannot be written."""
    try:
        yield
    except OSError as error:
        raise InvalidInputError(
            f"The store {out} cannot be written ({error.strerror or error}); make room or choose "
            f"another place: {_GOES_ON}."
        ) from None
    except EOFError as error:
        raise InvalidInputError(f"{error}; use --force to start anew.") from None
