"""Canonical JSON, keys in files, and signatures that notice every change."""

import json
import os
import stat
import struct

import pytest

from graphveil import InvalidInputError, VerificationError
from graphveil.privacy import signing
from graphveil.privacy.signing import canonical

pytest.importorskip("cryptography")
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key

STATEMENT = {
    "certificate": {"epsilon": 2.5, "charges": [{"rate": 1e-7, "count": 100}], "void": []},
    "weights_sha256": "ab" * 32,
}


@pytest.fixture
def key(tmp_path):
    signing.make_key(tmp_path / "ann.pem")
    return signing.read_private_key(tmp_path / "ann.pem")


@pytest.fixture
def signed(key):
    return signing.sign(STATEMENT, key, signer="Ann", date="2026-11-19")


def check(content, trusted, tmp_path):
    path = tmp_path / "signed.json"
    path.write_text(json.dumps(content))
    signing.check_signature(signing.read_signed(path), trusted)


# The examples of RFC 8785, appendix B: the bits of a double, and how it is written.
@pytest.mark.parametrize(
    "bits,text",
    [
        ("0000000000000000", "0"),
        ("8000000000000000", "0"),
        ("0000000000000001", "5e-324"),
        ("8000000000000001", "-5e-324"),
        ("7fefffffffffffff", "1.7976931348623157e+308"),
        ("4340000000000000", "9007199254740992"),
        ("c340000000000000", "-9007199254740992"),
        ("4430000000000000", "295147905179352830000"),
        ("44b52d02c7e14af5", "9.999999999999997e+22"),
        ("44b52d02c7e14af6", "1e+23"),
        ("44b52d02c7e14af7", "1.0000000000000001e+23"),
        ("444b1ae4d6e2ef4e", "999999999999999700000"),
        ("444b1ae4d6e2ef4f", "999999999999999900000"),
        ("444b1ae4d6e2ef50", "1e+21"),
        ("3eb0c6f7a0b5ed8c", "9.999999999999997e-7"),
        ("3eb0c6f7a0b5ed8d", "0.000001"),
        ("41b3de4355555553", "333333333.3333332"),
        ("41b3de4355555557", "333333333.33333343"),
        ("becbf647612f3696", "-0.0000033333333333333333"),
        ("43143ff3c1cb0959", "1424953923781206.2"),
    ],
)
def test_numbers_are_written_as_the_standard_says(bits, text):
    (value,) = struct.unpack(">d", bytes.fromhex(bits))
    assert canonical(value) == text.encode()


def test_names_are_sorted_and_text_is_escaped_as_the_standard_says():
    # Section 3.2.3: by UTF-16 units, so that the emoji stands before the Hebrew letter's form.
    names = ["\u20ac", "\r", "\ufb33", "1", "\U0001f600", "\u0080", "\u00f6"]
    order = ["\r", "1", "\u0080", "\u00f6", "\u20ac", "\U0001f600", "\ufb33"]
    assert list(json.loads(canonical(dict.fromkeys(names, 0)))) == order
    assert (
        canonical('\u20ac$\x0f\nA\'B"\\\\"/') == '"\u20ac$\\u000f\\nA\'B\\"\\\\\\\\\\"/"'.encode()
    )
    assert canonical([True, None, {"b": 1, "a": [1.0]}]) == b'[true,null,{"a":[1],"b":1}]'


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 2**53, {1: 2}, {1}, "\ud800"])
def test_what_has_no_canonical_form_is_refused(value):
    with pytest.raises(InvalidInputError):
        canonical(value)


