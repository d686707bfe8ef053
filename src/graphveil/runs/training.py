"""Train into a directory: reserved before data, charged for every step, whole after a crash."""

from __future__ import annotations

import contextlib
import json
import math
import secrets
import shutil
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphveil._errors import InvalidInputError
from graphveil._files import open_file, private_directory, sync, write_file
from graphveil.methods import Method, Plan
from graphveil.methods.checkpoint import Checkpoint
from graphveil.methods.owners import count_owners
from graphveil.privacy.ledger_state import count_events, count_releases, keyed_hash
from graphveil.runs import charging
from graphveil.runs import record as _record
from graphveil.runs.charging import Spending, kept_beside, read_note, refuse_uncharged
from graphveil.runs.files import locked, log, unusable, write_json
from graphveil.runs.ranks import lead
from graphveil.runs.record import Asked
from graphveil.runs.run import FINGERPRINT, KEY, Run, check_schema, restore
from graphveil.runs.source import Arranged, Source, schema_of

if TYPE_CHECKING:
    from torch_geometric.data import Data

    from graphveil._progress import Progress

NOTHING = "Nothing was released or charged."
_ELSEWHERE = (
    "data",
    "root",
    "split",
    "schema",
)  # of a source: may differ, or is compared by itself
_PRIVATE = "training losses, read off records without noise; no certificate covers them"


