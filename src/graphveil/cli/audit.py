"""Put a promise on trial."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from graphveil._errors import BrokenPromiseError, InvalidInputError
from graphveil.cli import _options as option
from graphveil.cli import _runs, _settings
from graphveil.cli._notices import notices
from graphveil.cli._output import Result, bar, figure, plural, say

if TYPE_CHECKING:
    from graphveil.audit.results import Finding
    from graphveil.audit.tasks import Audit, Task
    from graphveil.methods import Facts, Method
    from graphveil.methods.plan import Plan

PRIVATE_NOTE = (
    "These results were computed from the data, and no certificate covers them: keep them to "
    "yourself, or audit on public data."
)
PROVES = {
    "replay": "Exact for these neighbours and steps; it says nothing about others.",
    "mechanism": "A part that holds agrees with the law that is charged, within about 1 %; what is "
    "released of data was not looked at.",
    "run": "Floors: so much is revealed at least. One below the proven epsilon says nothing more, "
    "and one bound of 95 % in twenty is too high.",
    "attack": "What these attackers get. One that fails proves nothing; there may be better ones.",
}
"""What a kind of audit proves, in a line."""
_BOUNDS = ("at least", "proven", "trials", "confidence")
_COLUMNS = {
    "replay": ("neighbours", "steps", "removed, altered", "charged"),
    "mechanism": _BOUNDS,
    "run": _BOUNDS,
    "attack": ("AUC", "TPR at 1 % FPR", "allowed", "at least", "trials", "confidence"),
}
_SUBJECT = click.argument("subject", metavar="METHOD|RUN")


@click.group()
def audit() -> None:
    """A promise put on trial: replays, draws, canaries and attacks.

    A METHOD is tried with the settings given, a RUN with its own, on its own data. Results of a RUN
    go to its audit.json and its page; --out writes them elsewhere. What is there already is not
    done again. --jobs N does N tasks at a time; shards of the tasks (--shard I/N) may share a file.
    docs/guarantees/audits.md says what each number proves.

    \b
    graphveil audit replay dp-gnn --data social --json
    graphveil audit mechanism runs/social
    graphveil audit run late-graph --data social --epsilon 8
    graphveil audit attack gnn --data cora --root data
    """


_shared = option.together(
    click.option("--data", help="A name of the catalog, or a path. A RUN has its own."),
    click.option("--epsilon", type=float, help="What a METHOD may spend. Default: 8."),
    option.delta,
    click.option("--seed", type=int, help="Draws split, first weights and who is tried."),
    option.source,
    option.sets,
    click.option("--out", help="A file for the findings. Default: a RUN's audit.json, else none."),
    click.option(
        "--public",
        is_flag=True,
        help="The data is public or made up, so that results may stand in a RUN's audit.json.",
    ),
    click.option("--shard", metavar="I/N", help="Every N-th task, from the I-th on."),
    option.jobs,
    option.force,
    option.as_json,
)


@audit.command()
@_SUBJECT
@click.option("--neighbours", "most", type=int, default=8, help="Of each data set. Default: 8.")
@click.option("--steps", type=int, default=5, help="Steps of each part, at most. Default: 5.")
@_shared
def replay(subject: str, most: int, steps: int, **asked: Any) -> None:
    """One secret stream on data and on its neighbours, compared step by step.

    Tries the data, and small graphs that were made to break a promise: hubs, leaves, repeated
    edges, outliers, all small graphs. Every loss term that one unit changes is counted; batches,
    draws, noise, shapes and all that follows a release must be the same.

    Takes half a minute on small data. A violation is a proof that code and charge differ (exit code
    5); none is a proof for these neighbours and these steps alone. A RUN's method is made anew from
    its settings and cut to --steps; its weights are not read.

    \b
    graphveil audit replay dp-gnn --data social --json
    """
    _answer("replay", subject, {"most": most, "steps": steps}, asked)


@audit.command()
@_SUBJECT
@click.option(
    "--draws", type=int, default=100_000, help="Of each release, on either side. Default: 100000."
)
@_shared
def mechanism(subject: str, draws: int, **asked: Any) -> None:
    """Many draws of each release on its worst pair, beside the law that is charged.

    Reads no data: facts are enough.

    Takes a minute or less. A violation shows noise, a rate or a price that is not what is charged
    (exit code 5), but for one false alarm in 10,000; none shows that they agree within about 1 %.

    \b
    graphveil audit mechanism gap --data social --epsilon 4
    """
    _answer("mechanism", subject, {"draws": draws}, asked)


@audit.command("run")
@_SUBJECT
@click.option("--canaries", type=int, default=5000, help="At most so many. Default: 5000.")
@_shared
def run_canaries(subject: str, canaries: int, **asked: Any) -> None:
    """Canaries in one run, found again in what it released: a lower bound on epsilon.

    The method is trained once more for each kind of canaries, with gradients of ours among the
    others, each in or out by a coin of its own. There is room for one canary a weight.

    Takes as long as one or two trainings. A bound above the proven epsilon breaks the promise (exit
    code 5); one below it proves that so much is revealed, and no more.

    \b
    graphveil audit run late-graph --data social --epsilon 8
    """
    _answer("run", subject, {"canaries": canaries}, asked)


@audit.command()
@_SUBJECT
@click.option(
    "--candidates",
    type=int,
    default=400,
    help="At most so many units are in or out by a coin. Default: 400.",
)
@click.option(
    "--shadows",
    type=int,
    default=8,
    help="Models that the attacker trains to compare with. Default: 8.",
)
@_shared
def attack(subject: str, candidates: int, shadows: int, **asked: Any) -> None:
    """Membership, links and attributes: what an attacker gets, beside the most there can be.

    Takes as long as a training for each shadow and one more, for each kind of attack. A true
    positive rate that the certificate does not allow breaks the promise (exit code 5); an attack
    that fails proves nothing.

    \b
    graphveil audit attack late-graph --data cora --root data --epsilon 4
    """
    _answer("attack", subject, {"candidates": candidates, "shadows": shadows}, asked)


def _answer(kind: str, subject: str, how: dict[str, Any], asked: dict[str, Any]) -> None:
    as_json = asked.pop("as_json")
    findings, result = _audit(kind, subject, how, asked)
    result.show(as_json)
    broken = [finding for finding in findings if not finding.holds]
    if broken:
        raise BrokenPromiseError(
            f"{plural(len(broken), 'finding')} of {len(findings)} broke the promise, the first "
            f"being {broken[0].name!r}; do not rely on it before somebody has found out why."
        )


@notices()
def _audit(
    kind: str, subject: str, how: dict[str, Any], asked: dict[str, Any]
) -> tuple[list[Finding], Result]:
    from graphveil._jobs import check_jobs
    from graphveil.audit import results
    from graphveil.audit.tasks import READS_DATA, Audit
    from graphveil.bench import parse_shard

    jobs = check_jobs(asked["jobs"])
    shard = None if asked["shard"] is None else parse_shard(asked["shard"])
    is_run = Path(subject).is_dir()
    _check(kind, subject, how, asked, is_run)
    if asked["out"] is not None and Path(asked["out"]).exists():
        results.read_file(Path(asked["out"]))  # before anything takes long
    method, data, plan, name = (_of_run if is_run else _of_method)(kind, subject, asked)
    private = kind in READS_DATA and not asked["public"] and not _runs.is_cataloged(name)
    file = _choose_file(subject if is_run else None, asked["out"], private)
    if kind in ("run", "attack", "replay"):
        how = {**how, "seed": asked["seed"] or 0}
    audited = Audit(kind=kind, method=method, data=data, plan=plan, name=name, how=how)
    every = audited.list_tasks()
    tasks = every if shard is None else every[shard[0] - 1 :: shard[1]]
    findings = _do(audited, tasks, file, private, force=asked["force"], jobs=jobs)
    result = _show(kind, method, name, findings, file, private)
    if not tasks:
        result.note(f"Nothing was tried: shard {asked['shard']} has none of {len(every)} tasks.")
    elif not findings:
        result.note("Nothing was tried: there was nothing of this kind to try.")
    return findings, result


def _check(kind: str, subject: str, how: dict[str, Any], asked: dict[str, Any], run: bool) -> None:
    """Refuse what can be refused before data is read."""
    from graphveil.audit.tasks import check_kind
    from graphveil.data.catalog import check_exists

    if run:
        given = [name for name in ("data", "epsilon", "delta") if asked[name] is not None]
        if given or asked["sets"]:
            raise InvalidInputError(
                f"A run is audited with its own settings and data. Got --{[*given, 'set'][0]} "
                "besides; leave it out, or name a method."
            )
        return
    if subject not in _known_methods():
        raise InvalidInputError(
            f"'{subject}' must be a method or the directory of a run. Got neither instead; "
            "'graphveil methods' lists the methods."
        )
    check_kind(kind, _settings.method_named(subject), how)
    _settings.require(asked, "data")
    check_exists(asked["data"])


def _do(
    audit: Audit, tasks: list[Task], file: Path | None, private: bool, *, force: bool, jobs: int
) -> list[Finding]:
    """The findings of all tasks: those that are in the file already, and the others made now."""
    from graphveil.audit import results
    from graphveil.audit.tasks import run_tasks

    known = results.read_file(file) if file is not None and file.exists() and not force else ()
    names = {task.name for task in tasks}
    findings = [finding for finding in known if finding.task in names]
    if findings:
        say(f"{plural(len(findings), 'finding')} were there already (--force does them again)")
    done = {finding.task for finding in findings}
    try:
        return findings + run_tasks(
            audit,
            [task for task in tasks if task.name not in done],
            keep=None if file is None else partial(results.add, file, private=private),
            jobs=jobs,
            progress=bar(f"audit {audit.kind}"),
        )
    except KeyboardInterrupt as error:
        error.add_note(
            "Nothing was kept; give --out FILE to keep what is done."
            if file is None
            else f"What was found is in {file}; the same command, without --force, goes on there."
        )
        raise


def _choose_file(run: str | None, out: str | None, private: bool) -> Path | None:
    """Where findings go: what is private does not go where a page would show it."""
    from graphveil.audit import results

    if out is not None:
        return Path(out)
    if run is None:
        return None
    if private:
        say(f"not written to {run}: computed from data that nobody called public (--public)")
        return None
    return Path(run) / results.FILE


def _of_method(kind: str, subject: str, asked: dict[str, Any]) -> tuple[Method, Any, Plan, str]:
    """A method with the settings given, its data and its plan."""
    kind_of_method = _settings.method_named(subject)
    epsilon = asked["epsilon"]
    if kind_of_method.private and epsilon is None:
        epsilon = 8.0
    method = _settings.make(
        kind_of_method,
        _settings.parse(asked["sets"]),
        epsilon=epsilon,
        delta=asked["delta"],
        seed=asked["seed"],
    )
    source = _runs.make_source(asked)
    facts: Facts | None = source.expected() if kind == "mechanism" else None
    if facts is not None:
        return method, None, method.plan(facts), source.data
    from graphveil.methods import Facts as KnownFacts

    data = source.arrange(source.load()).training
    return method, data, method.plan(KnownFacts.of(data)).on(data), source.data


def _known_methods() -> tuple[str, ...]:
    from graphveil.methods import METHODS

    return tuple(METHODS)


def _of_run(kind: str, subject: str, asked: dict[str, Any]) -> tuple[Method, Any, Plan, str]:
    """A run's method, data and plan."""
    from graphveil import runs

    run = runs.Run(subject)
    fitted = run.read()
    name = run.record().asked.source.data
    method = type(fitted)(**fitted.get_params())
    if kind == "mechanism":
        return method, None, fitted.plan_, name
    return method, run.arrange(asked["root"]).training, fitted.plan_, name


