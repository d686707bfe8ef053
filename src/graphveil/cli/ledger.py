"""The ledger: what was ever spent on some people's data, and what is left."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from graphveil._errors import InvalidInputError
from graphveil._inputs import read_text
from graphveil.cli._shared import figure, force_option, json_option, show

if TYPE_CHECKING:
    from graphveil.privacy.ledger_state import Account, LedgerState

_path = click.argument("path")


@click.group()
def ledger() -> None:
    """What was ever spent on some people's data: accounts with a budget for life.

    \b
    graphveil ledger open study.ledger --name patients --epsilon 8 --delta 1e-6
                          --who "patients of ward 3, 2024"
    graphveil train dp-gnn --data social --epsilon 2 --out runs/first --ledger study.ledger
    graphveil ledger show study.ledger
    """


@ledger.command(name="open")
@_path
@click.option("--name", required=True, help="The account's name.")
@click.option("--epsilon", required=True, type=float, help="What may ever be spent on the data.")
@click.option("--delta", required=True, type=float, help="Below 1/units.")
@click.option("--unit", help="node, edge-directed, edge-undirected or graph; else the first run's.")
@click.option("--who", help="Whose data it is, for everybody to read: one line.")
@json_option
def open_(
    path: str,
    name: str,
    epsilon: float,
    delta: float,
    unit: str | None,
    who: str | None,
    as_json: bool,
) -> None:
    """Make an account, and the file if there is none.

    An account is for people, in whatever form their data is given: keep one for one set of them.
    """
    from graphveil.privacy.ledger import Ledger

    book = Ledger(path).open(name, epsilon, delta, unit, who)
    account = book.account(name)
    result = {
        "ledger": path,
        "account": name,
        "epsilon": account.epsilon,
        "delta": account.delta,
        "unit": account.unit,
        "who": account.who,
        **_chain(book),
    }
    rows = [
        ("budget", f"epsilon {account.epsilon:g} at delta {account.delta:g}, for life"),
        ("unit", account.unit or "that of the first run"),
        ("who", _who(account)),
        *_chain_rows(book),
    ]
    show(result, as_json, f"Account {name!r} of {path}", rows)


def _who(account: Account) -> str:
    return account.who or f"not said; by its name {account.name!r} alone"


@ledger.command(name="show")
@_path
@click.option("--account", help="One account only.")
@json_option
def show_(path: str, account: str | None, as_json: bool) -> None:
    """What is spent, and what is left."""
    from graphveil.privacy.ledger import Ledger

    book = Ledger(path).read()
    accounts = list(book.accounts.values()) if account is None else [book.account(account)]
    dates = _dates(book)
    priced = [_priced(each, dates) for each in accounts]
    rows: list[tuple[str, str]] = []
    for each, cost in zip(accounts, priced, strict=True):
        rows += [*_account_rows(each, cost), ("", "")]
    result = {"ledger": path, "accounts": priced, **_chain(book)}
    show(result, as_json, f"Ledger {path}", [*rows, *_chain_rows(book)])


def _dates(book: LedgerState) -> dict[str, str]:
    """When each reservation was first made."""
    bodies = [json.loads(text) for text, _ in reversed(book.entries)]
    return {each["id"]: each.get("at", "") for each in bodies if each["kind"] == "reserve"}


def _priced(account: Account, dates: dict[str, str]) -> dict[str, Any]:
    from graphveil.privacy.composing import together

    promise, seen = account.promise, account.seen
    return {
        "account": account.name,
        "epsilon": account.epsilon,
        "delta": account.delta,
        "unit": account.unit if promise is None else promise.unit,
        "who": account.who,
        "relation": None if promise is None else promise.relation,
        "public_degree": None if promise is None else promise.public_degree,
        "spent": account.spent(),
        "used": account.used(),
        "sum_of_epsilons": account.plain_sum(),
        "left": account.left(),
        "overdrawn": account.overdrawn,
        "charges": [
            {
                "id": each.id,
                "at": dates[each.id],
                "purpose": each.purpose,
                "run": each.run,
                "epsilon": together([each.event], account.delta).epsilon,
                "settled": each.settled is not None,
                "begun": each.begun,
            }
            for each in account.charged
        ],
        "open": [
            {"id": each.id, "purpose": each.purpose, "run": each.run} for each in account.waiting
        ],
        "facts": None if seen is None else seen.facts,
        "versions": [
            {"fingerprint": name, "at": dates[each.id], "run": each.run}
            for name, each in account.versions.items()
        ],
    }


def _account_rows(account: Account, cost: dict[str, Any]) -> list[tuple[str, str]]:
    from graphveil.privacy.ledger import percent, round_down

    unit = cost["unit"] or "whatever the first run protects"
    unit += "" if cost["relation"] is None else f" ({cost['relation']})"
    spent = f"epsilon {figure(cost['spent'])}, by composition"
    used = f"{percent(cost['used'])} of the budget, however runs were chosen by others' results"
    count = len(cost["charges"])
    alone = f"{count} charge{'' if count == 1 else 's'}, each priced by itself"
    rows = [
        ("account", account.name),
        ("budget", f"epsilon {account.epsilon:g} at delta {account.delta:g}"),
        ("spent", spent),
        ("used", used + ("; OVERDRAWN" if cost["overdrawn"] else "")),
        ("plain sum", f"epsilon {figure(cost['sum_of_epsilons'])}, of {alone}"),
        ("left", f"epsilon {round_down(cost['left'])}, for one Gaussian release"),
        ("unit", unit),
        ("who", _who(account)),
        *([] if cost["versions"] else [("data", "none seen yet")]),
    ]
    for number, each in enumerate(cost["versions"], 1):
        said = f"version {number}, {each['fingerprint'][:12]}, first seen {each['at'][:10]}"
        rows.append(("data", said + (f" in {each['run']}" if each["run"] else "")))
    for each in cost["charges"]:
        price = f"epsilon {figure(each['epsilon'])} by itself"
        where = f", in {each['run']}" if each["run"] else ""
        rows.append(("charge", f"{each['at'][:10]}  {price}, {each['purpose']}{where}"))
    for each in account.waiting:
        said = "begun and not settled" if each.begun else "not settled"
        rows.append((said, f"{each.purpose}, in {each.run or 'an unknown place'}"))
    return rows


@ledger.command()
@_path
@click.argument("more", nargs=-1, metavar="[DIR]...")
@click.option("--head", help="A hash that was noted earlier: it must still be there.")
@click.option("--at-least", type=int, help="So many entries there must be.")
@click.option("--runs", multiple=True, metavar="DIR...", help="Run directories to compare with it.")
@json_option
def verify(
    path: str,
    more: tuple[str, ...],
    head: str | None,
    at_least: int | None,
    runs: tuple[str, ...],
    as_json: bool,
) -> None:
    """Check the file, the chain, every entry and every budget again.

    With --runs, also that each run is charged for at least what its own files say.
    """
    from graphveil.privacy.ledger import Ledger

    if more and not runs:
        raise click.UsageError(f"Runs must be named by '--runs'. Got {more[0]!r} without it.")
    book = Ledger(path).verify(head, at_least)
    result = {"ledger": path, "holds": True, **_chain(book)}
    rows = [("holds", "chain, entries and budgets"), *_chain_rows(book)]
    if runs:
        from graphveil.runs import check_charged

        checked = check_charged(path, [*runs, *more])
        count = sum(len(account.charged) for account in book.accounts.values())
        result |= {"runs": [*runs, *more], "charges_of_runs": checked}
        rows.append(("runs", f"{len([*runs, *more])}, which made {checked} of {count} charges"))
    if not head:
        rows.append(("note", "a cut-off end is noticed by --head, with a hash kept elsewhere"))
    if not runs:
        rows.append(("note", "a settlement to too little is noticed by --runs, with its run"))
    show(result, as_json, f"Ledger {path}", rows)


@ledger.command()
@_path
@click.option("--out", help="A file; without it the JSON goes to stdout.")
@force_option
@json_option
def export(path: str, out: str | None, force: bool, as_json: bool) -> None:
    """The whole ledger as JSON, with the chain."""
    from graphveil._files import write_file
    from graphveil.cli.training import check_file
    from graphveil.privacy.ledger import Ledger

    if out is None:
        text = Ledger(path).export()
        click.echo(json.dumps(json.loads(text)) if as_json else text.rstrip())
        return
    check_file(out, force)
    file = os.path.realpath(path)
    if os.path.realpath(out) in (f"{file}{end}" for end in ("", "-journal", "-wal")):
        raise InvalidInputError(
            f"An export must not take the place of the ledger itself. Got {out} instead; choose "
            "another name."
        )
    text = Ledger(path).export()
    book = Ledger(path).read()
    try:
        write_file(Path(out), text.encode(), private=True)  # it holds the ledger's secret
    except OSError as error:
        raise InvalidInputError(f"{out} cannot be written: {error.strerror}.") from None
    show(
        {"ledger": path, "out": out, **_chain(book)},
        as_json,
        f"Ledger {path}",
        [("written to", out), *_chain_rows(book)],
    )


@ledger.command(name="import")
@_path
@click.argument("exported")
@json_option
def import_(path: str, exported: str, as_json: bool) -> None:
    """Make the ledger PATH from a file that export wrote."""
    from graphveil.privacy.ledger import Ledger

    try:
        text = read_text(exported)
    except OSError as error:
        raise InvalidInputError(f"{exported} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise InvalidInputError(f"{exported} is no export of a ledger: it is no text.") from None
    book = Ledger(path).restore(text)
    show({"ledger": path, **_chain(book)}, as_json, f"Ledger {path}", _chain_rows(book))


def _chain(book: LedgerState) -> dict[str, Any]:
    return {"entries": len(book.entries), "head": book.head}


def _chain_rows(book: LedgerState) -> list[tuple[str, str]]:
    return [("entries", str(len(book.entries))), ("head", book.head)]
