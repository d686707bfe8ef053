"""One HTML file about one run or several: no network, no fonts, opens from a disk.

Every figure comes from :mod:`graphveil.report.evidence`; bounds are rounded up. Text is escaped by
jinja2, characters that hide or reorder text are shown as such, and the page's own policy lets run
only the one script that is in it by its hash. The same runs give the same bytes.
"""

from __future__ import annotations

import base64
import hashlib
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jinja2
from markupsafe import Markup

from graphveil import __version__
from graphveil.methods import METHODS
from graphveil.privacy.composing import together
from graphveil.privacy.guarantee import ONE, UNITS, round_up
from graphveil.report import svg, words
from graphveil.report.evidence import Evidence

OUTSIDE = (
    "Accuracies, F1 and the like are read off the labels of test records. They are outside every "
    "certificate, and showing them, this page included, is a release of its own."
)
_MOST_BARS = 24  # classes in a plot; more stand in the table only


def render(evidence: Sequence[Evidence]) -> str:
    """The page: one run's report, or a comparison with a section for each run."""
    many = len(evidence) > 1
    runs = [
        _run(each, f"run-{number}", _baselines(each, evidence))
        for number, each in enumerate(evidence, 1)
    ]
    private = [number for number, each in enumerate(evidence) if each.status != "open"]
    # One private run, alone or beside open ones, is what the page is about, and comes first.
    about = private[0] if len(private) == 1 else None if many else 0
    one = None if about is None else evidence[about]
    return filled(
        "report.html",
        "report.js",
        title=f"{len(evidence)} runs compared" if one is None else f"{one.method} on {one.data}",
        groups=_groups(evidence) if many else [],
        first=None if about is None else runs[about],
        runs=[each for number, each in enumerate(runs) if number != about],
        many=many,
        outside=OUTSIDE,
    )


def filled(template: str, script: str, **content: Any) -> str:
    """A template of ours with the style sheet, one script, and a policy that names their hashes."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("graphveil", "report/templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=shown,
    )
    environment.filters["bound"] = round_up
    style, code = (_ours(environment, name) for name in ("page.css", script))
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(code)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    return environment.get_template(template).render(
        style=style, script=code, policy=policy, version=__version__, **content
    )


def shown(value: Any) -> Any:
    """Text without characters that hide or reorder it; what is markup already stays as it is."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return "".join(
        "\N{REPLACEMENT CHARACTER}"
        if unicodedata.category(each) in ("Cc", "Cf", "Cs", "Co") and each not in "\n\t"
        else each
        for each in value
    )


def _ours(environment: jinja2.Environment, name: str) -> Markup:
    assert environment.loader is not None
    return Markup(environment.loader.get_source(environment, name)[0])


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


# --- one run --------------------------------------------------------------------------------------


def _run(run: Evidence, anchor: str, baselines: Sequence[Evidence]) -> dict[str, Any]:
    certificate = run.certificate
    guarantee, unit = certificate.guarantee, UNITS[certificate.guarantee.unit]
    return {
        "anchor": anchor,
        "run": run,
        "status": run.status,
        "status_text": words.STATUS[run.status],
        "one": ONE[guarantee.unit],
        "epsilon": None if run.epsilon is None else round_up(run.epsilon),
        "delta": f"{guarantee.delta:g}",
        "delta_words": words.one_in(guarantee.delta),
        "protects": unit.protects,
        "unprotected": certificate.unprotected,
        "leaves_out": _left_out(run),
        "worlds": words.WORLDS[guarantee.unit]
        if guarantee.relation == "withhold"
        else guarantee.difference,
        "world": _world(run),
        "promise": None if run.epsilon is None else _promise(anchor, guarantee.unit, run.epsilon),
        "bounds": _bounds(run),
        "notes": [note for note in certificate.notes if ", by itself: " not in note],
        "charges": _charges(run),
        "parts": None
        if len(run.alone) < 2 or run.epsilon is None
        else svg.parts(
            f"{anchor}-parts",
            list(zip((each.paid_for for each in certificate.charges), run.alone, strict=True)),
            run.epsilon,
        ),
        "alone_sum": round_up(sum(run.alone)) if len(run.alone) > 1 else None,
        "cheaper": run.epsilon is not None and run.epsilon < sum(run.alone),
        **_utility(anchor, run, baselines),
        "audit": _audit(run),
        "contradicted": run.epsilon is not None
        and any(each.at_least > run.epsilon for each in run.audit),
        "data": _data(run),
        "settings": _settings(run),
        "planned": [
            (name.replace("_", " "), f"{value:.6g}" if isinstance(value, float) else _plain(value))
            for name, value in sorted(run.planned.items())
        ],
        "environment": [
            *run.environment["versions"].items(),
            *((k, _plain(v)) for k, v in sorted(run.environment.items()) if k != "versions"),
        ],
    }


