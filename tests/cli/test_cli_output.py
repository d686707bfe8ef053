"""One result for programs and for people."""

import json

from graphveil.cli._output import Result


def make():
    result = Result("Found", title="t")
    result.add("mean", 0.5, "accuracy", "{:.0%}".format)
    result.add("epsilon", float("inf"))
    result.add("ledger", None, "charged to")
    result.add("void_because", ["a", "b"], "void")
    result.add("nested", {"all": (1, float("-inf"))})
    result.row("note", "for people")
    result.row("nothing", None)
    return result


def test_a_field_is_a_key_a_row_or_both(capsys):
    result = make()
    assert result.rows() == [
        ("accuracy", "50%"),
        ("void", "a"),
        ("void", "b"),
        ("note", "for people"),
    ]
    result.show(True)
    assert json.loads(capsys.readouterr().out) == {
        "title": "t",
        "mean": 0.5,
        "epsilon": "inf",
        "ledger": None,
        "void_because": ["a", "b"],
        "nested": {"all": [1, "inf"]},
    }
    result.show(False)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["Found"]
    assert lines[1:] == [
        ["accuracy", "50%"],
        ["void", "a"],
        ["void", "b"],
        ["note", "for", "people"],
    ]


def test_below_columns_the_rows_are_notes(capsys):
    result = make()
    result.table(["name", "size"], [["x", "1"], ["y", "2"]])
    result.show(False)
    lines = [line.strip() for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert [line.split() for line in lines[1:4]] == [["name", "size"], ["x", "1"], ["y", "2"]]
    assert lines[4:] == ["50%", "a", "b", "for people"]
