"""Whether the files beside weights are those that a signed certificate is about.

A published folder is compared file by file with the hashes that were signed with it. Of a run,
whose settings name paths that nobody signs, what the files say is compared. A directory is taken
for the run itself only where it has every file of one, and none that only a folder has.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphveil._errors import InvalidInputError, VerificationError
from graphveil._inputs import regular
from graphveil.privacy.agreement import check_same, check_whole
from graphveil.privacy.guarantee import Certificate, charges_from_json
from graphveil.privacy.signing import Signed, fingerprint, read_signed
from graphveil.runs.files import read_json, reading
from graphveil.runs.record import (
    CACHE,
    CERTIFICATES,
    CONFIG,
    EVENTS,
    FILES,
    HUB,
    MODEL,
    PLAN,
    README,
    SETTINGS,
    SIGNED,
    as_plain,
    read_plan,
)

_PIECE = 1 << 20  # bytes of a file that are hashed at a time
_SIGNED_SETTINGS = ("format", "method", "settings", "class_names", "columns", "schema")


@dataclass(frozen=True, kw_only=True)
class Compared:
    """The ``names`` of files that say what was signed, the weights not among them.

    ``now`` is the certificate of a run to which more was charged since; None where nothing was.
    """

    names: tuple[str, ...]
    now: Certificate | None = None


def hash_of(path: Path) -> str:
    """The SHA-256 of a file."""
    digest = hashlib.sha256()
    try:
        with regular(path).open("rb") as file:
            while piece := file.read(_PIECE):
                digest.update(piece)
    except OSError as error:
        raise InvalidInputError(
            f"{path} cannot be read: {error.strerror}; name a run, or a file of weights."
        ) from None
    return digest.hexdigest()


def hash_settings(directory: Path) -> str:
    """The fingerprint of what a run and its published folder both say of settings and names."""
    with reading(directory, SETTINGS):
        content = read_json(directory / SETTINGS)
        return fingerprint({name: content.get(name) for name in _SIGNED_SETTINGS})


def hash_files(files: Mapping[str, bytes]) -> dict[str, str]:
    """The SHA-256 of each file of a folder."""
    return {name: hashlib.sha256(content).hexdigest() for name, content in sorted(files.items())}


def compare(directory: Path, statement: Mapping[str, Any], certificate: Certificate) -> Compared:
    """Refuse files in a directory that say anything else than what was signed."""
    hashes = statement.get("folder")
    if hashes is not None and not _is_run(directory):
        return Compared(names=_compare_hashes(directory, hashes))
    try:
        return _compare_content(directory, statement, certificate)
    except InvalidInputError as error:
        raise VerificationError(
            f"The files in {directory} are others than the certificate is about: "
            f"{str(error).rstrip('.')}; ask for those that were certified."
        ) from None


def list_others(directory: Path, compared: Sequence[str], signed: Signed) -> tuple[str, ...]:
    """The names of all else in a directory, of which ``signed`` says nothing.

    The weights are not among them, nor a file that is the signed certificate itself.
    """
    names = {path.name for path in directory.iterdir()} - {*compared, MODEL}
    if SIGNED in names and _holds(directory / SIGNED, signed):
        names.remove(SIGNED)
    return tuple(map(_in_print, sorted(names)))


def _holds(path: Path, signed: Signed) -> bool:
    try:
        return read_signed(path).content == signed.content
    except InvalidInputError:
        return False  # it is something else, and is said not to be compared


def _in_print(name: str) -> str:
    """The name of a file, of which a terminal shows every character."""
    return name if name.isprintable() else ascii(name)


def _is_run(directory: Path) -> bool:
    """Whether a directory is a run rather than a folder: a folder lacks metrics and more."""
    there = {path.name for path in directory.iterdir()}
    return there.issuperset(FILES) and there.isdisjoint((README, CONFIG, SIGNED))


def _compare_hashes(directory: Path, hashes: Mapping[str, str]) -> tuple[str, ...]:
    """Every file of a folder, by its hash."""
    present = {path.name for path in directory.iterdir()} - {SIGNED, *HUB}
    if odd := sorted(present ^ set(hashes)):
        what = "is not among the files that were signed" if odd[0] in present else "is missing"
        raise VerificationError(
            f"The files in {directory} are others than were signed: {_in_print(odd[0])} {what}; "
            "ask for the folder as it was published."
        )
    for name, expected in hashes.items():
        if (here := hash_of(directory / name)) != expected:
            raise VerificationError(
                f"{directory / name} is another file than the one that was signed: its SHA-256 is "
                f"{here}, not {expected}; ask for the folder as it was published."
            )
    return tuple(sorted(set(hashes) - {MODEL}))


def _compare_content(
    directory: Path, statement: Mapping[str, Any], certificate: Certificate
) -> Compared:
    """What the files say that are read back; predictions may have been charged since."""
    plan = read_plan(directory)
    with reading(directory, PLAN):
        _check_signed(as_plain(plan.to_json()) == statement["run"]["plan"])
    with reading(directory, EVENTS):
        events = read_json(directory / EVENTS)
        charges = charges_from_json(events["charges"])
        check_same("model_sha256", events["model_sha256"], statement["weights_sha256"])
        _check_signed(charges[: len(certificate.charges)] == certificate.charges)
        _check_cache(directory, events.get("cache_sha256"))
        again = plan.certificate(
            charges, void_because=events["void_because"], inference=events["inference"]
        )
        more = len(charges) > len(certificate.charges)
        if not more:  # what voids comes with a charge, and is said with it
            check_same("void_because", again.void_because, certificate.void_because)
    text, markdown, plain = CERTIFICATES
    with reading(directory, plain):
        written = Certificate.from_json((directory / plain).read_text())
        check_whole(written, again)
    for name, content in ((text, f"{written}\n"), (markdown, written.to_markdown())):
        with reading(directory, name):
            if (directory / name).read_text() != content:
                raise ValueError(f"it says something else than {plain}")
    names = [PLAN, EVENTS, *CERTIFICATES]
    if (expected := statement["run"].get("settings_sha256")) is not None:
        with reading(directory, SETTINGS):
            _check_signed(hash_settings(directory) == expected)
        names.append(SETTINGS)
    return Compared(names=tuple(sorted(names)), now=again if more else None)


def _check_cache(directory: Path, expected: str | None) -> None:
    """Refuse noisy sums that are others than events.json names; nobody signed that name."""
    if expected is not None:
        here = hash_of(directory / CACHE) if (directory / CACHE).exists() else None
        check_same(f"the SHA-256 of {CACHE}", here, expected)


def _check_signed(same: bool) -> None:
    if not same:
        raise ValueError("it says something else than was signed")
