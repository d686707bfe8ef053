"""Tables of TOML: unknown keys, other kinds and missing keys are one line each."""

import pytest

from graphveil._errors import InvalidInputError
from graphveil._schema import NUMBER, check_table, read_table

SCHEMA = {"steps": int, "rate": NUMBER, "paper": bool}


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"stepz": 1}, "x has the unknown key 'stepz'; it may hold steps, rate, paper."),
        ({"steps": 1.5}, "x: 'steps' must be a whole number. Got 1.5 instead."),
        ({"steps": True}, "x: 'steps' must be a whole number. Got True instead."),
        ({"rate": False}, "x: 'rate' must be a number. Got False instead."),
        ({"paper": 1}, "x: 'paper' must be true or false. Got 1 instead."),
        (
            {"rate": "1"},
            "x: 'rate' must be a number. Got '1' instead; write it without quotes.",
        ),
        ({"rate": 1}, "x must have the key 'steps'."),
    ],
)
def test_what_does_not_fit_is_named_with_its_place(table, message):
    with pytest.raises(InvalidInputError) as error:
        check_table(table, SCHEMA, "x", required=["steps"])
    assert str(error.value) == message


def test_what_fits_is_read(tmp_path):
    path = tmp_path / "a.toml"
    path.write_text("steps = 3\nrate = 1\npaper = true\n")
    assert read_table(path, SCHEMA) == {"steps": 3, "rate": 1, "paper": True}
    with pytest.raises(InvalidInputError, match=r"absent\.toml cannot be read"):
        read_table(tmp_path / "absent.toml", SCHEMA)