def _show(
    kind: str,
    method: Method,
    name: str,
    findings: list[Finding],
    file: Path | None,
    private: bool,
) -> Result:
    result = Result(f"audit {kind} of {method.name} on {name}", kind=kind, method=method.name)
    result.add("data", name)
    suspects = [finding for finding in findings if finding.suspect]
    result.add("holds", all(finding.holds for finding in findings) if findings else None)
    result.update({"suspect": bool(suspects)})
    result.add("findings", [finding.to_json() for finding in findings])
    result.table(*_table(kind, findings))
    broken = [str(violation) for one in findings for violation in one.violations]
    result.note(*broken[:12])
    if len(broken) > 12:
        result.note(f"... and {len(broken) - 12} more (--json has all)")
    for one in suspects:
        result.note(
            f"Suspect: {one.name} gives {figure(one.epsilon_at_least)}, above the proven epsilon. "
            "That bound is no proof; repeat it with more canaries and steps."
        )
    notes = dict.fromkeys(finding.note for finding in findings if finding.note)
    result.note(*notes, *([PROVES[kind]] if findings else []))
    result.add("private", private)
    if private:
        result.note(PRIVATE_NOTE)
    result.add("out", None if file is None else str(file))
    if file is not None:
        result.note(f"Written to {file}.")
    return result


