"""Where raw files are: below a root, in the cache, or on the network.

Files are looked for below ``root`` and then in the cache, in the folders PyG and OGB give them.
What is in neither place is downloaded into the cache, whole or not at all. **Nothing is ever
written below** ``root``. Downloads are compared with a SHA-256 where one is known
(:func:`sha256_of`), and servers must show a valid certificate, for which PyG's ``download_url``
does not ask.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

from graphveil._errors import InvalidInputError

_TIMEOUT = 30  # seconds without an answer

PLANETOID = "https://github.com/kimiyoung/planetoid/raw/master/data"


def sha256_of(url: str) -> str | None:
    """The checksum of what is downloaded from ``url``, or None: of other files none is known."""
    if not url.startswith(PLANETOID):
        return None
    known = Path(__file__).with_name("planetoid.sha256").read_text().split()
    return dict(zip(known[1::2], known[::2], strict=True)).get(url.removeprefix(f"{PLANETOID}/"))


def cache() -> Path:
    """Where downloads go: ``$XDG_CACHE_HOME/graphveil`` or ``~/.cache/graphveil``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "graphveil"


def find(root: Path, folder: Path, files: Sequence[str]) -> Path | None:
    """The ``folder`` below ``root``, or else in the cache, that has all ``files``."""
    for place in (root / folder, cache() / folder):
        if all((place / file).is_file() for file in files):
            return place
    return None


def locate(
    name: str, root: Path, folder: str | Path, files: Sequence[str], urls: Sequence[str]
) -> Path:
    """The ``folder`` with all ``files`` of the data set ``name``, downloaded if it is nowhere.

    A zip among the ``urls`` is unpacked; if all is in one folder then, that is the one meant.
    """
    folder = Path(folder)
    if (place := find(root, folder, files)) is not None:
        return place
    with _workplace() as work:
        try:
            for url in urls:
                _download(url, work)
            inside = list(work.iterdir())
            source = inside[0] if len(inside) == 1 and inside[0].is_dir() else work
        except InvalidInputError:
            raise
        except Exception as error:  # network, zip and file errors are of many kinds
            _refuse_absent(name, root, f"{folder}/{files[0]}", error)
        target = cache() / folder
        if target.exists():
            shutil.rmtree(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        source.rename(target)  # at once: half a download never gets there
    return target


def _download(url: str, folder: Path) -> None:
    import pooch

    pooch.get_logger().setLevel("WARNING")
    known, file = sha256_of(url), url.rpartition("/")[2]
    try:
        ask = pooch.HTTPDownloader(timeout=_TIMEOUT)
        path = Path(pooch.retrieve(url, known, fname=file, path=folder, downloader=ask))
    except ValueError as error:
        if known is None:
            raise
        raise InvalidInputError(
            f"The download of {url} must have the SHA-256 {known}. Got another instead "
            f"({reason(error)}); try again, or get the file yourself and pass its root folder."
        ) from None
    path.chmod(0o644)  # pooch leaves a file to its owner alone
    if path.suffix == ".zip":
        shutil.unpack_archive(path, folder)
        path.unlink()


@contextlib.contextmanager
def _workplace() -> Iterator[Path]:
    """A folder in the cache that is gone, or moved, afterwards."""
    try:
        cache().mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInputError(
            f"The cache {cache()} cannot be made ({error.strerror}); set XDG_CACHE_HOME to a "
            "folder that can be written to."
        ) from None
    with tempfile.TemporaryDirectory(prefix="graphveil-", dir=cache()) as work:
        (inner := Path(work) / "files").mkdir()
        yield inner


@contextlib.contextmanager
def reading(name: str, place: Path, *, passing: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Say in one line why the files of a data set cannot be read, unless ``passing`` errors do."""
    try:
        yield
    except passing:
        raise
    except Exception as error:  # pickle, zip, gzip, parser, key, index and value errors
        raise InvalidInputError(
            f"The files of {name!r} in {place} cannot be read ({reason(error)}); they may be cut "
            "short or of another version: get them again."
        ) from None


def refuse_variant(data_set: str, rule: str, name: str, way_out: str = "") -> NoReturn:
    """Refuse a ``name`` with what may not follow that of its ``data_set``."""
    raise InvalidInputError(
        f"The data set {data_set!r} may be followed by {rule}. Got {name!r} instead{way_out}."
    )


def _refuse_absent(name: str, root: Path, file: str, error: Exception) -> NoReturn:
    places = f"{root}" if root == cache() else f"{root} or {cache()}"
    raise InvalidInputError(
        f"The data set {name!r} is not in {places} (looked for {file}) and could not be downloaded "
        f"({reason(error)}); connect to the network, or pass the root folder that holds it."
    ) from None


def reason(error: Exception) -> str:
    """The kind of an ``error`` and the start of its text, in one line."""
    text = re.sub(r"\s+", " ", str(error)).strip().rstrip(".")[:120]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
