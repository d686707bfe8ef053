"""A folder with a model, its certificate and its card."""

from __future__ import annotations

from functools import partial

import click

from graphveil._errors import InvalidInputError
from graphveil.cli import _options as option
from graphveil.cli._keys import ask, passphrase_file
from graphveil.cli._output import Result
from graphveil.cli._runs import add_cost


@click.command()
@click.argument("run")
@click.option("--out", required=True, help="The folder, which must be new or empty.")
@click.option(
    "--facts",
    type=click.Path(dir_okay=False),
    help="A TOML file with what only the owner knows; options count more.",
)
@click.option("--name", help="What the model is called.")
@click.option("--owner", multiple=True, help="Who publishes it; repeat.")
@click.option("--purpose", help="What it is for.")
@click.option("--license", "license_", help="An identifier such as apache-2.0; it must be stated.")
@click.option("--key", help="Sign the certificate with the private key in this file.")
@click.option("--signer", help="Who signs: a name on one line.")
@passphrase_file
@click.option("--metrics-public", metavar="WHY", help="Show test scores, and say why they may be.")
@click.option("--open", "in_the_open", is_flag=True, help="Publish a model without a guarantee.")
@option.as_json
def publish(  # noqa: PLR0913
    run: str,
    out: str,
    facts: str | None,
    name: str | None,
    owner: tuple[str, ...],
    purpose: str | None,
    license_: str | None,
    key: str | None,
    signer: str | None,
    passphrase_file: str | None,
    metrics_public: str | None,
    in_the_open: bool,
    as_json: bool,
) -> None:
    """A folder with a model, its certificate and its card, for others.

    It holds no metrics, logs, ledgers or paths, and graphveil.read takes it as a run. Upload it
    with huggingface_hub.upload_folder, or give it away as it is.

    \b
    graphveil publish runs/social --out social --license apache-2.0
    """
    from graphveil.privacy import signing
    from graphveil.report import evidence, model_folder, statement
    from graphveil.report.owner import read_owner

    model_folder.check_new(out)
    if (key is None) != (signer is None):
        raise InvalidInputError("'--key' and '--signer' go together; give both, or none.")
    given = {"name": name, "owner": owner, "purpose": purpose, "license": license_}
    stated = read_owner(facts, given)
    private = None if key is None else signing.read_private_key(key, ask(key, passphrase_file))
    read = evidence.read(run)
    sign = None
    if private is not None:
        sign = partial(signing.sign, key=private, signer=signer or "", date=statement.today())
    folder = model_folder.build(
        read, stated, in_the_open=in_the_open, metrics_public=metrics_public, sign=sign
    )
    model_folder.write(folder, out)
    result = Result("Published", run=run, method=read.method)
    add_cost(result, read.certificate)
    result.add("files", sorted(folder.files), "file")
    result.add("metrics_shown", folder.metrics_shown)
    result.add("out", out, "written to")
    result.show(as_json)