def _table(kind: str, findings: list[Finding]) -> tuple[list[str], list[list[str]]]:
    """What a person reads first; --json has all figures."""
    columns = ["what", "holds", *_COLUMNS[kind]]
    rows = []
    for one in findings:
        figures, allowed = one.figures, one.figures.get("largest_tpr@0.01")
        changed = [str(figures[name]) for name in ("removed", "altered") if name in figures]
        cells = {
            "at least": _plain(one.epsilon_at_least),
            "proven": _plain(one.proven),
            "trials": _plain(one.trials),
            "confidence": _plain(one.confidence),
            "neighbours": _plain(figures.get("neighbours")),
            "steps": _plain(figures.get("steps")),
            "removed, altered": ", ".join(changed),
            "charged": _plain(figures.get("charged")),
            "AUC": _plain(figures.get("auc")),
            "TPR at 1 % FPR": _plain(figures.get("tpr@0.01")),
            "allowed": "nothing promised" if allowed == 1 else _plain(allowed),
        }
        name = one.name if not one.bound or one.bound in one.name else f"{one.name} ({one.bound})"
        holds = ("suspect" if one.suspect else "yes") if one.holds else "NO"
        rows.append([name, holds, *(cells[column] for column in _COLUMNS[kind])])
    return columns, rows


def _plain(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