def test_a_private_key_is_its_owners_alone_and_never_written_over(tmp_path):
    before = os.umask(0)
    try:
        public = signing.make_key(tmp_path / "ann.pem")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "ann.pem").stat().st_mode) == 0o600
    assert signing.hex_of(signing.read_public_key(str(tmp_path / "ann.pem.pub"))) == public
    assert signing.hex_of(signing.read_public_key(public.upper())) == public
    content = (tmp_path / "ann.pem").read_bytes()
    with pytest.raises(InvalidInputError, match="never written over"):
        signing.make_key(tmp_path / "ann.pem")
    (tmp_path / "ann.pem.pub").unlink()
    with pytest.raises(InvalidInputError, match="never written over"):
        signing.make_key(tmp_path / "ann.pem")
    assert (tmp_path / "ann.pem").read_bytes() == content
    assert not (tmp_path / "ann.pem.pub").exists()
    (tmp_path / "ann.pem").chmod(0o640)
    with pytest.raises(InvalidInputError, match="mode 600"):
        signing.read_private_key(tmp_path / "ann.pem")


def test_a_passphrase_is_needed_and_must_be_the_right_one(tmp_path):
    path = tmp_path / "ann.pem"
    signing.make_key(path, "open sesame")
    assert b"ENCRYPTED" in path.read_bytes()
    with pytest.raises(InvalidInputError, match="behind a passphrase"):
        signing.read_private_key(path)
    with pytest.raises(InvalidInputError, match="another one"):
        signing.read_private_key(path, lambda: "open barley")
    key = signing.read_private_key(path, lambda: "open sesame")
    public = signing.read_public_key(str(tmp_path / "ann.pem.pub"))
    assert key.public_key().public_bytes_raw() == public.public_bytes_raw()
    with pytest.raises(InvalidInputError, match="empty"):
        signing.make_key(tmp_path / "bob.pem", "")


