"""What a page says of one run: a dataclass for each part of it, which a template reads.

Every figure comes from :mod:`graphveil.report.evidence`; bounds are rounded up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from graphveil.privacy.guarantee import ONE, round_up
from graphveil.report import svg, wording

if TYPE_CHECKING:
    from graphveil.audit.results import Finding
    from graphveil.methods.plan import Facts
    from graphveil.report.evidence import Evidence

Pairs = list[tuple[str, str]]
Legend = list[tuple[Markup, str]]
_MOST_CONFUSED = 12  # classes in a matrix
_MOST_BARS = 24  # classes in a plot; more stand in the table only


@dataclass(frozen=True, kw_only=True)
class Section:
    """One run; ``epsilon`` is None where no guarantee holds."""

    anchor: str
    run: Evidence
    epsilon: str | None
    worlds: str
    world: str | None
    promise: Promise | None
    bounds: Pairs
    notes: list[str]
    utility: Utility
    budget: Budget
    audit: Audit | None
    data: Pairs
    settings: Pairs
    planned: Pairs
    environment: Pairs


def section(run: Evidence, anchor: str, baselines: Sequence[Evidence]) -> Section:
    """The section of ``run``; ``baselines`` are open runs to compare it with, the best first."""
    guarantee, epsilon = run.certificate.guarantee, run.epsilon
    withheld = guarantee.relation == "withhold"
    return Section(
        anchor=anchor,
        run=run,
        epsilon=None if epsilon is None else round_up(epsilon),
        worlds=wording.WORLDS[guarantee.unit] if withheld else guarantee.difference,
        world=_world(run),
        promise=None if epsilon is None else promise(anchor, run),
        bounds=_bounds(run),
        notes=[note for note in run.certificate.notes if ", by itself: " not in note],
        utility=utility(anchor, run, baselines),
        budget=budget(anchor, run),
        audit=audit(run) if run.audit else None,
        data=_data(run),
        settings=_settings(run),
        planned=[
            (
                name.replace("_", " "),
                f"{value:.6g}" if isinstance(value, float) else wording.setting(value),
            )
            for name, value in sorted(run.planned.items())
        ],
        environment=[
            *run.environment["versions"].items(),
            *(
                (name, wording.setting(value))
                for name, value in sorted(run.environment.items())
                if name != "versions"
            ),
        ],
    )


def _world(run: Evidence) -> str | None:
    """What a node or a graph is in the world, where its owner or the catalog says."""
    if run.unit_name is not None:
        return f"Here {_one(run)} is {wording.name_with_article(run.unit_name)}."
    if run.entry is None or run.unit.name != run.entry.record:
        return None
    return f"In {run.data}, {_one(run)} is {run.entry.unit}."


def _one(run: Evidence) -> str:
    if run.unit.name == "owner":
        return wording.name_with_article(run.certificate.guarantee.owner or "owner")
    return ONE[run.unit.name].replace("one", "a")


def predicted(run: Evidence) -> str:
    """What a run predicts: the column, where its owner named one, and of which kind that is."""
    label = (run.schema or {}).get("label") or {}
    kind, ends = wording.TASK_WORDS[run.facts.task], run.facts.value_range
    if ends is not None:
        kind += f" from {ends[0]:g} to {ends[1]:g}"
    return f"{label['column']}, {kind}" if label.get("column") else kind


def _bounds(run: Evidence) -> Pairs:
    """What is proven, by which bound; nothing where nothing holds."""
    if run.epsilon is None:
        return []
    bounds = (
        ("by privacy loss distributions (PLD)", run.certificate.pld),
        ("by Rényi divergences (RDP)", run.certificate.rdp),
    )
    return [(name, round_up(value)) for name, value in bounds if value is not None]


def _trained_on(facts: Facts) -> str:
    rows = facts.num_train if facts.train_rows is None else facts.train_rows
    owners = f", of {facts.num_train:,} owners" if facts.pools_owners else ""
    return f"{rows:,} {facts.record}s{owners}"


def _data(run: Evidence) -> Pairs:
    """The data card: public facts, and what the catalog says of it."""
    facts, entry, source = run.facts, run.entry, run.source
    rows = [
        ("name", run.data),
        (f"{facts.record}s", f"{facts.num_nodes:,}"),
        ("trained on", _trained_on(facts)),
        ("tested on", f"{run.tests:,} labelled {facts.record}s"),
        ("features", f"{facts.num_features:,}"),
        ("predicted", predicted(run)),
        ("split", f"{source['split']}, seed {source['seed']}"),
    ]
    if facts.task != "regression":
        what = "labels" if facts.task == "multilabel" else "classes"
        rows.insert(-1, (what, f"{facts.num_classes:,}"))
    if (share := source.get("train_share", 1.0)) != 1:
        rest = "; the rest is not in the graph" if source.get("thinned") == "remove" else ""
        used = f"{100 * share:g}{wording.PERCENT}{rest}"
        rows.append(("share of the training set used", used))
    if (fractions := source.get("fractions")) is not None:
        rows.append(("shares of the split", ", ".join(f"{share:g}" for share in fractions)))
    if (least := source.get("min_class")) is not None:
        rows.append(("classes left out", f"those with fewer than {least:,} labelled"))
    if entry is None:
        return [*rows, ("source", "the user's own; licence and citation are not known here")]
    rows += [("title", entry.title), ("licence", entry.licence), ("citation", entry.citation)]
    return rows + [row for row in (("address", entry.url), ("note", entry.note)) if row[1]]


def _settings(run: Evidence) -> Pairs:
    """As they were given; a tuned run's epsilon is one trial's, and not what was promised."""
    names = {name: name for name in sorted(run.settings)}
    if run.tuned and "epsilon" in names:
        names["epsilon"] = "epsilon of one trial; the certificate counts the whole search"
    return [(label, wording.setting(run.settings[name])) for name, label in names.items()]


# --- the guarantee in words -----------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Promise:
    """How far a guess can move: ``most`` and ``least`` are what becomes of an even one.

    ``content`` is a sentence on guesses about what a unit's data says, None for one that has none.
    ``beliefs`` are rows of how sure a guesser was before, and can be at most and at least
    afterwards. ``accused`` are false positive rates of membership tests, and what such a test finds
    at most.
    """

    took_part: str
    no_part: str
    content: str | None
    factor: str | None
    most: str
    least: str
    strength: str
    beliefs: list[tuple[str, str, str]]
    accused: Pairs
    plot: Markup


def promise(anchor: str, run: Evidence) -> Promise:
    """What the guarantee of a proven run means to somebody who guesses."""
    guarantee = run.certificate.guarantee
    unit, epsilon, owner = guarantee.unit, guarantee.epsilon, guarantee.owner or "owner"
    most = wording.after(0.5, epsilon)
    content = wording.CONTENT.get(unit)
    return Promise(
        took_part=wording.TOOK_PART[unit].replace("owner", owner),
        no_part=wording.NO_PART[unit],
        content=(
            None if content is None else wording.guess_content(content, epsilon, guarantee.delta)
        ),
        factor=wording.factor(epsilon),
        most=wording.at_most(most),
        least=wording.at_least(1 - most),
        strength=wording.strength(epsilon),
        beliefs=[
            (
                f"{100 * before:g}{wording.PERCENT}",
                wording.at_most(wording.after(before, epsilon)),
                wording.at_least(1 - wording.after(1 - before, epsilon)),
            )
            for before in wording.BEFORE
        ],
        accused=[
            (f"{100 * fpr:g}{wording.PERCENT}", wording.small_percent(tpr))
            for fpr, tpr in run.certificate.largest_tpr.items()
        ],
        plot=svg.belief(f"{anchor}-belief", epsilon),
    )


# --- what the budget was spent on -----------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Each charge with what was released and its price ``alone``; all of them together.

    ``alone_sum`` and ``plot`` are None where there is one charge, or no guarantee.
    """

    charges: list[tuple[str, list[wording.Release], str]]
    alone_sum: str | None
    cheaper: bool
    plot: Markup | None


