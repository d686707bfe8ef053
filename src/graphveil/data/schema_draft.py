"""A first schema by the names of columns alone: values are private, and are not looked at.

What only the owner knows is a question mark, which training refuses. What a name suggests is
marked as a guess. Neither pandas nor torch is loaded here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from graphveil._errors import InvalidInputError
from graphveil.data.schema import write_key, write_value

_HEAD = """\
# What is public of these tables: a first draft, made from the names of columns alone.
# Fill in every "?": what you know without looking at the data. What is marked "# ?" was guessed
# from a name; correct it. Kinds are number, category, date, flag, text and ignored; add
# optional = true where a cell may be empty. docs/schema.md explains each entry.
"""
_HEAD_OF_TYPES = """\
# What is public of these tables: a first draft, made from the names of columns alone.
# Fill in every "?": what you know without looking at the data. What is marked "# ?" was guessed
# from a name; correct it. A type that is public may have its columns left out if they are numbers.
# docs/relations.md explains each entry.
"""
_ENDS = ("source", "target")
_ID = re.compile(r"(.*_)?(id|uuid|key|nr|mrn)|.+_no|[a-z]id")
_UNIT = re.compile(r"[(\[][^)\]]*[)\]]\s*$")  # of a measurement, behind its name
_LABELS = ("label", "target", "outcome", "class", "y")
_SPLITS = ("split", "fold", "part")
_KINDS = (  # the first that fits
    (
        "ignored",
        r"(.*_)?(id|uuid|mrn|name|firstname|surname|email|phone|address)s?(_(number|no|nr))?",
    ),
    ("date", r"(.*_)?(date|datum|dob)(_.*)?|(?!.*candidate).*(date|datum|timestamp|birthday)"),
    ("date", r"(.*_)?(date)?time|.*_(at|on|since|until)|(admitted|born)"),
    ("flag", r"(is|has|had|was|does|can)_.*|.*_(flag|yn)|smoker|active|deleted"),
    ("category", r"(.*_)?(sex|gender|country|region|state|type|kind|status|group|category|ward)"),
    ("hashed", r"(.*_)?(zip|postcode|postal_code|zipcode|plz|code|city|icd)(_?[0-9]+)?"),
    ("text", r".*(text|note|notes|comment|comments|description|remarks|title)"),
    ("number", r".*_(count|days|years|mg|ml|kg|cm|mmol|rate|score|level|price|amount)|n_.*|num_.*"),
    (
        "number",
        r"(.*_)?(age|height|weight|bmi|income|salary|price|amount|size|length|score|posts|visits)"
        r"(_of_.*)?",
    ),
)
_ENTRIES = {
    "number": (
        'low = "?"     # the least value that can occur',
        'high = "?"    # the largest; values outside are cut to the range',
    ),
    "category": ('values = "?"  # the public list, as ["a", "b"]; or buckets = 64 for a hash',),
    "hashed": ("buckets = 64   # ? columns of a hash; or values = [...], the public list",),
    "date": (
        'origin = "?"     # a public date, as "2020-01-01"',
        'scale = "365 days"  # ? what counts as 1',
    ),
    "flag": (),
    "text": ("buckets = 256  # ? columns for hashed words; or embed = true",),
    "ignored": (),
}
_UNKNOWN = (
    '# as number: low = 0, high = 10; as category: values = ["a", "b"]; as flag, text, ignored: -',
)


def draft(
    columns: Sequence[str], *, of_graphs: Sequence[str] = (), of_edges: Sequence[str] = ()
) -> str:
    """The text of a first ``schema.toml`` for a table with these ``columns``.

    ``of_graphs`` are the columns of a table of graphs, whose label is predicted then, and
    ``of_edges`` those of the table of edges.

    *Guarantee*: none is needed; names of columns are public, and nothing else is read.
    """
    if not columns:
        raise InvalidInputError("A schema must be about a column. Got a table without any instead.")
    records = of_graphs or columns
    known = {"graph", "id"} if of_graphs else set()
    head = ['unit = "?"   # what one record is: "patient", "customer", "molecule"']
    name = "id" if "id" in records else next((n for n in records if _is_id(n)), None)
    if name != "id":
        head.append(f"id = {write_value(name or '?')}   # ? the column of ids")
    split = next((name for name in records if _words(name) in _SPLITS), None)
    if split not in (None, "split"):
        head.append(f"split = {write_value(split)}   # ? says train, val or test")
    head += _owners(records, name)
    label = next((name for name in records if _words(name) in _LABELS), "?")
    taken = known if of_graphs else {name, split, label}
    blocks = [f"{_HEAD}\n" + "\n".join(head)]
    blocks += [_block(name) for name in columns if name not in taken]
    blocks.append(_label(label))
    blocks.append(_edges(of_edges))
    return "\n\n".join(block for block in blocks if block) + "\n"


def draft_types(types: Mapping[str, Sequence[str]], relations: Mapping[str, Sequence[str]]) -> str:
    """The text of a first ``schema.toml`` for tables of several types, by their columns.

    *Guarantee*: none is needed; names of columns are public, and nothing else is read.
    """
    listed = ", ".join(types)
    blocks = [
        f"{_HEAD_OF_TYPES}\npeople = "
        f'"?"   # the list of types that are people, of: {listed}; all others are public\n'
        'target = "?"   # the type of people whose label is predicted; or link = a relation'
    ]
    for kind, columns in types.items():
        place = f"types.{write_key(kind)}"
        name = "id" if "id" in columns else next((n for n in columns if _is_id(n)), None)
        head = [f"[{place}]", *([] if name == "id" else [f"id = {write_value(name or '?')}   # ?"])]
        split = next((n for n in columns if _words(n) in _SPLITS), None)
        head += [] if split in (None, "split") else [f"split = {write_value(split)}   # ?"]
        head += _owners(columns, name)
        blocks.append("\n".join(head))
        label = next((n for n in columns if _words(n) in _LABELS), None)
        taken = {name, split, label}
        blocks += [_block(n, f"{place}.columns") for n in columns if n not in taken]
        if label is not None:
            blocks.append(_label(label, f"{place}.label"))
    for relation, columns in relations.items():
        ends = [] if {"source", "target"} <= set(columns) or len(columns) < 2 else columns[:2]
        lines = [f"{end} = {write_value(n)}   # ?" for end, n in zip(_ENDS, ends, strict=False)]
        blocks.append("\n".join([f"[relations.{write_key(relation)}]", *lines]))
    return "\n\n".join(blocks) + "\n"


def _is_id(name: str) -> bool:
    return _ID.fullmatch(_words(name)) is not None


def _owners(columns: Sequence[str], own: str | None) -> list[str]:
    """Comments that propose columns of ids, besides a row's ``own``, as whose the row is."""
    return [
        f"# owner = {write_value(name)}  # ? whose row it is, where one person has several"
        for name in columns
        if name != own and re.fullmatch(r".+_(id|uuid|mrn)", _words(name))
    ]


