"""Values and files from outside: numbers that fit, files that end."""

import json
import os
import sys

import pytest

from graphveil import _validate
from graphveil._errors import InvalidInputError
from graphveil._inputs import RATIO, check_unpacked, json_of, read_text, toml_of, toml_value

LONG = ["1" * 400, "1" * 5000, "-" + "1" * 400]
DEEP = ["[" * 3000, "[" * 200 + "]" * 200]


@pytest.mark.parametrize("text", [*LONG, *DEEP], ids=lambda text: f"{text[:2]}{len(text)}")
def test_numbers_that_no_float_holds_and_deep_nesting_are_refused(text):
    for parse, written in ((json_of, text), (toml_of, f"x = {text}")):
        with pytest.raises(ValueError, match=r"digits|nested|Unclosed"):
            parse(written)
    assert toml_value(text) == text  # a word, as whatever is no value


def test_a_long_hexadecimal_number_is_refused():
    with pytest.raises(InvalidInputError, match="300 digits"):
        toml_of("x = 0x" + "f" * 5000)


def test_what_is_usual_is_taken():
    value = {"a": [1, -(10**30), 1.5, True, None, "é"], "b": {"c": []}}
    assert json_of(json.dumps(value)) == value
    assert toml_of("a = [1, 2.5]\nb.c = 'x'") == {"a": [1, 2.5], "b": {"c": "x"}}


def test_a_text_with_a_nul_is_refused():
    with pytest.raises(InvalidInputError, match="NUL"):
        toml_of('out = "a\\u0000b"')


@pytest.mark.parametrize("check", [_validate.number, _validate.integer])
@pytest.mark.parametrize("sign, digits", [(1, 400), (-1, 400), (1, 5000)])
def test_a_number_beyond_floats_is_in_no_interval(check, sign, digits):
    with pytest.raises(InvalidInputError, match=r"a whole number of about .* digits"):
        check("steps", sign * 10**digits, "[0, inf]")


def test_a_long_value_is_shortened_in_a_message():
    with pytest.raises(InvalidInputError) as caught:
        _validate.choice("unit", "x" * 70_000, ("node", "edge"))
    assert len(str(caught.value)) < 300


def test_only_a_regular_file_is_read(tmp_path):
    (tmp_path / "text").write_text("é", encoding="utf-8")
    os.symlink(tmp_path / "text", tmp_path / "link")
    assert read_text(tmp_path / "link") == "é"
    with pytest.raises(InvalidInputError, match="Got a directory"):
        read_text(tmp_path)
    if sys.platform == "linux":
        with pytest.raises(InvalidInputError, match="Got a device"):
            read_text("/dev/zero")
    with pytest.raises(FileNotFoundError):
        read_text(tmp_path / "absent")


def test_a_text_of_settings_is_bounded(tmp_path):
    with (tmp_path / "text").open("wb") as file:
        file.truncate(65_000_000)  # holes: nothing is on disk
    with pytest.raises(InvalidInputError, match="at most 64 MB"):
        read_text(tmp_path / "text")


def test_what_a_file_unpacks_to_may_grow_with_the_file(tmp_path):
    path = tmp_path / "packed"
    path.write_bytes(b"x" * 1000)
    check_unpacked(path, 5000, 5000, "unpack it")
    check_unpacked(path, RATIO * 1000, 5000, "unpack it")
    with pytest.raises(InvalidInputError, match=r"packed must unpack to at most .*; unpack it\."):
        check_unpacked(path, RATIO * 1000 + 1, 5000, "unpack it")