def _promise(anchor: str, unit: str, epsilon: float) -> dict[str, Any]:
    return {
        "took_part": words.TOOK_PART[unit],
        "content": words.CONTENT.get(unit),
        "content_most": words.at_most(words.after(0.5, 2 * epsilon)),
        "factor": words.factor(epsilon),
        "most": words.at_most(words.after(0.5, epsilon)),
        "least": words.at_least(1 - words.after(0.5, epsilon)),
        "certain": words.at_most(1.0),
        "strength": words.strength(epsilon),
        "beliefs": [
            (
                f"{100 * before:g}{words.PERCENT}",
                words.at_most(words.after(before, epsilon)),
                words.at_least(1 - words.after(1 - before, epsilon)),
            )
            for before in words.BEFORE
        ],
        "plot": svg.belief(f"{anchor}-belief", epsilon),
    }


def _left_out(run: Evidence) -> str | None:
    """What stays outside the unit; nothing under the strict relation."""
    guarantee = run.certificate.guarantee
    return UNITS[guarantee.unit].leaves_out if guarantee.relation == "withhold" else None


def _world(run: Evidence) -> str | None:
    """What a node or a graph is in the world, where the catalog knows."""
    entry, unit = run.entry, run.certificate.guarantee.unit
    if entry is None or unit != entry.record:
        return None
    return f"In {run.data}, {ONE[unit].replace('one', 'a')} is {entry.unit}."


def _bounds(run: Evidence) -> list[tuple[str, str]]:
    """What is proven, by which bound; nothing where nothing holds."""
    if run.epsilon is None:
        return []
    certificate = run.certificate
    bounds = (
        ("privacy loss distributions (PLD)", certificate.pld),
        ("Rényi divergences (RDP)", certificate.rdp),
    )
    return [(f"by {name}", round_up(value)) for name, value in bounds if value is not None]


def _charges(run: Evidence) -> list[dict[str, Any]]:
    return [
        {
            "paid_for": charge.paid_for,
            "releases": words.releases(charge.event),
            "alone": round_up(run.alone[number]) if run.epsilon is not None else "–",
        }
        for number, charge in enumerate(run.certificate.charges)
    ]


_SCORES = (
    ("accuracy", "accuracy"),
    ("macro_f1", "macro F1"),
    ("roc_auc", "ROC AUC"),
    ("sensitivity", "sensitivity"),
    ("specificity", "specificity"),
)


def _utility(anchor: str, run: Evidence, baselines: Sequence[Evidence]) -> dict[str, Any]:
    scores = [(key, name) for key, name in _SCORES if run.metrics[key] is not None]
    rows = [
        {
            "name": f"{each.method}{'' if each is run else ', in the open'}",
            "this": each is run,
            "cells": [_score(key, each.metrics[key]) for key, _ in scores],
        }
        for each in (run, *baselines)
    ]
    if run.constant is not None and scores:
        rows.append(
            {
                "name": "always the commonest class",
                "this": False,
                "cells": [_score("accuracy", run.constant), *["–"] * (len(scores) - 1)],
            }
        )
    compared = (run, *baselines[:1])
    classes: list[dict[str, Any]] = [
        {
            "name": f"class {number}" if run.names is None else run.names[number],
            "count": f"{count:,}",
            "share": words.percent(count / run.tests if run.tests else None),
            "cells": [words.percent(each.metrics["class_accuracy"][number]) for each in compared],
        }
        for number, count in enumerate(run.metrics["class_count"])
    ]
    plot = None
    if run.tests and len(classes) <= _MOST_BARS:
        plot = svg.bars(
            f"{anchor}-classes",
            "Accuracy by class",
            [
                (row["name"], [each.metrics["class_accuracy"][n] for each in compared])
                for n, row in enumerate(classes)
            ],
            [each.method for each in compared],
        )
    best = baselines[0] if baselines else None
    lost = None
    if best is not None and run.metrics["accuracy"] is not None:
        points = 100 * (best.metrics["accuracy"] - run.metrics["accuracy"])
        lost = f"{abs(points):.1f} points {'higher' if points < 0 else 'lower'}"
    return {
        "scores": [name for _, name in scores],
        "utility": rows,
        "tests": f"{run.tests:,}",
        "record": run.facts.record,
        "classes": classes,
        "class_columns": [each.method for each in compared],
        "class_plot": plot,
        "class_legend": [
            (svg.legend_bar(n), each.method if each is run else f"{each.method}, in the open")
            for n, each in enumerate(compared)
        ]
        if len(compared) > 1
        else [],
        "lost": lost,
        "best_open": None if best is None else best.method,
    }


