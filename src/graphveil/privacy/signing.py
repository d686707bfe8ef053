"""Signed statements: canonical JSON, keys in files, and signatures that are checked.

    make_key(path)                       # a private key, its owner's alone, and PATH.pub beside it
    signed = sign(statement, read_private_key(path), signer="Ann, Ward 3", date=...)
    check_signature(signed, trusted)     # raises VerificationError

A signature (Ed25519) is over the canonical form (RFC 8785) of everything in the file but itself:
how the JSON is written makes no difference, what it says does. A file that carries its own key
proves nothing by that: whoever checks it names the key that they trust.

*Guarantee.* None for anybody's data. A signature that is checked says that whoever holds the
private key signed this very statement; whether it is true is for other checks to say.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphveil import _validate
from graphveil._errors import InvalidInputError, VerificationError
from graphveil._files import sync
from graphveil._inputs import plain, read_text, regular

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )

FORMAT = 1
KIND = "graphveil signed certificate"
SIGNATURE = "signature"
KEYS = ("format", "kind", "statement", "signer", "date", "public_key", SIGNATURE)
_PREFIX = f"{KIND} {FORMAT}\n".encode()  # a signature for anything else is none for this
_EXACT = 2**53  # whole numbers that a reader in any language reads as such are below it
_HEX_KEY, _HEX_SIGNATURE = re.compile(r"[0-9a-f]{64}"), re.compile(r"[0-9a-f]{128}")
_MOST_SIGNER = 200
UNTRUSTED = "self-signed, key not trusted"


# --- canonical JSON -------------------------------------------------------------------------------


def canonical(value: Any) -> bytes:
    """The one form in which a JSON value is signed and hashed, as RFC 8785 defines it."""
    try:
        return _write(value).encode()
    except UnicodeEncodeError:
        raise InvalidInputError(
            "What is signed must be text that can be written. Got a lone surrogate instead; "
            "mend the name that holds it."
        ) from None


def fingerprint(value: Any) -> str:
    """The SHA-256 of the canonical form."""
    return hashlib.sha256(canonical(value)).hexdigest()


def _write(value: Any) -> str:
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, int):
        if abs(value) >= _EXACT:
            raise InvalidInputError(
                f"A whole number that is signed must be below 2^53. Got {_validate.shown(value)} "
                "instead."
            )
        return str(value)
    if isinstance(value, float):
        return _write_float(value)
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(_write, value))}]"
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        ordered = sorted(value, key=lambda key: key.encode("utf-16-be", "surrogatepass"))
        return "{" + ",".join(f"{_write(key)}:{_write(value[key])}" for key in ordered) + "}"
    raise InvalidInputError(
        "What is signed must be JSON: numbers, words, lists and objects of them. Got "
        f"{_validate.shown(value)} instead."
    )


def _write_float(value: float) -> str:
    """A float as ECMAScript writes it: the fewest digits that read back as the same."""
    if not math.isfinite(value):
        raise InvalidInputError(
            f"A number that is signed must be finite. Got {value!r} instead; infinity is the word "
            '"inf".'
        )
    if value == 0:
        return "0"
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    assert isinstance(exponent, int)
    text, point = "".join(map(str, digits)), len(digits) + exponent
    if 0 < point <= 21:
        whole, rest = text[:point].ljust(point, "0"), text[point:]
        text = f"{whole}.{rest}" if rest else whole
    elif -6 < point <= 0:
        text = f"0.{'0' * -point}{text}"
    else:
        mantissa = f"{text[0]}.{text[1:]}" if len(text) > 1 else text
        text = f"{mantissa}e{point - 1:+d}"
    return f"-{text}" if sign else text


# --- keys -----------------------------------------------------------------------------------------


def require_cryptography() -> None:
    """Refuse in one line where the package that signs is not installed."""
    try:
        import cryptography  # noqa: F401
    except ImportError as error:
        raise InvalidInputError(
            "Signatures need cryptography, which is not installed: pip install "
            "'graphveil[evidence]'."
        ) from error


def public_path(path: str | Path) -> Path:
    """Where the public half of a key is written: beside it, as NAME.pub."""
    return Path(path).with_name(f"{Path(path).name}.pub")


def make_key(path: str | Path, passphrase: str | None = None) -> str:
    """Write a new key pair, and return the public key as 64 hexadecimal digits.

    The private half is for its owner alone (mode 0600), behind a ``passphrase`` if there is one;
    the public half is beside it, as NAME.pub. No file is ever written over.
    """
    require_cryptography()
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    if passphrase == "":
        raise InvalidInputError("A passphrase must not be empty; leave it out, or give one.")
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption()
        if passphrase is None
        else serialization.BestAvailableEncryption(passphrase.encode()),
    )
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    beside = public_path(path)
    if beside.exists():
        raise _is_there(beside)
    _write_new(Path(path), private, 0o600)
    _write_new(beside, public, 0o644)
    return hex_of(key.public_key())


def _write_new(path: Path, content: bytes, mode: int) -> None:
    """Write a file that is not there yet; with ``mode`` from its first moment on."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError:
        raise _is_there(path) from None
    except OSError as error:
        raise InvalidInputError(
            f"{path} cannot be written: {error.strerror}; choose another place."
        ) from None
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        path.unlink()
        raise InvalidInputError(
            f"{path} cannot be written: {error.strerror}; make room, or choose another place."
        ) from None
    sync(path.absolute().parent)


