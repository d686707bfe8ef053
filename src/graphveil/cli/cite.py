"""BibTeX of the papers behind a method, and of this library."""

from __future__ import annotations

import click

from graphveil.cli import _options as option
from graphveil.cli._output import Result


@click.command()
@click.argument("method", required=False)
@option.as_json
def cite(method: str | None, as_json: bool) -> None:
    """BibTeX of the papers behind a method, and of this library.

    Without a method it is of the library alone.

    \b
    graphveil cite gap >> references.bib
    """
    from graphveil.report import citations

    text = citations.bibtex(method)
    if not as_json:
        return click.echo(text, nl=False)
    papers = {} if method is None else citations.papers(method)
    result = Result("Citations", method=method, papers=papers, library=citations.library())
    result.update({"bibtex": text})
    result.show(True)