def _baselines(run: Evidence, evidence: Sequence[Evidence]) -> list[Evidence]:
    """The open runs that a run may be compared with, the best first."""
    found = [other for other in evidence if _is_baseline(other, run)]
    return sorted(found, key=lambda other: -other.metrics["accuracy"])


def _is_baseline(other: Evidence, run: Evidence) -> bool:
    """In the open, another run, and tested on the same records."""
    same = ("seed",) if run.source["split"] != "given" else ()
    return (
        other is not run
        and other.status == "open"
        and other.trained_alike == run.trained_alike
        and other.metrics["class_count"] == run.metrics["class_count"]
        and other.metrics["accuracy"] is not None
        and all(other.source[key] == run.source[key] for key in same)
    )


def _score(key: str, value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.3f}" if key in ("macro_f1", "roc_auc") else words.percent(value)


def _audit(run: Evidence) -> list[dict[str, str]]:
    return [
        {
            "attack": each.attack,
            "at_least": f"{each.at_least:.4g}",
            "confidence": f"{100 * each.confidence:g}{words.PERCENT}",
            "trials": "–" if each.trials is None else f"{each.trials:,}",
            "note": each.note,
        }
        for each in run.audit
    ]


def _data(run: Evidence) -> list[tuple[str, str]]:
    """The data card: public facts, and what the catalog says of it."""
    facts, entry, source = run.facts, run.entry, run.source
    rows = [
        ("name", run.data),
        (f"{facts.record}s", f"{facts.num_nodes:,}"),
        ("trained on", f"{facts.num_train:,} {facts.record}s"),
        ("tested on", f"{run.tests:,} labelled {facts.record}s"),
        ("features", f"{facts.num_features:,}"),
        ("classes", f"{facts.num_classes:,}"),
        ("split", f"{source['split']}, seed {source['seed']}"),
    ]
    if source.get("train_share", 1.0) != 1:
        rows.append(
            ("share of the training set used", f"{100 * source['train_share']:g}{words.PERCENT}")
        )
    if entry is None:
        return [*rows, ("source", "the user's own; licence and citation are not known here")]
    return [
        *rows,
        ("title", entry.title),
        ("licence", entry.licence),
        ("citation", entry.citation),
        *((name, text) for name, text in (("address", entry.url), ("note", entry.note)) if text),
    ]


def _settings(run: Evidence) -> list[tuple[str, str]]:
    """As they were given; a tuned run's epsilon is one trial's, and not what was promised."""
    found = [(name, _plain(value)) for name, value in sorted(run.settings.items())]
    if not run.tuned:
        return found
    said = "epsilon of one trial; the certificate counts the whole search"
    return [(said if name == "epsilon" else name, value) for name, value in found]


