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
    from graphveil.methods import Facts, Method
    from graphveil.methods.plan import Plan

PRIVATE_NOTE = (
    "These results were computed from the data, and no certificate covers them: keep them to "
    "yourself, or audit on public data."
)
_TARGET = click.argument("target", metavar="METHOD|RUN")


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
@_TARGET
@click.option("--neighbours", "most", type=int, default=8, help="Neighbours of each data set.")
@click.option("--steps", type=int, default=5, help="Steps of each part, at most.")
@_shared
def replay(target: str, most: int, steps: int, **asked: Any) -> None:
    """One secret stream on data and on its neighbours, compared step by step.

    Tries the data, and small graphs that were made to break a promise: hubs, leaves, repeated
    edges, outliers, all small graphs. Every loss term that one unit changes is counted; batches,
    draws, noise, shapes and all that follows a release must be the same.

    \b
    graphveil audit replay dp-gnn --data social --json
    """
    _answer("replay", target, {"most": most, "steps": steps}, asked)


@audit.command()
@_TARGET
@click.option("--draws", type=int, default=100_000, help="Draws of each release, on either side.")
@_shared
def mechanism(target: str, draws: int, **asked: Any) -> None:
    """Many draws of each release on its worst pair, beside the law that is charged.

    Reads no data: facts are enough.

    \b
    graphveil audit mechanism gap --data social --epsilon 4
    """
    _answer("mechanism", target, {"draws": draws}, asked)


@audit.command("run")
@_TARGET
@click.option("--canaries", type=int, help="How many. Default: as many as there are weights.")
@_shared
def run_canaries(target: str, canaries: int | None, **asked: Any) -> None:
    """Canaries in one run, found again in what it released: a lower bound on epsilon.

    The method is trained once more, with gradients of ours among the others, each in or out by a
    coin of its own.

    \b
    graphveil audit run late-graph --data social --epsilon 8
    """
    _answer("run", target, {} if canaries is None else {"canaries": canaries}, asked)


@audit.command()
@_TARGET
@click.option("--candidates", type=int, help="How many units are in or out by a coin.")
@click.option("--shadows", type=int, help="Models that the attacker trains to compare with.")
@_shared
def attack(target: str, candidates: int | None, shadows: int | None, **asked: Any) -> None:
    """Membership, links and attributes: what an attacker gets, beside the most there can be.

    \b
    graphveil audit attack late-graph --data cora --root data --epsilon 4
    """
    how = {"candidates": candidates, "shadows": shadows}
    _answer("attack", target, {k: v for k, v in how.items() if v is not None}, asked)


def _answer(kind: str, target: str, how: dict[str, Any], asked: dict[str, Any]) -> None:
    as_json = asked.pop("as_json")
    findings, result = _audit(kind, target, how, asked)
    result.show(as_json)
    broken = [finding for finding in findings if not finding.holds]
    if broken:
        raise BrokenPromiseError(
            f"{plural(len(broken), 'finding')} of {len(findings)} broke the promise, the first "
            f"being {broken[0].name!r}; do not rely on it before somebody has found out why."
        )


@notices()
def _audit(
    kind: str, target: str, how: dict[str, Any], asked: dict[str, Any]
) -> tuple[list[Finding], Result]:
    from graphveil._jobs import check_jobs
    from graphveil.audit import results
    from graphveil.audit.tasks import READS_DATA, Audit, run_tasks
    from graphveil.bench import parse_shard

    jobs = check_jobs(asked["jobs"])
    shard = None if asked["shard"] is None else parse_shard(asked["shard"])
    is_run = Path(target).is_dir()
    method, data, plan, name = (_of_run if is_run else _of_method)(kind, target, asked)
    private = kind in READS_DATA and not asked["public"] and not _runs.is_cataloged(name)
    file = _choose_file(target if is_run else None, asked["out"], private)
    if kind in ("run", "attack", "replay"):
        how = {**how, "seed": asked["seed"] or 0}
    audited = Audit(kind=kind, method=method, data=data, plan=plan, name=name, how=how)
    tasks = audited.list_tasks()
    if shard is not None:
        tasks = tasks[shard[0] - 1 :: shard[1]]
    known = results.read_file(file) if file is not None and file.exists() else ()
    done = {finding.task for finding in known} if not asked["force"] else set()
    fresh = run_tasks(
        audited,
        [task for task in tasks if task.name not in done],
        keep=None if file is None else partial(results.add, file, private=private),
        jobs=jobs,
        progress=bar(f"audit {kind}"),
    )
    findings = [finding for finding in known if finding.task in {task.name for task in tasks}]
    findings = fresh if asked["force"] else [*findings, *fresh]
    return findings, _show(kind, method, name, findings, file, private)


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


def _of_method(kind: str, target: str, asked: dict[str, Any]) -> tuple[Method, Any, Plan, str]:
    """A method with the settings given, its data and its plan."""
    if target not in _known_methods():
        raise InvalidInputError(
            f"'{target}' must be a method or the directory of a run. Got neither instead; "
            "'graphveil methods' lists the methods."
        )
    _settings.require(asked, "data")
    kind_of_method = _settings.method_named(target)
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


def _of_run(kind: str, target: str, asked: dict[str, Any]) -> tuple[Method, Any, Plan, str]:
    """A run's method, data and plan."""
    from graphveil import runs

    given = [name for name in ("data", "epsilon", "delta") if asked[name] is not None]
    if given or asked["sets"]:
        raise InvalidInputError(
            f"A run is audited with its own settings and data. Got --{[*given, 'set'][0]} besides; "
            "leave it out, or name a method."
        )
    run = runs.Run(target)
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
    result.add("holds", all(finding.holds for finding in findings))
    result.add("findings", [finding.to_json() for finding in findings])
    result.table(
        ["what", "holds", "epsilon at least", "figures"],
        [
            [
                f"{one.name}{f' ({one.bound})' if one.bound else ''}",
                "yes" if one.holds else "NO",
                "" if one.epsilon_at_least is None else figure(one.epsilon_at_least),
                ", ".join(f"{key} {_plain(value)}" for key, value in one.figures.items()),
            ]
            for one in findings
        ],
    )
    broken = [str(violation) for one in findings for violation in one.violations]
    result.note(*broken[:12])
    if len(broken) > 12:
        result.note(f"... and {len(broken) - 12} more (--json has all)")
    notes = dict.fromkeys(finding.note for finding in findings if finding.note)
    result.note(*notes)
    result.add("private", private)
    if private:
        result.note(PRIVATE_NOTE)
    result.add("out", None if file is None else str(file))
    if file is not None:
        result.note(f"Written to {file}.")
    return result


def _plain(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