def budget(anchor: str, run: Evidence) -> Budget:
    """What each charge of a run paid for, and its price by itself."""
    charges, epsilon, alone = run.certificate.charges, run.epsilon, run.alone
    prices = ["–"] * len(charges) if epsilon is None else [round_up(price) for price in alone]
    plot = None
    if len(alone) > 1 and epsilon is not None:
        names = [charge.paid_for for charge in charges]
        plot = svg.parts(f"{anchor}-parts", list(zip(names, alone, strict=True)), epsilon)
    return Budget(
        charges=[
            (charge.paid_for, wording.releases(charge.event), price)
            for charge, price in zip(charges, prices, strict=True)
        ],
        alone_sum=None if plot is None else round_up(sum(alone)),
        cheaper=epsilon is not None and epsilon < sum(alone),
        plot=plot,
    )


# --- audit ----------------------------------------------------------------------------------------

AUC, RATIO, NEIGHBOURS = "auc", "ratio", "neighbours"  # figures of findings with their own column
RATES = (0.001, 0.01)  # at which attacks say what they find, and what is the most there can be


@dataclass(frozen=True, kw_only=True)
class Floor:
    """A lower bound as a row: ``condition`` says under what it holds, ``proven`` is the ceiling."""

    name: str
    least: str
    proven: str
    confidence: str
    bound: str
    condition: str
    trials: str
    note: str


