"""One result for programs and for people."""

import json

import pytest

from graphveil.cli._output import Result, say


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


@pytest.fixture
def wide():
    """A table that has no room in 40 columns, and whose last column can give way."""
    result = Result("Wide")
    names = ["an-unbreakable-name", "another-unbreakable-one"]
    result.table(["name", "text"], [[name, "words that can go below"] for name in names])
    return result


def test_words_are_never_broken(wide, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "30")
    wide.show(False)
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines[2:5] == [
        "an-unbreakable-name      words",
        "                         that",
        "                         can",
    ]


def test_a_figure_stays_with_its_deviation(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "30")
    result = Result("Figures")
    result.table(["a-long-name", "ours", "why"], [["x", "93.4 ± 1.0", "for some reason or other"]])
    result.show(False)
    assert "93.4 ± 1.0" in capsys.readouterr().out


def test_a_pipe_gets_longer_lines_and_a_narrow_terminal_row_by_row(wide, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    wide.show(False)
    assert "another-unbreakable-one  words" in capsys.readouterr().out
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    wide.show(False)
    out = capsys.readouterr().out
    assert "another-unbreakable-one" not in out.split("an-unbreakable-name")[0]
    assert "  text: words that" in out


@pytest.mark.parametrize("hidden", ["\x1b[2K", "\r", "\x9b1A", "\N{RIGHT-TO-LEFT OVERRIDE}"])
def test_no_terminal_obeys_what_a_file_says(hidden, capsys):
    result = Result("Found")
    result.add("reason", f"a{hidden}b", "void")
    result.show(False)
    result.table(["name"], [[f"c{hidden}d"]])
    result.show(False)
    say(f"it holds e{hidden}f")
    captured = capsys.readouterr()
    text = captured.out + captured.err
    assert hidden not in text
    escaped = ascii(hidden)[1:-1]
    for around in ("ab", "cd", "ef"):
        assert escaped.join(around) in text
    assert json.loads(json.dumps(result.json()))["reason"] == f"a{hidden}b"  # JSON escapes it
