"""The ledger: what was ever spent on some people's data, and what is left."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import click

from graphveil._errors import InvalidInputError
from graphveil._inputs import read_text
from graphveil.cli import _options as option
from graphveil.cli._output import Result, check_file, figure, plural, write_text

if TYPE_CHECKING:
    from graphveil.privacy.ledger_state import Account, LedgerState

_path = click.argument("path")


@click.group()
def ledger() -> None:
    """What was ever spent on some people's data, and what is left.

    A ledger is a list of accounts, each with a budget for life: a file, or tables of a PostgreSQL
    server, postgresql://USER@HOST/DATABASE, which a team shares. The server's password is read
    where PostgreSQL's programs read it (PGPASSFILE, PGSERVICE).

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
@option.as_json
def open_(
    path: str,
    name: str,
    epsilon: float,
    delta: float,
    unit: str | None,
    who: str | None,
    as_json: bool,
) -> None:
    """Make an account, and the ledger if there is none.

    An account is for people, in whatever form their data is given: keep one for one set of them.
    """
    from graphveil.privacy.ledger import Ledger

    chain = Ledger(path)
    book = chain.open(name, epsilon, delta, unit, who)
    account = book.account(name)
    result = Result(f"Account {name!r} of {chain.name}", ledger=chain.name, account=name)
    result.update({key: getattr(account, key) for key in ("epsilon", "delta", "unit", "who")})
    result.row("budget", f"epsilon {account.epsilon:g} at delta {account.delta:g}, for life")
    result.row("unit", account.unit or "that of the first run")
    result.row("who", _who(account))
    _add_chain(result, book)
    result.show(as_json)


def _who(account: Account) -> str:
    return account.who or f"not said; by its name {account.name!r} alone"


@ledger.command(name="show")
@_path
@click.option("--account", help="One account only.")
@option.as_json
def show_(path: str, account: str | None, as_json: bool) -> None:
    """What is spent, and what is left."""
    from graphveil.privacy.ledger import Ledger

    chain = Ledger(path)
    book = chain.read()
    accounts = list(book.accounts.values()) if account is None else [book.account(account)]
    dates = book.moments
    costs = [_price(one, dates) for one in accounts]
    result = Result(f"Ledger {chain.name}", ledger=chain.name, accounts=costs)
    result.update({"moved_to": book.moved_to})
    if book.moved_to is not None:
        result.row("moved", f"it goes on at {book.moved_to}; nothing is charged here any more")
        result.row("", "")
    for one, cost in zip(accounts, costs, strict=True):
        _add_account(result, one, cost)
        result.row("", "")
    _add_chain(result, book)
    result.show(as_json)


def _price(account: Account, dates: dict[str, str]) -> dict[str, Any]:
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
                "id": one.id,
                "at": dates[one.id],
                "purpose": one.purpose,
                "run": one.run,
                "epsilon": together([one.event], account.delta).epsilon,
                "settled": one.settled is not None,
                "begun": one.begun,
            }
            for one in account.charged
        ],
        "open": [{"id": one.id, "purpose": one.purpose, "run": one.run} for one in account.waiting],
        "facts": None if seen is None else seen.facts,
        "versions": [
            {"fingerprint": name, "at": dates[one.id], "run": one.run}
            for name, one in account.versions.items()
        ],
    }


def _add_account(result: Result, account: Account, cost: dict[str, Any]) -> None:
    from graphveil.privacy.ledger import percent, round_down

    unit = cost["unit"] or "whatever the first run protects"
    unit += "" if cost["relation"] is None else f" ({cost['relation']})"
    used = f"{percent(cost['used'])} of the budget, however runs were chosen by others' results"
    alone = f"{plural(len(cost['charges']), 'charge')}, each priced by itself"
    result.row("account", account.name)
    result.row("budget", f"epsilon {account.epsilon:g} at delta {account.delta:g}")
    result.row("spent", f"epsilon {figure(cost['spent'])}, by composition")
    result.row("used", used + ("; OVERDRAWN" if cost["overdrawn"] else ""))
    result.row("plain sum", f"epsilon {figure(cost['sum_of_epsilons'])}, of {alone}")
    result.row("left", f"epsilon {round_down(cost['left'])}, for one Gaussian release")
    result.row("unit", unit)
    result.row("who", _who(account))
    if not cost["versions"]:
        result.row("data", "none seen yet")
    for number, version in enumerate(cost["versions"], 1):
        where = f" in {version['run']}" if version["run"] else ""
        seen = f"{version['fingerprint'][:12]}, first seen {version['at'][:10]}"
        result.row("data", f"version {number}, {seen}{where}")
    for charge in cost["charges"]:
        price = f"epsilon {figure(charge['epsilon'])} by itself"
        where = f", in {charge['run']}" if charge["run"] else ""
        result.row("charge", f"{charge['at'][:10]}  {price}, {charge['purpose']}{where}")
    for one in account.waiting:
        label = "begun and not settled" if one.begun else "not settled"
        result.row(label, f"{one.purpose}, in {one.run or 'an unknown place'}")