@dataclass(frozen=True, kw_only=True)
class Audit:
    """What was seen when the promise was put on trial.

    ``contradictions`` say how it was seen broken; they are empty where no guarantee holds. Rows of
    ``replays``, ``mechanisms`` and ``attacks`` begin with a name and end with what else there is to
    say. ``floors`` are proofs, ``estimates`` are not; ``suspects`` are estimates above a ceiling.
    An attack has a share found and the most that its own certificate allows for each rate.
    """

    contradictions: list[str]
    replays: list[tuple[str, str, str, str]]
    violations: Pairs
    mechanisms: list[tuple[str, str, str, str, str]]
    floors: list[Floor]
    estimates: list[Floor]
    suspects: list[str]
    rates: list[str]
    attacks: list[tuple[str, str, Pairs, str, str, str]]


def audit(run: Evidence) -> Audit:
    """The findings of a run's audits, by kind; every epsilon that was shown is a floor."""
    kinds: dict[str, list[Finding]] = {}
    for finding in run.audit:
        kinds.setdefault(finding.kind, []).append(finding)
    bounds = [finding for finding in run.audit if finding.epsilon_at_least is not None]
    return Audit(
        contradictions=contradictions(run),
        replays=[
            (f.name, _count(f.figures.get(NEIGHBOURS)), _verdict(f), _rest(f, NEIGHBOURS))
            for f in kinds.get("replay", [])
        ],
        violations=[(f.name, str(violation)) for f in run.audit for violation in f.violations],
        mechanisms=[
            (f.name, _figure(f.figures.get(RATIO)), _count(f.trials), _verdict(f), _rest(f, RATIO))
            for f in kinds.get("mechanism", [])
        ],
        floors=[_floor(f) for f in bounds if f.is_proof],
        estimates=[_floor(f) for f in bounds if not f.is_proof],
        suspects=[f.name for f in run.audit if f.suspect],
        rates=[f"{100 * fpr:g}{wording.PERCENT}" for fpr in RATES],
        attacks=[
            (
                f.name,
                _figure(f.figures.get(AUC)),
                [
                    (_share(f.figures.get(f"tpr@{fpr:g}")), _most(f.figures, fpr, run))
                    for fpr in RATES
                ],
                _count(f.trials),
                _verdict(f),
                f.note,
            )
            for f in kinds.get("attack", [])
        ],
    )


def _most(figures: Mapping[str, Any], fpr: float, run: Evidence) -> str:
    """The most that may be found of what an attack looks for: nodes, links and values differ."""
    most = figures.get(f"largest_tpr@{fpr:g}")
    if run.epsilon is None or most == 1:
        return "nothing promised"
    return wording.small_percent(most) if isinstance(most, float) and 0 <= most < 1 else "–"


