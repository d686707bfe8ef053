"""Pages from templates of ours: one HTML file each, no network, no fonts, opens from a disk.

Text is escaped by jinja2, characters that hide or reorder text are shown as such, and the page's
own policy lets run only the one script that is in it, by its hash. The same content gives the same
bytes.
"""

from __future__ import annotations

import base64
import hashlib
import unicodedata
from typing import Any

import jinja2
from markupsafe import Markup

from graphveil import __version__
from graphveil.privacy.guarantee import round_up
from graphveil.report.wording import STATUS, one_in


def fill(template: str, script: str, **content: Any) -> str:
    """A template with the style sheet, one script, and a policy that names their hashes."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("graphveil", "report/templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=replace_hidden,
    )
    environment.filters |= {"bound": round_up, "one_in": one_in}
    environment.filters |= {"in_words": STATUS.get}
    style, code = (_source(environment, name) for name in ("page.css", script))
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(code)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    return environment.get_template(template).render(
        style=style, script=code, policy=policy, version=__version__, **content
    )


def replace_hidden(value: Any) -> Any:
    """Text without characters that hide or reorder it; what is markup already stays as it is."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return "".join(
        "\N{REPLACEMENT CHARACTER}"
        if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co") and character not in "\n\t"
        else character
        for character in value
    )


def _source(environment: jinja2.Environment, name: str) -> Markup:
    assert environment.loader is not None
    return Markup(environment.loader.get_source(environment, name)[0])


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
