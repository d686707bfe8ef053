"""Where raw files are: below a root, in the cache, or on the network.

Files are looked for below ``root`` and then in the cache, in the folders PyG and OGB give them.
What is in neither place is downloaded into the cache, whole or not at all. **Nothing is ever
written below** ``root``. Downloads are compared with a SHA-256 where one is known
(:data:`SHA256`); the servers are asked by TLS, which PyG's own downloads do not verify.
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

# By address. The files are pickles, which can run code; others have no checksum that is known.
SHA256 = {
    f"{PLANETOID}/ind.{file}": digest
    for file, digest in {
        "cora.allx": "9419ba2f26f5c35243db64aba110e0f35a04851609e0dc5433450676ca6b8543",
        "cora.ally": "2b998f5cc7fedc86e7f97ca2498f47a1ffc1462c29e2d578b23bf3f62b6e7d71",
        "cora.graph": "58f13302f39dde8852dad6fe6d15b89b077b6d7f837626bce671ef80344b383d",
        "cora.test.index": "297ce89af2b51a6a194181c7dbe1796c6a1cf9cd9349a88383b1b1e227867875",
        "cora.tx": "b9afbaa4a400df991f6f02ef677e1e44da55ffc04801fd02f9e673987829226a",
        "cora.ty": "41f5ac76596a1699cc33f53084a2419e92961c42bb75f36fc38e616d348532ad",
        "cora.x": "23cfa55d91c6f624233f5eb7b6e3f141f1bd2b2ae39608a63cf5d084bb27baab",
        "cora.y": "94465c14eb53e04ca262198dcbb2521ee8af60fb3f3d546cd6ca24a511b0e7d1",
        "citeseer.allx": "2ac30345d95c9ec933a817ee0bdd6a5f077f8c184a20e696910192d534414668",
        "citeseer.ally": "f704b2d986dde6c2669934de1f3ae5696a6cf9455c0f6b2646a2d135ea0a1c95",
        "citeseer.graph": "d79a4ef9d3e7169aee8946145f6b7306e35bc79bffad26346cfb94e10e9912a7",
        "citeseer.test.index": "2af990671580b6b2df5d158d1038f8292e30c9cd821b5453f399659b25b723d4",
        "citeseer.tx": "539a8906a2da97628d212f2fdd668c109a8b3f0d36574b59e5d3fd5b5303da21",
        "citeseer.ty": "55e5bd1ba1e733a04598753ad1a8d57957f4b8f89e74519f41f4f4938767e4ce",
        "citeseer.x": "d20de19150741e555de0ed037195630fc194114ebc7fd72ced62810148aa22f6",
        "citeseer.y": "8ba87e515d8e3ee3cf52f6d2c5b86aa73f11ecad825a808455209ec26cd54924",
        "pubmed.allx": "508e538e2abdccdd54c4d3e9f49d638b4af7107d85845f66ddea5a5152658b7e",
        "pubmed.ally": "0c37bbe3b5014ec365e9d393cf4791925e5ed94fb194305d74f064a8d7b50f0e",
        "pubmed.graph": "5b89f0036ca22909471f1e6558eb42fa06e0c730a577bde5b058b40638f81dc9",
        "pubmed.test.index": "b101d421688bbaecbd82e8a18f1e282378d6830f3a37666f28ebc47f844341b5",
        "pubmed.tx": "4eb5f5d0f30f26497eb0ac6ac9719d09c67e284f1ed0385c93f3ef27a671da3d",
        "pubmed.ty": "ee2e0d4819d9fbcc403689c3bf2e49face401b605932f093bc58ab6461130fdd",
        "pubmed.x": "fbe9cb5c47200d1b7769a26e579be3b7130b556831f9d850e77c4c74f2599b33",
        "pubmed.y": "e6c807633307a07ed659249006536a147c7999c797f11a2560752990181b41b3",
    }.items()
}


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
    place = find(root, folder, files)
    if place is not None:
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
    known, file = SHA256.get(url), url.rpartition("/")[2]
    try:
        fetch = pooch.HTTPDownloader(timeout=_TIMEOUT)
        pooch.retrieve(url, known, fname=file, path=folder, downloader=fetch)
    except ValueError as error:
        if known is None:
            raise
        raise InvalidInputError(
            f"The download of {url} must have the SHA-256 {known}. Got another instead "
            f"({reason(error)}); try again, or get the file yourself and pass its root folder."
        ) from None
    if file.endswith(".zip"):
        shutil.unpack_archive(folder / file, folder)
        (folder / file).unlink()


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


def refuse_files(name: str, place: Path, error: Exception) -> NoReturn:
    """Say in one line why the files of the data set ``name`` cannot be read."""
    raise InvalidInputError(
        f"The files of {name!r} in {place} cannot be read ({reason(error)}); they may be cut "
        "short or of another version: get them again."
    ) from None


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
