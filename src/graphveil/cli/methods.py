"""The methods and their settings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import click

from graphveil.cli import _options as option
from graphveil.cli._output import Result
from graphveil.cli._settings import method_named

if TYPE_CHECKING:
    from graphveil.methods import Method

_HEAD = """# Settings

On the command line `--set KEY=VALUE`, in `run.toml` under `[settings]`, in Python a keyword
argument. `epsilon`, `delta` and `seed` have options of their own. This page is written by
`graphveil methods --markdown` from the declarations in the code; `graphveil methods NAME` prints
one method's settings.
"""


@click.command()
@click.argument("name", required=False)
@click.option("--markdown", is_flag=True, help="Print docs/settings.md.")
@option.as_json
def methods(name: str | None, markdown: bool, as_json: bool) -> None:
    """The methods, or the settings of one.

    \b
    graphveil methods
    graphveil methods dp-gnn
    """
    from graphveil.methods import METHODS
    from graphveil.methods.settings import describe_settings

    if markdown and not as_json:
        click.echo("\n".join(_page()), nl=False)
        return
    if name is None:
        result = Result("Methods", methods={kind.name: _facts(kind) for kind in METHODS.values()})
        rows = [[key, *map(str, _facts(kind).values())] for key, kind in METHODS.items()]
        result.table(["name", "record", "private", "units", "predicts"], rows)
    else:
        described = describe_settings(method_named(name))
        result = Result(f"Settings of {name}", name=name)
        result.update(
            {"settings": {key: {"doc": d, "rule": r} for key, (d, r) in described.items()}}
        )
        result.table(["setting", "what it is", "values"], [[k, *v] for k, v in described.items()])
    result.show(as_json)


def _facts(kind: type[Method]) -> dict[str, object]:
    return {
        "record": kind.record,
        "private": kind.private,
        "units": ", ".join(kind.units) if kind.private else "",
        "modes": ", ".join(kind.modes),
    }


def _page() -> Iterator[str]:
    """docs/settings.md: settings that several methods share once, then each method's own."""
    from graphveil.methods import METHODS
    from graphveil.methods.settings import describe_settings

    users: dict[tuple[str, str], dict[str, list[str]]] = {}
    for name, kind in METHODS.items():
        for setting, (doc, rule) in describe_settings(kind).items():
            users.setdefault((setting, doc), {}).setdefault(rule, []).append(name)
    shared = {key: rules for key, rules in users.items() if _count(rules) > 1}
    yield _HEAD
    yield "## Shared by several methods\n"
    yield from _table(
        (setting, doc, "; ".join(_of_methods(rule, names) for rule, names in rules.items()))
        for (setting, doc), rules in shared.items()
    )
    for name in METHODS:
        own = {key: rules for key, rules in users.items() if list(rules.values()) == [[name]]}
        if own:
            yield f"\n## {name}\n"
            yield from _table(
                (setting, doc, next(iter(rules))) for (setting, doc), rules in own.items()
            )
    yield ""


def _count(rules: dict[str, list[str]]) -> int:
    return sum(map(len, rules.values()))


def _of_methods(rule: str, names: list[str]) -> str:
    return f"{rule} ({', '.join(names)})"


def _table(rows: Iterable[tuple[str, str, str]]) -> Iterator[str]:
    yield "| setting | what it is | values |"
    yield "| --- | --- | --- |"
    for setting, doc, rule in rows:
        cells = (text.replace("|", "\\|") for text in (doc, rule))
        yield f"| `{setting}` | {' | '.join(cells)} |"