def contradictions(run: Evidence) -> list[str]:
    """What was seen broken, and proven floors above the ceiling that nobody has judged yet.

    Of many bounds of 95 % some are too high; whoever knows the part's own price judges with more
    confidence, and says so by ``holds``.
    """
    if run.epsilon is None:
        return []
    broken = [f"{f.name}: the promise was seen broken" for f in run.audit if not f.holds]
    return broken + [
        f"{f.name}: epsilon is at least {wording.round_down(f.epsilon_at_least)}, and the proven "
        f"one is {round_up(run.epsilon)}"
        for f in run.audit
        if f.epsilon_at_least is not None
        and f.epsilon_at_least > run.epsilon
        and f.is_proof
        and f.proven is None
    ]


def _floor(finding: Finding) -> Floor:
    assert finding.epsilon_at_least is not None
    assert finding.confidence is not None
    number = isinstance(finding.proven, (int, float)) and not isinstance(finding.proven, bool)
    return Floor(
        name=finding.name,
        least=wording.round_down(finding.epsilon_at_least),
        proven=round_up(finding.proven) if number else "–",
        confidence=f"{100 * finding.confidence:g}{wording.PERCENT}",
        bound=finding.bound or "–",
        condition=finding.condition or "–",
        trials=_count(finding.trials),
        note=finding.note,
    )


def _verdict(finding: Finding) -> str:
    return "nothing seen" if finding.holds else "broken"


def _rest(finding: Finding, *shown: str) -> str:
    """The note, and the figures that have no column of their own."""
    others = {name: value for name, value in finding.figures.items() if name not in shown}
    texts = [f"{name.replace('_', ' ')} {_figure(value)}" for name, value in others.items()]
    return "; ".join(text for text in (finding.note, ", ".join(texts)) if text)


def _figure(value: Any) -> str:
    """A figure of an audit, whatever a file may hold there."""
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else wording.setting(value)


def _count(value: Any) -> str:
    whole = isinstance(value, int) and not isinstance(value, bool)
    return f"{value:,}" if whole else _figure(value)


def _share(value: Any) -> str:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return f"{100 * value:.3g}{wording.PERCENT}" if number else _figure(value)


# --- how well it works ----------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Utility:
    """Scores on test records: of the run, of open runs, of the best guess that reads no row.

    ``nothing`` says in words that the run learnt nothing. ``rows`` are a name, whether it is the
    run itself, and a cell for each of ``scores``, some of which have ``meanings``. ``classes`` are
    a name, a count, a share of the test records, and a cell for each of ``columns``; there are none
    where records are not in one class each. ``confusion`` has a class and how often each class was
    decided on for it; it is empty for many classes. ``lost`` is None where no run in the open was
    given to compare with.
    """

    nothing: str | None
    scores: list[str]
    meanings: list[str]
    rows: list[tuple[str, bool, list[str]]]
    columns: list[str]
    classes: list[tuple[str, str, str, list[str]]]
    confusion: list[tuple[str, list[str]]]
    plot: Markup | None
    legend: Legend
    lost: str | None


def utility(anchor: str, run: Evidence, baselines: Sequence[Evidence]) -> Utility:
    """How well a run does, beside its baselines; by class beside the best of them."""
    listed = wording.scores_of(run.facts.task, run.metric)
    scores = [name for name in listed if run.metrics[name] is not None]
    rows = [
        (
            other.method + ("" if other is run else f", {_in_the_open(other)}"),
            other is run,
            [wording.score(name, other.metrics[name]) for name in scores],
        )
        for other in (run, *baselines)
    ]
    if any(name in run.metrics["baseline"] for name in scores):
        guessed = [wording.score(name, run.metrics["baseline"].get(name)) for name in scores]
        guess = wording.BEST_GUESS if run.has_classes else wording.GUESSES[run.facts.task]
        rows.append((guess, False, guessed))
    compared = (run, *baselines[:1])
    columns = [other.method for other in compared]
    plot, legend = _class_plot(anchor, compared)
    return Utility(
        nothing=_nothing(run),
        scores=[wording.SCORES[name] for name in scores],
        meanings=[wording.MEANINGS[name] for name in scores if name in wording.MEANINGS],
        rows=rows,
        columns=columns,
        classes=[
            (
                _class_name(run, number),
                f"{count:,}",
                wording.percent(count / run.tests if run.tests else None),
                [wording.percent(other.metrics["class_accuracy"][number]) for other in compared],
            )
            for number, count in enumerate(run.metrics["class_count"])
        ],
        confusion=_confusion(run),
        plot=plot,
        legend=legend,
        lost=_lost(*compared),
    )


