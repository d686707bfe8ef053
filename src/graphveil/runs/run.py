"""A run: a directory with what was asked for, what was trained, and what it cost.

run = Run("runs/ward")
metrics = run.train(DPGNN(epsilon=8.0), Source(data="ward"))
method = run.read()                       # fitted, with its certificate
method, chances = run.predict(data)       # a charge is on disk before they are returned
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphveil import processes
from graphveil._errors import InvalidInputError
from graphveil._files import partial_name
from graphveil._inputs import at_home
from graphveil.data.schema import Schema
from graphveil.methods import Method
from graphveil.methods.checkpoint import Checkpoint
from graphveil.runs import record as _record
from graphveil.runs.charging import Spending, for_prediction, read_note
from graphveil.runs.files import behind_links, locked, log, unusable
from graphveil.runs.record import Asked, Record, read_record
from graphveil.runs.source import Arranged, Source

if TYPE_CHECKING:
    from torch import Tensor
    from torch_geometric.data import Data

    from graphveil.methods.embedding import Embedding
    from graphveil.methods.link_scoring import Recommendations
    from graphveil.privacy.guarantee import Certificate

FINGERPRINT, KEY = "data.sha256", "data.key"


class Run:
    """The run in a directory, be it new, unfinished or finished. Reading changes nothing."""

    def __init__(self, directory: str | Path) -> None:
        self.directory = behind_links(directory)

    def __repr__(self) -> str:
        return f"Run({str(self.directory)!r})"

    # --- what is there ---------------------------------------------------------------------------

    def has(self, name: str) -> bool:
        """Whether a file of the run is there."""
        return (self.directory / name).exists()

    @property
    def checkpoint(self) -> Checkpoint:
        """The releases of an unfinished run."""
        return Checkpoint(self.directory / _record.CHECKPOINT)

    @property
    def state(self) -> str:
        """``new``, ``unfinished`` or ``finished``; other things in the directory are refused."""
        directory = self.directory
        try:
            if not directory.exists():
                return "new"
            if not directory.is_dir():
                raise InvalidInputError(f"A run must be a directory. {directory} is a file.")
            names = {path.name for path in directory.iterdir()}
        except OSError as error:
            raise unusable(directory, error) from error
        written = (
            *_record.FILES, _record.CACHE, _record.LEDGER, _record.AUDIT, _record.LOSSES,
            *_record.PUBLISHED,
        )  # fmt: skip
        ours = {*written, *(partial_name(name) for name in written)}
        if self.checkpoint.directory.is_dir():
            ours.add(_record.CHECKPOINT)
        if foreign := sorted(names - ours):
            raise InvalidInputError(
                f"The directory {directory} must be new, empty or a run. Got one that holds "
                f"{foreign[0]!r} instead; choose another."
            )
        if _record.CERTIFICATES[-1] in names:
            return "finished"
        if names & {_record.SETTINGS, _record.LEDGER}:
            return "unfinished"
        begun = {_record.SETTINGS, _record.LEDGER, _record.PLAN}
        unused = {_record.CHECKPOINT} if not self.checkpoint.begun else set()
        harmless = {partial_name(name) for name in begun} | {_record.PLAN, _record.LOG} | unused
        if names - harmless:
            raise InvalidInputError(
                f"The run in {directory} has no settings.json, so nobody can say what it is; move "
                "it away, or choose another directory."
            )
        return "new"

    @property
    def state_of_run(self) -> str:
        """The :attr:`state` of what should be a run; a directory that is none is called so."""
        known = (*_record.FILES, _record.LEDGER)
        if self.directory.is_dir() and not any(self.has(name) for name in known):
            raise InvalidInputError(
                f"{self.directory} is not a run; name a directory that 'graphveil train --out' has "
                "made."
            )
        return self.state

    @property
    def lost(self) -> bool:
        """Whether a run that is not trained has no checkpoint, which comes with its settings."""
        begun = self.has(_record.SETTINGS) and not self.has(_record.EVENTS)
        noted = self.directory / _record.CHECKPOINT / FINGERPRINT
        return begun and (not noted.exists() or self.checkpoint.lost)

    @property
    def begun(self) -> bool:
        """Whether files know of a release, or cannot know of one any more.

        A run that is charged to a ledger has begun when the ledger says so, whatever its files say.
        """
        return self.lost or self.checkpoint.begun

    @property
    def searching(self) -> bool:
        """Whether trials on the private data were begun here; nothing of them is kept."""
        if not self.has(_record.SETTINGS):
            return False
        tuning = Asked.read(self.directory).tuning
        return tuning is not None and tuning.get("scores") != "public-data"

    def charged_to(self) -> dict[str, str] | None:
        """The ledger, account and reservation of a run; None for a run without."""
        return read_note(self.directory)

    def was_charged(self) -> bool:
        """Whether a trained run was charged to a ledger, which a copy of it need not name."""
        return _record.read_reservation(self.directory) is not None

    # --- before training -------------------------------------------------------------------------

    def check(self, *, resume: bool = False, force: bool = False) -> None:
        """Refuse a directory that :meth:`train` would refuse; before any data is loaded."""
        if self.state == "unfinished":
            with locked(self.directory):
                pass  # who trains there now is told apart from who was killed there
        self.check_state(resume=resume, force=force)

    def check_state(self, *, resume: bool = False, force: bool = False) -> None:
        """As :meth:`check`, for whoever holds the lock."""
        directory, state = self.directory, self.state
        if resume and force:
            raise InvalidInputError("Give either 'resume' or 'force': go on, or start anew.")
        if state == "finished" and not force:
            raise InvalidInputError(
                f"The run in {directory} is finished and is not written over; choose another "
                "directory, or replace it with --force."
            )
        if state == "unfinished" and not force:
            self._check_unfinished(resume)
        places = (directory, *directory.absolute().parents)
        nearest = next(path for path in places if path.exists())
        if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
            raise InvalidInputError(
                f"The directory {directory} must be one that can be written. {nearest} cannot; "
                "choose another."
            )

    def _check_unfinished(self, resume: bool) -> None:
        directory = self.directory
        if not resume:
            raise InvalidInputError(
                f"The run in {directory} was begun and not finished; {self._way_on()}."
            )
        if self.searching:
            raise InvalidInputError(
                f"The tuning run in {directory} cannot go on: how many trials it had begun is kept "
                "nowhere. What it may have spent stays spent; start anew with --force."
            )
        if self.lost:
            raise InvalidInputError(
                f"The run in {directory} cannot go on: its {_record.CHECKPOINT} is gone, and how "
                "many steps it took is kept nowhere else. What it may have spent stays spent; "
                "start anew with --force."
            )

    def _way_on(self) -> str:
        """What can be done about a run that was begun and not finished."""
        anew = "start anew with --force"
        if self.searching:
            return f"a tuning run cannot go on: {anew}"
        return f"go on with --resume, or {anew}"

    # --- training --------------------------------------------------------------------------------

    def train(
        self,
        method: Method,
        source: Source,
        *,
        arranged: Arranged | None = None,
        resume: bool = False,
        force: bool = False,
        ledger: str | Path | None = None,
        account: str | None = None,
        **how: Any,
    ) -> dict[str, Any]:
        """Fit ``method`` here, and return its metrics.

        Without ``arranged`` the data of ``source`` is loaded. An unfinished run goes on with
        ``resume``, under the same settings and on the same data. A run that is there is replaced
        with ``force``; it is kept beside, as ``.NAME.replaced``, until the new one is finished.

        With a ``ledger`` the run is charged to an ``account`` of it: reserved before data is
        loaded, settled when it is trained. Data must then come from ``source``.

        Further keywords: ``progress`` shows it; ``tuning`` says how the settings were chosen, see
        graphveil.tuning; ``notify`` is told what its owner should know, such as that the account
        has not seen this version of the data; with ``private_losses`` the training loss of every
        step is written down, in the open: the file stays with whoever holds the data.

        Of several processes (:mod:`graphveil.processes`) rank 0 does all this; the others compute
        their shares, and return no metrics. They may not be given what is ``arranged``.

        *Guarantee*: that of the method. The certificate counts every step ever begun; so does the
        ledger, at every moment.
        """
        from graphveil.runs.ranks import follow
        from graphveil.runs.training import Training

        if not processes.current().first:
            follow(self.directory, method, source)
            return {}
        training = Training(self, method, source, ledger=ledger, account=account, **how)
        return training.run(arranged, resume=resume, force=force)

    def write(self, method: Method, source: Source, arranged: Arranged) -> dict[str, Any]:
        """Write a method that was fitted elsewhere as a finished run, and return its metrics."""
        from graphveil.runs.training import write_fitted

        return write_fitted(self, method, source, arranged)

    # --- reading ---------------------------------------------------------------------------------

    def record(self) -> Record:
        """What the files of a finished run say, each of them checked; without torch.

        A file that is missing, cut short, garbled or another run's is refused in one line.
        """
        if (state := self.state_of_run) != "finished":
            way = self._way_on() if state == "unfinished" else "check the path"
            raise InvalidInputError(f"There is no finished run in {self.directory}; {way}.")
        return read_record(self.directory)

    def read(self) -> Method:
        """The fitted method of a finished run."""
        return restore(self.record())

    def arrange(self, root: str | None = None) -> Arranged:
        """The run's data, loaded and split as for training; raw data may be elsewhere now."""
        asked = Asked.read(self.directory)
        source = replace(asked.source, schema=self._schema_for(asked, asked.source.data))
        source = source if root is None else replace(source, root=root)
        return source.arrange(self.put_in_order(source.load()))

    def load(self, data: str, root: str | None = None) -> Data:
        """Data to predict on, with the classes that the run has; others are refused.

        Tables are read by the run's schema, if it has one; another beside them is refused. Of a run
        on links the edges of a graph are taken for links, as in training.

        *Guarantee*: none; loading is not releasing.
        """
        asked = Asked.read(self.directory)
        graph = self._load(asked, data, root)
        if asked.source.link is None:
            return graph
        from graphveil.graph.links import edges_as_links

        return edges_as_links(graph)

    def _load(self, asked: Asked, data: str, root: str | None) -> Data:
        from graphveil.data.catalog import CATALOG, load
        from graphveil.data.classes import Notice
        from graphveil.data.store_format import is_store
        from graphveil.data.typed_schema import is_typed_place

        plan = _record.read_plan(self.directory)
        schema = self._schema_for(asked, data)
        schema = None if schema is None else schema.for_prediction()
        typed = asked.source.typed if is_typed_place(at_home(data)) else {}
        if asked.source.min_class is not None:
            from graphveil.graph.splits import take_classes

            stated = {"classes": asked.source.classes, "directed": asked.source.directed}
            whole = load(data, root, schema=schema, **stated, **typed)
            return take_classes(whole, asked.class_names or [])
        if data.partition(":")[0] in CATALOG:
            return load(data, root)
        if is_store(at_home(data)):  # whose manifest has its classes
            return load(data, root, directed=asked.source.directed)
        known = asked.class_names or plan.facts.num_classes
        if schema is not None and schema.label is not None:
            return load(data, root, directed=asked.source.directed, schema=schema, **typed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Notice)  # the statement is the run's
            directed = asked.source.directed
            return load(data, root, classes=known, directed=directed, schema=schema, **typed)

    def _schema_for(self, asked: Asked, data: str) -> Schema | None:
        """The run's schema where ``data`` are tables; one beside them must say the same.

        It is not asked where the run was trained by a schema that was named.
        """
        from graphveil.data.catalog import CATALOG
        from graphveil.data.schema import schema_beside

        folder = at_home(data)
        if data.partition(":")[0] in CATALOG or not folder.is_dir():
            return None
        beside = None if asked.source.schema is not None else schema_beside(folder)
        if beside is not None and beside.typed is not None:
            beside = beside.typed.stating(**asked.source.typed).as_schema()
        if beside is not None:
            what = f"The tables in {folder} must be read as the run in {self.directory} says: it"
            check_schema(asked.schema, beside.to_dict(), what)
        return None if asked.schema is None else Schema.from_dict(asked.schema)

    def put_in_order(self, data: Data) -> Data:
        """``data`` with its feature columns in the order of the run's, by their names.

        Where the run or the data has no names they are taken as they come.
        """
        from graphveil.graph.columns import put_in_order

        wanted = Asked.read(self.directory).columns
        return put_in_order(data, wanted, f"the run in {self.directory}")

    # --- predicting ------------------------------------------------------------------------------

    def predict(
        self,
        data: Data | Callable[[], Data],
        *,
        mode: str | None = None,
        epsilon: float | None = None,
        ledger: str | Path | None = None,
        account: str | None = None,
        on_charge: Callable[[dict[str, str]], None] | None = None,
        notify: Callable[[str], None] = warnings.warn,
    ) -> tuple[Method, Tensor]:
        """The method and its class probabilities; a charge is on disk before they are returned.

        Without a ``mode``, what the method does on the graph it was trained on. ``data`` may be a
        function that loads it. A noisy prediction of a run that was charged to a ledger is charged
        to the same account, unless another is named: reserved before data is loaded. ``on_charge``
        is told which ``ledger``, ``account`` and ``reservation`` it was, if it was one, and
        ``notify`` what its owner should know.

        *Guarantee*: what the mode promises stands on the run's certificate afterwards.
        """

        def load() -> Data:
            from torch_geometric.data import Data

            # Data can be called, too, and then lists what it holds.
            return self.put_in_order(data if isinstance(data, Data) else data())

        if mode != "noisy" and (ledger is not None or account is not None):
            raise InvalidInputError(
                f"Only the mode 'noisy' is charged to a ledger. Got {mode!r} with one instead; "
                "leave --ledger and --account out."
            )
        if mode is None:  # what the certificate says from the start
            method = self.read()
            return method, method.predict_proba(load(), epsilon=epsilon)
        _ = self.state_of_run  # a path that is no run is refused by name
        try:
            with locked(self.directory):
                method = self.read()
                # A crash just before the end leaves it, and in it the hash of the data.
                shutil.rmtree(self.checkpoint.directory, ignore_errors=True)
                spending = None
                if mode == "noisy":
                    spending = for_prediction(self.directory, ledger, account, notify)
                chances = self._predict(method, load, mode, epsilon, spending)
                if spending is not None:
                    log(self.directory, f"noisy prediction, settled {spending.id}")
                    if on_charge is not None:
                        on_charge(spending.place())
        except FileNotFoundError:
            raise InvalidInputError(
                f"There is no run in {self.directory}; check the path."
            ) from None
        except OSError as error:
            raise unusable(self.directory, error) from error
        return method, chances

    def _predict(
        self,
        method: Method,
        load: Callable[[], Data],
        mode: str,
        epsilon: float | None,
        spending: Spending | None,
    ) -> Tensor:
        before = method.certificate_
        with _reserve(method, epsilon, spending, load) as graph:
            chances = method.predict_proba(graph, mode=mode, epsilon=epsilon)
            self._certify(method, before)
        return chances

    def _certify(self, method: Method, before: Certificate) -> None:
        """Write the certificate anew, with its charges, if it is another than ``before``."""
        if method.certificate_ == before:
            return
        events = _record.read_json(self.directory / _record.EVENTS)
        hashes = {
            name: value
            for name, value in events.items()
            if name.endswith("_sha256") or name == "reservation"
        }
        _record.write_events(self.directory, method, hashes)
        _record.write_certificate(self.directory, method.certificate_)

    # --- recommendation --------------------------------------------------------------------------

    def recommend(
        self, data: Data, *, top: int = 10, sources: Sequence[int] | None = None
    ) -> tuple[Any, Recommendations]:
        """The method, and the ``top`` targets of each source of ``data``, or of some.

        *Guarantee*: what the ``seen_by`` of the answer says; nothing is charged.
        """
        method: Any = self.read()
        if method.record != "link":
            raise InvalidInputError(
                f"The run must have learnt links to recommend by. Got {self.directory}, whose "
                f"records are {method.record}s, instead; predict them."
            )
        return method, method.recommend(self.put_in_order(data), top=top, sources=sources)

    # --- embedding -------------------------------------------------------------------------------

    def embed(
        self, data: Data | Callable[[], Data], *, mode: str | None = None, of: str | None = None
    ) -> tuple[Method, Embedding]:
        """The method and its embeddings of ``data``, which may be a function that loads it.

        A ``mode`` that the certificate does not name yet is written there before this returns.

        *Guarantee*: what the embedding's ``seen_by`` says; nothing is charged.
        """
        from torch_geometric.data import Data

        _ = self.state_of_run  # a path that is no run is refused by name
        if mode is None:  # what the certificate says from the start
            method = self.read()
            graph = self.put_in_order(data if isinstance(data, Data) else data())
            return method, method.embed(graph, of=of)
        try:
            with locked(self.directory):
                method = self.read()
                before = method.certificate_
                graph = self.put_in_order(data if isinstance(data, Data) else data())
                embedding = method.embed(graph, mode, of=of)
                self._certify(method, before)
        except FileNotFoundError:
            raise InvalidInputError(
                f"There is no run in {self.directory}; check the path."
            ) from None
        except OSError as error:
            raise unusable(self.directory, error) from error
        return method, embedding