class Training:
    """One attempt to train a run; see :meth:`graphveil.runs.run.Run.train`."""

    def __init__(
        self,
        run: Run,
        method: Method,
        source: Source,
        *,
        ledger: str | Path | None = None,
        account: str | None = None,
        progress: Progress | None = None,
        tuning: Mapping[str, Any] | None = None,
        private_losses: bool = False,
        notify: Callable[[str], None] = warnings.warn,
    ) -> None:
        self.of, self.directory, self.method, self.source = run, run.directory, method, source
        self.ledger, self.account, self.notify = ledger, account, notify
        self.progress, self.tuning, self.private_losses = progress, tuning, private_losses
        self.plans = charging.Plans(method)
        self.spending: Spending | None = None
        self.fitting = False

    def run(
        self, arranged: Arranged | None, *, resume: bool = False, force: bool = False
    ) -> dict[str, Any]:
        """Fit, and return the metrics."""
        run, directory = self.of, self.directory
        run.check(resume=resume, force=force)
        charged = self.ledger is not None or (resume and read_note(directory) is not None)
        if force and not charged:
            refuse_uncharged(directory)
        if charged and arranged is not None:
            raise InvalidInputError("What is charged to a ledger must load its data itself.")
        if not charged:
            arranged = self._load_uncharged(arranged, resume)
        aside, created, start = kept_beside(directory), not directory.exists(), time.monotonic()
        try:
            if force and run.state != "new":
                set_aside(run, aside)
            private_directory(directory)
            with locked(directory):
                run.check_state(resume=resume)  # again: now nobody else can change it
                try:
                    log(directory, f"{'goes on' if resume else 'begun'}: {self.method.name}")
                    arranged = self._fit(arranged)
                except (Exception, KeyboardInterrupt) as error:
                    self._explain(error, resume, aside, created)
                    raise
                log(directory, "trained")
                metrics = measure(self.method, arranged)
                metrics["seconds"] = round(time.monotonic() - start, 3)
                finish(directory, self.method, metrics, self.spending)
            discard(aside)
        except OSError as error:
            raise unusable(directory, error) from error
        except KeyboardInterrupt as error:
            if not hasattr(error, "__notes__") and run.state == "unfinished":
                error.add_note(f"The run in {directory} is trained, and is finished with --resume.")
            raise
        return metrics

    # --- data, and what it will cost -------------------------------------------------------------

    def _load_uncharged(self, arranged: Arranged | None, resume: bool) -> Arranged:
        """Data of a run without a ledger; refused before anything is set aside."""
        if arranged is None:
            expected = None if resume else self.source.expected()
            if expected is not None:
                # A bad setting is refused before any data is touched.
                self.plans.for_facts(expected)
            arranged = self.source.arrange(self.source.load())
        if not resume:
            self.plans.on(arranged.training)
        return arranged

    def _load_charged(self, spending: Spending) -> Arranged:
        """Data of a run with a ledger, after what it will cost is reserved."""
        if self.of.has(_record.SETTINGS):
            self._check_method()  # before prices, which do not say what differs
            self.plans.know(_record.read_plan(self.directory))  # what runs is what is reserved
        reserved = spending.reservation()
        begun = (reserved is not None and reserved.begun) or self.of.has(_record.EVENTS)
        if begun and not self.of.has(_record.SETTINGS):
            raise InvalidInputError(
                f"The run in {self.directory} has begun, and its {_record.SETTINGS} is gone: "
                "nobody can say what it runs. What it may have released stays charged; put the "
                "file back, or start anew with --force."
            )
        if not begun:
            spending.reserve_unseen(self.plans, self.source)
            log(self.directory, f"reservation {spending.id} in account {spending.account!r}")
        data = self.source.load()
        arranged = self.source.arrange(data)
        if begun:
            plan = _record.read_plan(self.directory)
            spending.check_same(plan, data)
        else:
            spending.reserve_seen(self.plans, self.plans.facts_of(arranged.training), data)
        log(self.directory, "data loaded")
        return arranged

    # --- fit -------------------------------------------------------------------------------------

    def _fit(self, arranged: Arranged | None) -> Arranged:
        """Reserve, load, and run the plan; one that was begun goes on with its own plan."""
        from graphveil.grads.journal import Nobody

        run, directory, method = self.of, self.directory, self.method
        purpose = f"training, {method.name}"
        self.spending = charging.begun(
            directory, purpose, self.ledger, self.account, run.begun, self.notify
        )
        if self.spending is not None:
            arranged = self._load_charged(self.spending)
        assert arranged is not None
        plan = self._prepare(arranged)
        if run.has(_record.EVENTS):
            self.method = restore(_record.read_record(directory, finished=False))
            vars(method).update(vars(self.method))  # whoever gave it has the fitted one
            _check_counted(run, method)
            lead(None)
            return arranged
        lead(plan, arranged.training)
        self.fitting = True
        if self.spending is not None:
            self.spending.begin(directory)
        witness = Nobody() if self.spending is None else self.spending
        with _write_losses(directory, self.private_losses) as note:
            method.run(
                plan,
                arranged.training,
                checkpoint=Checkpoint(directory / _record.CHECKPOINT, witness),
                progress=self.progress,
                on_loss=note,
            )
        return arranged

    def _prepare(self, arranged: Arranged) -> Plan:
        """Have settings, plan and the data's fingerprint on disk, or compare with those there."""
        run, directory, data = self.of, self.directory, arranged.training
        checkpoint = directory / _record.CHECKPOINT
        private_directory(checkpoint)
        checkpoint.chmod(0o700)  # an earlier version left it open
        if not run.has(_record.SETTINGS):
            Checkpoint(checkpoint).open()
        noted, fingerprint = checkpoint / FINGERPRINT, self._fingerprint(data, checkpoint)
        if run.has(_record.SETTINGS):
            self._check_method()
            plan = _record.read_plan(directory)
            self._check_source(plan, data)
            known = noted.read_text() if noted.exists() else None
            if known != fingerprint and (known is not None or run.begun):
                raise InvalidInputError(
                    f"The run in {directory} was begun on other data, on another split of it, or "
                    "by an earlier version; resume with the same, or start anew with --force."
                )
            return plan
        asked = _describe(self.method, self.source, arranged, self.tuning)
        plan = self.plans.on(data)
        if self.tuning is not None:
            plan = plan.resting_on(**self.tuning["rests_on"])
        # A function of private data: it stays in the checkpoint, which is not part of a finished
        # run. Before the settings: a run that has these and not this has lost its checkpoint.
        write_file(noted, fingerprint.encode(), private=True)
        asked = replace(asked, plan_sha256=_record.write_plan(directory, plan))
        write_json(directory / _record.SETTINGS, asked.to_json())
        return plan

    def _check_method(self) -> None:
        """Refuse to go on with another method, or with other settings."""
        before = Asked.read(self.directory)
        now = _record.as_plain({**self.method.get_params(), "method": self.method.name})
        self._check_same({**before.settings, "method": before.method}, now)

    def _check_source(self, plan: Plan, data: Data) -> None:
        """Refuse to go on with data of other sizes, or that is split or read in another way."""
        before = Asked.read(self.directory)
        now = count_owners(self.method, self.plans.facts_of(data))
        check_schema(before.schema, _plain_schema(data), f"The run in {self.directory}")
        # What decides who is trained on, and how classes and edges are read.
        names = [name for name in vars(self.source) if name not in _ELSEWHERE]
        then = {name: getattr(before.source, name) for name in names} | vars(plan.facts)
        same = {name: getattr(self.source, name) for name in names} | vars(now)
        self._check_same(_record.as_plain(then), _record.as_plain(same))

    def _check_same(self, then: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        for name in sorted(then.keys() | now.keys()):
            if then.get(name) != now.get(name):
                raise InvalidInputError(
                    f"The run in {self.directory} was begun with {name} = {then.get(name)!r}. Got "
                    f"{now.get(name)!r} instead; resume with the same, or start anew with --force."
                )

    def _fingerprint(self, data: Data, checkpoint: Path) -> str:
        """A hash of the data and its split, keyed with a secret of the ledger, or of the run."""
        from graphveil.graph.checks import MASKS
        from graphveil.graph.links import LINK_MASKS, OF_LINKS

        if self.spending is not None:
            digest = self.spending.ledger.read().fingerprint_hash()
        else:
            key = checkpoint / KEY
            if not key.exists():
                write_file(key, secrets.token_hex(32).encode(), private=True)
            digest = keyed_hash(key.read_text())
        names = ("x", "edge_index", "y", *MASKS, "batch", "owner", *OF_LINKS, *LINK_MASKS)
        from graphveil.graph.contents import content_hash

        return content_hash(data, names, digest)

    # --- what is left of a run that stopped ------------------------------------------------------

    def _explain(self, error: BaseException, resume: bool, aside: Path, created: bool) -> None:
        """Undo what released nothing; else say what stays charged, and how it goes on."""
        directory, spending = self.directory, self.spending
        with contextlib.suppress(OSError):  # on a full disk that is not to hide why
            log(directory, f"stopped: {type(error).__name__}")
        # What is charged is not asked of the disk, where somebody may have removed it.
        released = self.fitting and (spending is not None or self.of.begun)
        if not resume and not released and (spending is None or spending.give_back()):
            undo(directory, aside, created)
            error.add_note(NOTHING)
            return
        steps, way = "", "cannot go on: its index is gone; start anew with --force"
        with contextlib.suppress(InvalidInputError):  # which is not to hide why, either
            steps, way = f"{self.of.checkpoint.steps_begun()} ", "goes on with --resume"
        if spending is not None:
            what = "its reservation" if not released and steps == "0 " else "all that it reserved"
            stays = f"stays charged to the account {spending.account!r} with {what}"
        else:
            stays = f"counts the {steps}steps that it began"
        error.add_note(f"The run in {directory} {stays}, and {way}.")


def measure(method: Method, arranged: Arranged) -> dict[str, Any]:
    """The figures of a fitted method on test records: read off labels, outside the certificate."""
    if method.record == "link":
        from graphveil.methods.link_task import measure_fitted

        return measure_fitted(method, method.readable(arranged.testing))
    chances = method.infer(arranged.testing, arranged.mode)
    task = method.task(method.plan_.facts)
    return task.measure_test(chances, arranged.testing, method.record)


def write_fitted(run: Run, method: Method, source: Source, arranged: Arranged) -> dict[str, Any]:
    """Write a method that was fitted elsewhere as a finished run, and return its metrics."""
    run.check()
    metrics = measure(method, arranged)
    try:
        private_directory(run.directory)
        with locked(run.directory):
            run.check_state()
            write_asked(run.directory, method, source, arranged)
            finish(run.directory, method, metrics)
    except OSError as error:
        raise unusable(run.directory, error) from error
    return metrics


def write_asked(
    directory: Path,
    method: Method,
    source: Source,
    arranged: Arranged,
    tuning: Mapping[str, Any] | None = None,
) -> None:
    """Settings and plan of a fitted method."""
    named = _record.write_plan(directory, method.plan_)
    asked = replace(_describe(method, source, arranged, tuning), plan_sha256=named)
    write_json(directory / _record.SETTINGS, asked.to_json())


def _describe(
    method: Method, source: Source, arranged: Arranged, tuning: Mapping[str, Any] | None
) -> Asked:
    from graphveil.graph.checks import class_names_of, columns_of

    names, columns = class_names_of(arranged.training), columns_of(arranged.training)
    return Asked(
        method=method.name,
        settings=method.get_params(),
        source=source,
        split=arranged.split,
        class_names=None if names is None else list(names),
        columns=None if columns is None else list(columns),
        schema=_plain_schema(arranged.training),
        tuning=tuning,
    )


def _plain_schema(data: Data) -> dict[str, Any] | None:
    schema = schema_of(data)
    return None if schema is None else schema.to_dict()


def finish(
    directory: Path, method: Method, metrics: dict[str, Any], spending: Spending | None = None
) -> None:
    """Write what a fitted method is, settle what it cost, and end with its certificate."""
    note = read_note(directory)
    if note is not None:
        method.reservation_ = note["reservation"]  # type: ignore[attr-defined]
    _record.write_results(directory, method, getattr(method, "reservation_", None))
    if spending is not None:  # now it is known, and no step can follow; before the run is finished
        spending.settle(method.charges_)
        log(directory, f"settled {spending.id}")
    write_json(directory / _record.METRICS_FILE, metrics)
    write_json(directory / _record.ENVIRONMENT, _record.describe_environment())
    log(directory, "finished")
    _record.write_certificate(directory, method.certificate_)
    shutil.rmtree(directory / _record.CHECKPOINT, ignore_errors=True)


def _check_counted(run: Run, method: Method) -> None:
    """Refuse charges for other events than planned, or fewer than the journals hold."""
    steps, paid = run.checkpoint.steps_begun(), count_releases(method.charges_)
    if not count_events(method.charges_) <= count_events(method.plan_.charges):
        raise InvalidInputError(
            f"The run in {run.directory} must be charged for what its settings release. Got an "
            "events.json with other events instead; put the right one back, or start anew with "
            "--force."
        )
    paid_for = {charge.paid_for for charge in method.charges_}
    begun = run.checkpoint.releases if method.plan_.sampled_at == 1 else {}
    unpaid = [name for name, part in begun.items() if part.get("paid_for") not in paid_for]
    if unpaid:
        raise InvalidInputError(
            f"The run in {run.directory} released {unpaid[0]!r}. Got an events.json that does not "
            "charge for it instead; put the right one back, or start anew with --force."
        )
    if steps > paid:
        raise InvalidInputError(
            f"The run in {run.directory} began {steps} steps. Got an events.json that charges for "
            f"{paid:g} instead; put the right one back, or start anew with --force."
        )


@contextlib.contextmanager
def _write_losses(directory: Path, wanted: bool) -> Iterator[Callable[[float], None] | None]:
    """Whom to tell the loss of every step, for a file of its own, if it is wanted."""
    if not wanted:
        yield None
        return
    log(directory, f"writes {_record.LOSSES}, which are private")
    with open_file(directory / _record.LOSSES, "ab", private=True) as file:

        def write(line: dict[str, Any]) -> None:
            file.write(f"{json.dumps(line)}\n".encode())
            file.flush()

        if not file.tell():
            write({"private": _PRIVATE})
        yield lambda loss: write({"loss": loss if math.isfinite(loss) else None})


# --- runs that are replaced -----------------------------------------------------------------------


def set_aside(run: Run, aside: Path) -> None:
    """Put a run beside, until the one that replaces it is finished."""
    with locked(run.directory):
        if not run.checkpoint.begun:  # then it gives back what it reserved, if the ledger agrees
            charging.give_up(run.directory)
        if aside.exists():  # a forced run that was killed: what it replaced is worth more
            discard(run.directory)
        else:
            run.directory.rename(aside)


def discard(directory: Path) -> None:
    """Remove a run; what it reserved, and may have released, stays charged."""
    if directory.exists():
        # First: a run that was removed in part must not pass for one that released nothing.
        (directory / _record.LEDGER).unlink(missing_ok=True)
        sync(directory)
        shutil.rmtree(directory, ignore_errors=True)


def undo(directory: Path, aside: Path, created: bool) -> None:
    """Nothing was spent: leave everything as it was found."""
    for path in list(directory.iterdir()):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    if aside.exists() or created:
        directory.rmdir()
    if aside.exists():
        aside.rename(directory)