def _confusion(run: Evidence) -> list[tuple[str, list[str]]]:
    table = run.metrics["confusion"]
    if table is None or not run.tests or len(table) > _MOST_CONFUSED:
        return []
    return [
        (_class_name(run, number), [f"{count:,}" for count in row])
        for number, row in enumerate(table)
    ]


def _class_name(run: Evidence, number: int) -> str:
    return f"class {number}" if run.names is None else run.names[number]


def _class_plot(anchor: str, compared: Sequence[Evidence]) -> tuple[Markup | None, Legend]:
    """Bars by class for a run and, if there is one, an open run; the legend tells two apart."""
    run, *others = compared
    nothing = f", {wording.LEARNT_NOTHING}" * run.failed
    legend = []
    if others or nothing:
        legend.append((svg.legend_bar(0, failed=run.failed), f"{run.method}{nothing}"))
    legend += [
        (svg.legend_bar(n, failed=other.failed), f"{other.method}, {_in_the_open(other)}")
        for n, other in enumerate(others, 1)
    ]
    if not (run.has_classes and run.tests) or run.facts.num_classes > _MOST_BARS:
        return None, legend
    rows = [
        (_class_name(run, number), [other.metrics["class_accuracy"][number] for other in compared])
        for number in range(run.facts.num_classes)
    ]
    methods = [other.method for other in compared]
    failed = [other.failed for other in compared]
    return svg.bars(f"{anchor}-classes", "Accuracy by class", rows, methods, failed), legend


def _in_the_open(run: Evidence) -> str:
    return f"in the open{f', {wording.LEARNT_NOTHING}' * run.failed}"


def _lost(run: Evidence, best: Evidence | None = None) -> str | None:
    """How far a run stays behind the best open one, in words."""
    if best is None or run.figure is None or best.figure is None:
        return None
    metric, less = run.metric, best.figure - run.figure
    size = wording.score(metric, abs(less))
    if metric in wording.IN_PERCENT:
        size = f"{100 * abs(less):.1f} points"
    place = "the same" if not less else f"{size} {'higher' if less < 0 else 'lower'}"
    itself = f", which {wording.LEARNT_NOTHING} itself," * best.failed
    return (
        f"Against {best.method}, trained in the open on the same records{itself or ','} its "
        f"{wording.SCORES[metric]} is {place}."
    )


def _nothing(run: Evidence) -> str | None:
    """That a run learnt nothing, or decides the same of everybody, in words; else None."""
    idle = wording.idle(
        run.facts.task,
        run.metric,
        (run.figure, run.guess),
        run.metrics["learnt"],
        run.metrics["constant"],
        run.facts.record,
        _everywhere(run),
    )
    if idle is None:
        return None
    verdict = wording.LEARNT_NOTHING if idle.nothing else "tells nobody apart by what it decides"
    return f"This model {verdict}: {idle.why}"


def _everywhere(run: Evidence) -> str:
    """What a model says of everybody that says the same of all."""
    if not run.has_classes:
        return "the same labels" if run.facts.task == "multilabel" else "the same value"
    table = run.metrics["confusion"] or []
    decided = [number for number, column in enumerate(zip(*table, strict=True)) if any(column)]
    return f"“{_class_name(run, decided[0])}”" if len(decided) == 1 else "the same class"