def check_schema(then: Mapping[str, Any] | None, now: Mapping[str, Any] | None, what: str) -> None:
    """Refuse another schema ``now`` than a run was trained by, and name the first difference."""
    if then == now:
        return
    if then is None or now is None:
        old, new = ("no", "one") if then is None else ("a", "none")
        raise InvalidInputError(
            f"{what} was trained with {old} schema. Got {new} instead; take the same, or train "
            "anew."
        )
    first = Schema.from_dict(then).difference(Schema.from_dict(now))
    raise InvalidInputError(
        f"{what} was trained with another schema: {first}. Take the same, or train anew."
    )


def restore(record: Record) -> Method:
    """The fitted method of a record: weights and cache loaded, nothing planned again."""
    import safetensors.torch

    method, directory = record.asked.make(), record.directory
    with _record.reading(directory, _record.MODEL):
        network = method.build(record.plan.facts)
        network.load_state_dict(safetensors.torch.load((directory / _record.MODEL).read_bytes()))
    if "cache_sha256" in record.hashes:
        with _record.reading(directory, _record.CACHE):
            sums = safetensors.torch.load((directory / _record.CACHE).read_bytes())
            method.cache_ = sums["sums"]  # type: ignore[attr-defined]
            ids = sums.get("ids")
            method.cache_ids_ = (  # type: ignore[attr-defined]
                None if ids is None else json.loads(bytes(ids.tolist()))
            )
    method.restore(
        record.plan,
        network,
        list(record.charges),
        record.void_because,
        record.inference,
        record.certificate,
    )
    asked = record.asked
    method.put_names(asked.class_names, asked.columns, asked.schema)
    if record.reservation is not None:
        method.reservation_ = record.reservation  # type: ignore[attr-defined]
    return method


@contextlib.contextmanager
def _reserve(
    method: Method, epsilon: float | None, spending: Spending | None, load: Callable[[], Data]
) -> Iterator[Data]:
    """Reserve a noisy prediction, load its data, and settle to what was charged for it."""
    if spending is None or epsilon is None or "noisy" not in method.modes:
        yield load()  # nothing to charge, or refused in words of its own
        return
    before = len(method.charges_)
    spending.reserve_prediction(method, epsilon)
    try:
        graph = load()
        method.readable(graph)  # refused while it costs nothing
        spending.reserve_prediction(method, epsilon, graph)
        spending.begin()
        yield graph
    except (Exception, KeyboardInterrupt) as error:
        if spending.give_back():  # which what has begun is not
            error.add_note("Nothing was released or charged.")
        else:
            stays = f"stays charged to the account {spending.account!r}"
            error.add_note(f"The noisy prediction may have been released: it {stays}.")
        raise
    spending.settle(method.charges_[before:])