@ledger.command()
@_path
@click.argument("more", nargs=-1, metavar="[DIR]...")
@click.option("--head", help="A hash that was noted earlier: it must still be there.")
@click.option("--at-least", type=int, help="So many entries there must be.")
@click.option("--runs", multiple=True, metavar="DIR...", help="Run directories to compare with it.")
@option.as_json
def verify(
    path: str,
    more: tuple[str, ...],
    head: str | None,
    at_least: int | None,
    runs: tuple[str, ...],
    as_json: bool,
) -> None:
    """Check the file or the tables, the chain, every entry and every budget again.

    With --runs, also that each run is charged for at least what its own files say.
    """
    from graphveil.privacy.ledger import Ledger

    if more and not runs:
        raise click.UsageError(f"Runs must be named by '--runs'. Got {more[0]!r} without it.")
    chain = Ledger(path)
    book = chain.verify(head, at_least)
    result = Result(f"Ledger {chain.name}", ledger=chain.name)
    result.add("holds", True, "holds", lambda _: "chain, entries and budgets")
    _add_chain(result, book)
    if runs:
        from graphveil.runs import check_charged

        directories = [*runs, *more]
        charges = check_charged(path, directories)
        count = sum(len(account.charged) for account in book.accounts.values())
        result.update({"runs": directories, "charges_of_runs": charges})
        result.row("runs", f"{len(directories)}, which made {charges} of {count} charges")
    if not head:
        result.row("note", "a cut-off end is noticed by --head, with a hash kept elsewhere")
    if not runs:
        result.row("note", "a settlement to too little is noticed by --runs, with its run")
    result.show(as_json)


@ledger.command()
@_path
@click.option("--out", help="A file; without it the JSON goes to stdout.")
@option.force
@option.as_json
def export(path: str, out: str | None, force: bool, as_json: bool) -> None:
    """The whole ledger as JSON, with the chain."""
    from graphveil.privacy.ledger import Ledger

    chain = Ledger(path)
    if out is None:
        text = chain.export()
        click.echo(json.dumps(json.loads(text)) if as_json else text.rstrip())
        return
    check_file(out, force)
    file = os.path.realpath(chain.place)
    if os.path.realpath(out) in (f"{file}{end}" for end in ("", "-journal", "-wal")):
        raise InvalidInputError(
            f"An export must not take the place of the ledger itself. Got {out} instead; choose "
            "another name."
        )
    text = chain.export()
    book = chain.read()
    write_text(out, text, private=True)  # it holds the ledger's secret
    result = Result(f"Ledger {chain.name}", ledger=chain.name)
    result.add("out", out, "written to")
    _add_chain(result, book)
    result.show(as_json)


@ledger.command(name="import")
@_path
@click.argument("exported")
@option.as_json
def import_(path: str, exported: str, as_json: bool) -> None:
    """Make the ledger PATH from a file that export wrote."""
    from graphveil.privacy.ledger import Ledger

    try:
        text = read_text(exported)
    except OSError as error:
        raise InvalidInputError(f"{exported} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise InvalidInputError(f"{exported} is no export of a ledger: it is no text.") from None
    chain = Ledger(path)
    book = chain.restore(text)
    result = Result(f"Ledger {chain.name}", ledger=chain.name)
    _add_chain(result, book)
    result.show(as_json)


@ledger.command()
@_path
@click.argument("to", metavar="NEW")
@option.as_json
def migrate(path: str, to: str, as_json: bool) -> None:
    """Have the ledger PATH go on at NEW, a file or a URL where no ledger is.

    All entries keep their hashes. PATH has ended then: it can be read, and refuses to be charged.
    What was killed halfway is finished by the same command.
    """
    from graphveil.privacy.ledger import Ledger

    chain, new = Ledger(path), Ledger(to)
    book = chain.move(new)
    result = Result(f"Ledger {new.name}", ledger=new.name, moved_from=chain.name)
    result.row("moved from", f"{chain.name}, which is not charged any more")
    result.row("runs", f"go on with --resume --ledger {new.name}")
    _add_chain(result, book)
    result.show(as_json)


@ledger.command()
@click.option("--trainers", default="graphveil_trainers", help="The role of those who train.")
@click.option("--auditors", default="graphveil_auditors", help="The role of those who audit.")
@option.as_json
def roles(trainers: str, auditors: str, as_json: bool) -> None:
    """Print SQL that makes two roles for a ledger on PostgreSQL; psql runs it.

    Trainers add entries and change none; auditors read.
    """
    from graphveil.privacy.ledger_tables import roles_sql

    text = roles_sql(trainers, auditors)
    click.echo(json.dumps({"sql": text}) if as_json else text.rstrip())


def _add_chain(result: Result, book: LedgerState) -> None:
    result.add("entries", len(book.entries), "entries")
    result.add("head", book.head, "head")