def _is_there(path: Path) -> InvalidInputError:
    return InvalidInputError(
        f"{path} exists, and a key is never written over; choose another name."
    )


def read_private_key(
    path: str | Path, passphrase: Callable[[], str] | None = None
) -> Ed25519PrivateKey:
    """The private key in a file, which nobody but its owner may be able to read.

    ``passphrase`` is asked only where the key is behind one.
    """
    require_cryptography()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    content = _read_pem(Path(path))
    _check_mode(Path(path))
    word: bytes | None = None
    if b"ENCRYPTED" in content:
        if passphrase is None:
            raise InvalidInputError(
                f"The key in {path} is behind a passphrase; give it with --passphrase-file, or at "
                "a terminal."
            )
        word = passphrase().encode()
    try:
        key = load_pem_private_key(content, word)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        why = "the passphrase is another one, or " if word is not None else ""
        raise InvalidInputError(
            f"The key in {path} cannot be read: {why}it is no private key in PEM; make one with "
            "'graphveil certificate key make'."
        ) from None
    if not isinstance(key, Ed25519PrivateKey):
        raise _is_other(path, key)
    return key


def read_public_key(text: str) -> Ed25519PublicKey:
    """A public key: 64 hexadecimal digits, or the name of a file with it in PEM."""
    require_cryptography()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    if _HEX_KEY.fullmatch(text.lower()):
        return Ed25519PublicKey.from_public_bytes(bytes.fromhex(text))
    content = _read_pem(Path(text))
    if b"PRIVATE" in content:
        raise InvalidInputError(
            f"A public key is needed. {text} holds a private one; name {public_path(text).name} "
            "beside it, and show the private one to nobody."
        )
    try:
        key = load_pem_public_key(content)
    except (ValueError, UnsupportedAlgorithm):
        raise InvalidInputError(
            f"The key in {text} cannot be read: it is no public key in PEM; give that file, or the "
            "key's 64 hexadecimal digits."
        ) from None
    if not isinstance(key, Ed25519PublicKey):
        raise _is_other(text, key)
    return key


def hex_of(key: Ed25519PublicKey) -> str:
    """A public key as 64 hexadecimal digits, by which people compare it."""
    return key.public_bytes_raw().hex()


def _read_pem(path: Path) -> bytes:
    try:
        return read_text(path).encode()
    except UnicodeDecodeError:
        raise InvalidInputError(f"{path} is no key in PEM: it is no text.") from None
    except OSError as error:
        raise InvalidInputError(
            f"{path} cannot be read: {error.strerror}; name the file of a key."
        ) from None


def _check_mode(path: Path) -> None:
    if os.name == "posix" and (mode := stat.S_IMODE(regular(path).stat().st_mode)) & 0o077:
        raise InvalidInputError(
            f"The private key in {path} must be its owner's alone, mode 600. Got {mode:03o} "
            f"instead; chmod 600 it, and make a new one if others may have read it."
        )


def _is_other(path: str | Path, key: Any) -> InvalidInputError:
    return InvalidInputError(
        f"The key in {path} must be one for Ed25519. Got {type(key).__name__} instead; make one "
        "with 'graphveil certificate key make'."
    )


# --- signatures -----------------------------------------------------------------------------------


def sign(
    statement: Mapping[str, Any], key: Ed25519PrivateKey, *, signer: str, date: str
) -> dict[str, Any]:
    """The statement with who signed it, when, the public key and the signature.

    *Guarantee.* None: ``signer`` and ``date`` are what the signer says of themselves.
    """
    if not _is_name(signer):
        raise InvalidInputError(
            f"The 'signer' parameter must be a name on one line, of at most {_MOST_SIGNER} "
            f"characters. Got {_validate.shown(signer)} instead."
        )
    signed = {
        "format": FORMAT,
        "kind": KIND,
        "statement": dict(statement),
        "signer": signer,
        "date": date,
        "public_key": hex_of(key.public_key()),
    }
    return {**signed, SIGNATURE: key.sign(_PREFIX + canonical(signed)).hex()}


