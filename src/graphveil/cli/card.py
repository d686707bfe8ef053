"""A run as a record for the OpenDP Deployments Registry."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from graphveil.cli import _options as option
from graphveil.cli._output import Result, check_file, figure, write_text


@click.command()
@click.argument("run")
@option.owner
@click.option("--out", help="The card, a YAML file; else it is printed.")
@click.option("--draft", is_flag=True, help="Write 'TODO by owner' where something is missing.")
@option.force
@option.as_json
def card(run: str, out: str | None, draft: bool, force: bool, as_json: bool, **given: Any) -> None:
    """A run as a record for the OpenDP Deployments Registry.

    What the run knows comes from its certificate. What only its owner knows is asked for, and
    never invented; docs/certificates.md lists it.

    \b
    graphveil card runs/social --facts owner.toml --out social.yaml
    """
    from graphveil.report import deployment, evidence
    from graphveil.report.owner import read_owner

    if out is not None:
        deployment.check_name(Path(out).name)
    check_file(out, force)
    owner = read_owner(given.pop("facts"), given)
    read = evidence.read(run)
    record = deployment.card(read, owner, draft=draft)
    text = deployment.to_yaml(record)
    if out is not None:
        write_text(out, text)
    elif not as_json:
        click.echo(text, nl=False)
        return
    missing = owner.missing(deployment.REQUIRED)
    result = Result("Deployment card", run=run, card=record, missing=missing)
    result.row("epsilon", figure(read.epsilon))
    result.row("tier", str(record["tier"]))
    result.row("missing", ", ".join(missing) if missing else None)
    result.add("out", out, "written to")
    result.show(as_json)