def _plain(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {_plain(each)}" for key, each in value.items())
    return str(value)


# --- several runs ---------------------------------------------------------------------------------


def _labels(members: Sequence[Evidence]) -> dict[str, str]:
    """Methods by name, and by the settings of their own in which runs of one method differ."""
    found = {}
    for run in members:
        usual = METHODS[run.method]().get_params()
        differ = [
            name
            for name, value in sorted(run.settings.items())
            if name not in ("epsilon", "delta", "seed")
            and value != usual.get(name)
            and any(
                each.settings.get(name) != value for each in members if each.method == run.method
            )
        ]
        said = ", ".join(f"{name}={_plain(run.settings[name])}" for name in differ)
        found[run.path] = run.method + (f" ({said})" if said else "")
    return found


def _groups(evidence: Sequence[Evidence]) -> list[dict[str, Any]]:
    """Runs that may stand in one table: the same data and promise; open ones in each."""
    private = [run for run in evidence if run.status != "open"]
    keys = dict.fromkeys(_key(run) for run in private)
    groups: list[dict[str, Any]] = []
    for key in keys:
        members = [run for run in private if _key(run) == key]
        opened = [
            run
            for run in evidence
            if run.status == "open" and run.trained_alike == members[0].trained_alike
        ]
        groups.append(_group(f"group-{len(groups) + 1}", members, opened, evidence))
    covered = {run.trained_alike for run in private}
    for alike in dict.fromkeys(run.trained_alike for run in evidence):
        if alike not in covered:
            opened = [run for run in evidence if run.trained_alike == alike]
            groups.append(_group(f"group-{len(groups) + 1}", [], opened, evidence))
    return groups


def _key(run: Evidence) -> tuple[Any, ...]:
    return (*run.trained_alike, *run.promise)


def _group(
    key: str,
    private: Sequence[Evidence],
    opened: Sequence[Evidence],
    evidence: Sequence[Evidence],
) -> dict[str, Any]:
    labels = _labels([*private, *opened])
    first = (*private, *opened)[0]
    guarantee = first.certificate.guarantee
    ranks = {"proven": 0, "open": 1, "unproven": 2, "void": 2}
    rows = sorted(
        (*private, *opened),
        key=lambda run: (ranks[run.status], run.epsilon or 0.0, labels[run.path], run.path),
    )
    series = _series(private, opened, labels, first.constant)
    drawn = sum(len(each.points) for each in series)
    return {
        "anchor": key,
        "data": first.data,
        "split": first.source["split"],
        "one": ONE[guarantee.unit] if private else None,
        "protects": UNITS[guarantee.unit].protects,
        "leaves_out": UNITS[guarantee.unit].leaves_out
        if guarantee.relation == "withhold"
        else None,
        "degree": first.promise[2],
        "unprotected": first.certificate.unprotected,
        "rows": [_row(run, 1 + list(evidence).index(run), labels[run.path]) for run in rows],
        "plot": svg.curve(f"{key}-curve", series) if drawn > 1 else None,
        "legend": _legend(series),
        "together": _together(
            [
                run
                for run in (_same_people(first, evidence) if private else ())
                if run.status != "open" and run.promise == first.promise
            ]
        ),
    }


def _same_people(first: Evidence, evidence: Sequence[Evidence]) -> list[Evidence]:
    """The runs on a page that are about the same people as one of them, as far as is known."""
    found = [first]
    for each in found:  # which grows: people are the same through others, too
        found += [run for run in evidence if run not in found and run.shares_people(each)]
    return [run for run in evidence if run in found]


def _row(run: Evidence, number: int, label: str) -> dict[str, Any]:
    claim = run.certificate.claim
    claimed = None if claim is None else claim.epsilon
    metrics = run.metrics
    return {
        "anchor": f"run-{number}",
        "path": run.path,
        "label": label,
        "status": run.status,
        "status_text": words.STATUS[run.status],
        "ranked": run.status in ("proven", "open"),
        "epsilon": (run.epsilon, "none" if run.epsilon is None else round_up(run.epsilon)),
        "delta": (
            None if run.epsilon is None else run.certificate.guarantee.delta,
            "–" if run.epsilon is None else f"{run.certificate.guarantee.delta:g}",
        ),
        "claimed": (claimed, "–" if claimed is None else round_up(claimed)),
        "accuracy": (metrics["accuracy"], words.percent(metrics["accuracy"])),
        "macro_f1": (metrics["macro_f1"], _score("macro_f1", metrics["macro_f1"])),
        "seed": (run.source["seed"], str(run.source["seed"])),
    }


def _series(
    private: Iterable[Evidence],
    opened: Iterable[Evidence],
    labels: Mapping[str, str],
    constant: float | None,
) -> list[svg.Series]:
    """Lines of the curve: proven runs by method, the open ones level; void ones are not drawn."""
    points: dict[str, list[tuple[float, float]]] = {}
    for run in private:
        if run.epsilon and run.metrics["accuracy"] is not None:  # a curve over log epsilon
            points.setdefault(labels[run.path], []).append((run.epsilon, run.metrics["accuracy"]))
    series = [svg.Series(label=name, points=tuple(sorted(each))) for name, each in points.items()]
    for run in opened:
        if run.metrics["accuracy"] is not None:
            label = f"{labels[run.path]}, not private"
            series.append(svg.Series(label=label, level=run.metrics["accuracy"]))
    if constant is not None:
        series.append(svg.Series(label="always the commonest class", level=constant))
    return series


def _legend(series: Sequence[svg.Series]) -> list[tuple[Markup, str]]:
    drawn = [each for each in series if each.points]
    level = [each for each in series if not each.points]
    return [
        *((svg.legend_mark(number), each.label) for number, each in enumerate(drawn)),
        *((svg.legend_level(number), each.label) for number, each in enumerate(level)),
    ]


def _together(private: Sequence[Evidence]) -> dict[str, Any] | None:
    """What private runs on the same people, which promise the same, cost if all are released.

    Split, sizes and encoding may differ. Those without a bound are left out.
    """
    held = [run for run in private if run.epsilon is not None]
    if len(held) < 2:
        return None
    delta = max(run.certificate.guarantee.delta for run in held)
    priced = together([run.certificate.event for run in held], delta)
    added = sum(run.epsilon or 0.0 for run in held)
    return {
        "count": len(held),
        "elsewhere": len({run.data for run in private}) > 1,
        "unbounded": len(private) - len(held),
        "epsilon": round_up(priced.epsilon),
        "delta": f"{delta:g}",
        "sum": round_up(added),
        "less": priced.epsilon < added,
    }