def _is_name(text: str) -> bool:
    """Whether a text is one line that a reader sees as it is."""
    return bool(text.strip()) and text.isprintable() and len(text) <= _MOST_SIGNER


@dataclass(frozen=True, kw_only=True)
class Signed:
    """A signed statement as its file has it; nothing of it is checked but its shape."""

    content: Mapping[str, Any]

    @property
    def statement(self) -> Mapping[str, Any]:
        """What was signed."""
        statement: Mapping[str, Any] = self.content["statement"]
        return statement

    @property
    def public_key(self) -> str:
        """The key that the file names; whose it is the file cannot prove."""
        return str(self.content["public_key"])


def read_signed(path: str | Path) -> Signed:
    """The signed statement in a file; what is none is refused."""
    try:
        text = read_text(path)
    except OSError as error:
        raise InvalidInputError(
            f"{path} cannot be read: {error.strerror}; name a signed certificate."
        ) from None
    except UnicodeDecodeError:
        raise _is_none(path, "it is no text") from None
    try:
        content = plain(json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant))
        # As it was signed: however a number is spelled in the file, 100 and 100.0 are one.
        content = json.loads(canonical(content))
    except (ValueError, RecursionError) as error:
        raise _is_none(path, str(error).rstrip(".")) from None
    if not isinstance(content, dict):
        raise _is_none(path, f"it holds a {type(content).__name__}")
    if set(content) != set(KEYS):
        odd = sorted(set(content) ^ set(KEYS))[0]
        raise _is_none(path, f"{odd!r} is {'unknown' if odd in content else 'missing'}")
    if content["kind"] != KIND or content["format"] != FORMAT or content["format"] is True:
        raise _is_none(path, f"its kind and format must be {KIND!r} and {FORMAT}")
    _check_words(path, content)
    if not isinstance(content["statement"], dict):
        raise _is_none(path, "its statement must be an object")
    return Signed(content=content)


def _check_words(path: str | Path, content: Mapping[str, Any]) -> None:
    """Refuse what stands beside the statement and is not as :func:`sign` writes it."""
    words = [content[name] for name in ("signer", "date", "public_key", SIGNATURE)]
    if not all(isinstance(word, str) for word in words):
        raise _is_none(path, "signer, date, public_key and signature must be words")
    if not all(map(_is_name, words[:2])):  # a terminal would obey what is no letter
        raise _is_none(
            path,
            f"signer and date must be on one line of at most {_MOST_SIGNER} printable characters",
        )
    if not (_HEX_KEY.fullmatch(words[2]) and _HEX_SIGNATURE.fullmatch(words[3])):
        raise _is_none(path, "public_key and signature must be hexadecimal, in small letters")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose names differ: of two with one name, readers take either."""
    if len({name for name, _ in pairs}) < len(pairs):
        raise ValueError("a name stands twice in it")
    return dict(pairs)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


def _is_none(path: str | Path, why: str) -> InvalidInputError:
    return InvalidInputError(
        f"{path} is no signed certificate, or is damaged or edited: {why}; ask the signer for it "
        "again."
    )


def check_signature(signed: Signed, trusted: Ed25519PublicKey | None) -> None:
    """Refuse what was not signed, to the letter, by the holder of the ``trusted`` key.

    *Guarantee.* None for anybody's data: who signed, and that nothing was changed since. Without a
    trusted key nothing is known of who signed, and that is refused, too.
    """
    require_cryptography()
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    own = Ed25519PublicKey.from_public_bytes(bytes.fromhex(signed.public_key))
    content = {name: value for name, value in signed.content.items() if name != SIGNATURE}
    try:
        own.verify(bytes.fromhex(signed.content[SIGNATURE]), _PREFIX + canonical(content))
    except InvalidSignature:
        raise VerificationError(
            "The signature does not fit what the file says: the file is damaged or edited; ask the "
            "signer for it again."
        ) from None
    if trusted is None:
        raise VerificationError(
            f"{UNTRUSTED}: the file names the key {signed.public_key} itself, and anybody can make "
            "one; get the signer's key another way, and give it with --trusted."
        )
    if hex_of(trusted) != signed.public_key:
        raise VerificationError(
            f"The file was signed by another key than the trusted one: {signed.public_key}, not "
            f"{hex_of(trusted)}; ask whose it is."
        )