def test_keys_of_other_kinds_are_refused(tmp_path, key):
    other = generate_private_key(SECP256R1())
    path = tmp_path / "curve.pem"
    path.write_bytes(
        other.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    path.chmod(0o600)
    with pytest.raises(InvalidInputError, match="Ed25519"):
        signing.read_private_key(path)
    path.write_bytes(
        other.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )
    with pytest.raises(InvalidInputError, match="Ed25519"):
        signing.read_public_key(str(path))
    path.chmod(0o600)
    with pytest.raises(InvalidInputError, match="no private key"):
        signing.read_private_key(path)
    with pytest.raises(InvalidInputError, match="holds a private one"):
        signing.read_public_key(str(tmp_path / "ann.pem"))
    with pytest.raises(InvalidInputError, match="cannot be read"):
        signing.read_public_key("absent.pub")


def leaves(value, path=()):
    """Every place in a JSON value where something can be changed, with what stands there."""
    yield path, value
    if isinstance(value, (dict, list)):
        for name, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(inner, (*path, name))


def changed(content, path, value):
    copy = json.loads(json.dumps(content))
    place = copy
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    return copy


def flips(value):
    if isinstance(value, str):
        digit = "1" if value[:1] != "1" else "2"
        return [digit + value[1:], value + "0"]
    if isinstance(value, (int, float)):
        return [value + 1, -value - 1, str(value)]
    if isinstance(value, list):
        return [[*value, 0], {}]
    return [{**value, "more": 0}, []]


def test_every_change_is_noticed(key, signed, tmp_path):
    check(signed, key.public_key(), tmp_path)
    places = [(path, value) for path, value in leaves(signed) if path]
    assert len(places) == 15
    for path, value in places:
        for flip in flips(value):
            with pytest.raises((VerificationError, InvalidInputError)):
                check(changed(signed, path, flip), key.public_key(), tmp_path)
    for name in signed:
        with pytest.raises(InvalidInputError):
            check({k: v for k, v in signed.items() if k != name}, key.public_key(), tmp_path)


def test_how_the_file_is_written_makes_no_difference(key, signed, tmp_path):
    path = tmp_path / "signed.json"
    path.write_text(json.dumps(dict(reversed(signed.items())), indent=7))
    signing.check_signature(signing.read_signed(path), key.public_key())


def test_a_whole_number_is_read_as_one_however_it_is_spelled(key, signed, tmp_path):
    path = tmp_path / "signed.json"
    for spelled in ("100.0", "1e2"):
        path.write_text(json.dumps(signed).replace('"count": 100', f'"count": {spelled}'))
        respelled = signing.read_signed(path)
        signing.check_signature(respelled, key.public_key())
        count = respelled.statement["certificate"]["charges"][0]["count"]
        assert type(count) is int
    path.write_text(json.dumps(signed).replace('"count": 100', '"count": 1e400'))
    with pytest.raises(InvalidInputError, match="no signed certificate"):
        signing.read_signed(path)


def test_a_key_that_only_the_file_names_is_not_trusted(signed, tmp_path):
    with pytest.raises(VerificationError, match="self-signed, key not trusted"):
        check(signed, None, tmp_path)
    signing.make_key(tmp_path / "bob.pem")
    other = signing.read_private_key(tmp_path / "bob.pem")
    with pytest.raises(VerificationError, match="another key"):
        check(signed, other.public_key(), tmp_path)
    # A forger's own signature is as good as Ann's, but for the key.
    forged = signing.sign(STATEMENT, other, signer="Ann", date="2026-11-19")
    key = signing.read_private_key(tmp_path / "ann.pem").public_key()
    check(forged, other.public_key(), tmp_path)
    with pytest.raises(VerificationError, match="another key"):
        check(forged, key, tmp_path)
    # Her key's name on it makes it no better.
    forged["public_key"] = signed["public_key"]
    with pytest.raises(VerificationError, match="does not fit"):
        check(forged, key, tmp_path)


def test_a_signature_for_something_else_is_none(key, signed, tmp_path):
    content = {name: value for name, value in signed.items() if name != "signature"}
    bare = {**content, "signature": key.sign(canonical(content)).hex()}
    with pytest.raises(VerificationError, match="does not fit"):
        check(bare, key.public_key(), tmp_path)


@pytest.mark.parametrize(
    "text,why",
    [
        ("", "Expecting value"),
        ("[]", "holds a list"),
        ("{}", "missing"),
        ('{"a": 1, "a": 2}', "twice"),
        ('{"a": NaN}', "NaN"),
        ("[" * 200_000, "no signed certificate"),
    ],
)
def test_what_is_no_signed_certificate_is_refused(text, why, tmp_path):
    path = tmp_path / "signed.json"
    path.write_text(text)
    with pytest.raises(InvalidInputError, match=why):
        signing.read_signed(path)


@pytest.mark.parametrize("signer", ["", "  ", "Ann\nBob", "A" * 201, "Ann\u202e"])
def test_a_signer_has_a_name_on_one_line(signer, key):
    with pytest.raises(InvalidInputError, match="signer"):
        signing.sign(STATEMENT, key, signer=signer, date="2026-11-19")


@pytest.mark.parametrize("name", ["signer", "date"])
@pytest.mark.parametrize(
    "text",
    ["Eve\x1b[1A\x1b[2KAnn", "Ann\nby NIST", "Ann\N{RIGHT-TO-LEFT OVERRIDE}", " ", "a" * 201],
)
def test_a_file_whose_signer_or_date_a_terminal_would_obey_is_refused(
    name, text, key, signed, tmp_path
):
    """Whoever has a key signs what this library would not: the signature itself is good."""
    content = {**{k: v for k, v in signed.items() if k != "signature"}, name: text}
    content["signature"] = key.sign(signing._PREFIX + canonical(content)).hex()
    signing.check_signature(signing.Signed(content=content), key.public_key())
    (tmp_path / "signed.json").write_text(json.dumps(content))
    with pytest.raises(InvalidInputError, match="signer and date must be on one line") as refusal:
        signing.read_signed(tmp_path / "signed.json")
    assert str(refusal.value).isprintable()


def test_without_cryptography_one_line_says_so(monkeypatch, tmp_path):
    monkeypatch.setitem(__import__("sys").modules, "cryptography", None)
    with pytest.raises(InvalidInputError, match=r"graphveil\[evidence\]"):
        signing.make_key(tmp_path / "ann.pem")
    assert not list(tmp_path.iterdir())
