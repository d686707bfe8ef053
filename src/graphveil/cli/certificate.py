"""A certificate to hand over: shown, signed, verified."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import click

from graphveil._errors import InvalidInputError
from graphveil.cli import _options as option
from graphveil.cli._keys import ask, passphrase_file, read_passphrase
from graphveil.cli._output import Result, check_file, visible, write_json
from graphveil.cli._runs import add_cost, price

if TYPE_CHECKING:
    from graphveil.report.statement import Verified


@click.group()
def certificate() -> None:
    """A certificate to hand over: shown, signed, verified.

    \b
    graphveil certificate key make ann.pem
    graphveil certificate sign runs/social --key ann.pem --signer "Ann, Ward 3" --out ward.json
    graphveil certificate verify ward.json --trusted ann.pem.pub --run runs/social
    """


@certificate.command(name="show")
@click.argument("run")
@option.as_json
def show_(run: str, as_json: bool) -> None:
    """The certificate of a run, checked against its charges, and its fingerprint."""
    from graphveil.privacy.signing import fingerprint
    from graphveil.report import evidence
    from graphveil.report.statement import statement_of

    read = evidence.read(run)
    statement = statement_of(read)
    if as_json:
        result = Result("Certificate", run=run, fingerprint=fingerprint(statement))
        result.update(statement)
        return result.show(True)
    click.echo(visible(str(read.certificate)))
    click.echo(f"\nFINGERPRINT\n  {fingerprint(statement)}")


# --- keys -----------------------------------------------------------------------------------------


@certificate.group()
def key() -> None:
    """Keys to sign with: a private one for their owner, a public one for everybody."""


@key.command(name="make")
@click.argument("path")
@click.option("--passphrase", is_flag=True, help="Put the key behind a passphrase, asked twice.")
@passphrase_file
@option.as_json
def make_(path: str, passphrase: bool, passphrase_file: str | None, as_json: bool) -> None:
    """A new key pair: PATH for its owner alone, PATH.pub for everybody. Nothing is written over."""
    from graphveil.privacy import signing

    word = read_passphrase(f"Passphrase of {path}", passphrase, passphrase_file, confirm=True)
    public = signing.make_key(path, word)
    result = Result("Key", key=path)
    result.add("out", path, "private", lambda name: f"{name}: show it to nobody, and keep a copy")
    result.add("public", str(signing.public_path(path)), "public", lambda name: f"{name}: give it")
    result.add("public_key", public, "public key")
    result.add("passphrase", word is not None)
    result.show(as_json)


@key.command(name="show")
@click.argument("path")
@passphrase_file
@option.as_json
def show_key(path: str, passphrase_file: str | None, as_json: bool) -> None:
    """The public key of a file, be it the private or the public half."""
    from graphveil._inputs import read_text
    from graphveil.privacy import signing

    try:
        private = "PRIVATE" in read_text(path)
    except (OSError, UnicodeDecodeError):
        private = False  # refused below, in words
    public = (
        signing.read_private_key(path, ask(path, passphrase_file)).public_key()
        if private
        else signing.read_public_key(path)
    )
    result = Result("Key")
    result.add("key", path, "file")
    result.add("public_key", signing.hex_of(public), "public key")
    result.show(as_json)


# --- signatures -----------------------------------------------------------------------------------


@certificate.command(name="sign")
@click.argument("run")
@click.option("--key", "key_", required=True, help="The file of the private key.")
@click.option("--signer", required=True, help="Who signs: a name on one line.")
@click.option("--out", required=True, help="The signed certificate, a JSON file.")
@passphrase_file
@option.force
@option.as_json
def sign_(
    run: str,
    key_: str,
    signer: str,
    out: str,
    passphrase_file: str | None,
    force: bool,
    as_json: bool,
) -> None:
    """The certificate of a run with what ran and the hash of its weights, signed.

    The certificate is made again from the run's charges before it is signed.
    """
    from graphveil.privacy import signing

    check_file(out, force)
    check_beside(out, run)
    private = signing.read_private_key(key_, ask(key_, passphrase_file))
    from graphveil.report import evidence, statement

    content = statement.statement_of(evidence.read(run))
    signed = signing.sign(content, private, signer=signer, date=statement.today())
    write_json(out, signed)
    result = Result("Signed certificate", run=run)
    result.add("signer", signed["signer"], "signer")
    result.add("date", signed["date"], "date")
    result.add("public_key", signed["public_key"], "public key")
    result.add("fingerprint", signing.fingerprint(content), "fingerprint")
    result.add("out", out, "written to")
    result.show(as_json)


def check_beside(out: str, run: str) -> None:
    """Refuse a file inside a run, whose directory holds the run's own files alone."""
    if Path(out).absolute().parent.resolve() == Path(run).absolute().resolve():
        raise InvalidInputError(
            f"{out} cannot be written into the run, whose directory holds its own files alone; "
            "choose a place beside it."
        )


@certificate.command(name="verify")
@click.argument("file")
@click.option(
    "--trusted",
    metavar="PUBLIC",
    help="The signer's public key, got another way: a file, or its 64 hexadecimal digits.",
)
@click.option("--run", help="A run, a published folder or a file of weights to compare.")
@option.as_json
def verify_(file: str, trusted: str | None, run: str | None, as_json: bool) -> None:
    """Who signed, what the charges cost, and whose weights it is about; exit code 3 if not so.

    The certificate is made again from its plan and the charges that are listed. Of a folder, files
    beside the weights are compared, too. Without --trusted nothing is verified: a key that only the
    file itself names may be anybody's.
    """
    from graphveil.privacy import signing
    from graphveil.report.statement import verify

    signing.require_cryptography()
    signed = signing.read_signed(file)
    verified = verify(signed, None if trusted is None else signing.read_public_key(trusted), run)
    result = Result("Verified", file=file, verified=True)
    result.add("signer", verified.signer, "signed by")
    result.add("date", verified.date, "date", lambda date: f"{date}, by the signer's clock")
    result.add("public_key", verified.public_key, "with the trusted key")
    result.row("key withdrawn?", "no file can say: ask where you got the key")
    result.add("method", verified.method, "method")
    add_cost(result, verified.certificate, "computed again")
    _add_since(result, verified)
    result.add("weights_sha256", verified.weights_sha256)
    result.add("has_weights", verified.has_weights)
    own = "those at hand" if verified.has_weights else "not compared; give them with --run"
    result.row("weights", own)
    result.add("compared", list(verified.compared))
    result.add("not_compared", list(verified.not_compared))
    if verified.has_weights:
        result.row("compared, too", ", ".join(verified.compared) or "nothing: only the weights")
    if verified.not_compared:
        result.row("not compared", f"{', '.join(verified.not_compared)}: not signed here")
    result.add("fingerprint", verified.fingerprint, "fingerprint")
    result.show(as_json)


def _add_since(result: Result, verified: Verified) -> None:
    """What was charged to the run at hand since it was signed: the signed epsilon is too small."""
    if verified.now is None:
        return result.add("charged_since", 0)
    more = len(verified.now.charges) - len(verified.certificate.charges)
    now = verified.now.guarantee
    result.add("charged_since", more)
    result.add("epsilon_now", now.epsilon)
    cost = "no guarantee" if math.isinf(now.epsilon) else price(now)
    result.row(
        "charged since",
        f"{more} more, by the run's own files. All together: {cost}. The signature is about less; "
        "ask for one anew",
    )