def _label(name: str, place: str = "label") -> str:
    guess = "   # ? guessed by its name"
    if name == "?":
        guess = "   # what is to be predicted; delete its own [columns. ...] above"
    return (
        f'[{place}]\ncolumn = {write_value(name)}{guess}\ntask = "?"     # binary, multiclass, '
        'ordinal, multilabel or regression\nclasses = "?"  # the public list, as ["no", "yes"]; of '
        "a regression low = and high = instead"
    )


def _block(name: str, place: str = "columns") -> str:
    words = _words(name)
    kind = next((kind for kind, form in _KINDS if re.fullmatch(form, words)), None)
    kind = "number" if kind is None and _UNIT.search(name) else kind
    head = f"[{place}.{write_key(name)}]"
    if kind is None:
        return "\n".join([head, 'kind = "?"', *_UNKNOWN])
    word = "category" if kind == "hashed" else kind
    return "\n".join([head, f'kind = "{word}"  # ?', *_ENTRIES[kind]])


def _words(name: str) -> str:
    """The words of a name, without the unit behind them: "Age (y)" is age, and PatientID two."""
    apart = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", _UNIT.sub("", name))
    return re.sub(r"[\W_]+", "_", apart.lower()).strip("_")


def _edges(columns: Sequence[str]) -> str:
    """Names of the ends, where they are others than usual; the first two of the table."""
    ends = [name for name in columns if name != "graph"]
    directed = 'directed = "?"  # true: a line leads from source to target; false: it joins both'
    if {"source", "target"} <= set(ends) or len(ends) < 2:
        return f"[edges]\n{directed}"
    source, target = map(write_value, ends[:2])
    return f"[edges]\nsource = {source}   # ?\ntarget = {target}   # ?\n{directed}"
