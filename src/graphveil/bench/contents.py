"""What a graph of one's own holds, in a word by which results of it are found again.

A file may change under its name. The word is a keyed hash of all that was loaded; the key is made
at random for a folder of results and stays in it, so that who gets a file of results alone cannot
try guesses of the graph against it.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphveil._errors import InvalidInputError
from graphveil._files import link, write_file
from graphveil._inputs import read_text

if TYPE_CHECKING:
    from torch_geometric.data import Data

KEY = ".key"
_IDS_AT_ONCE = 1 << 16


def content_of(data: Data, folder: Path) -> str:
    """A word for all tensors and facts of ``data``, in order, by the key of a folder of results.

    Sentences on what was taken as public are left out, and so is where a store is: they decide
    nothing.
    """
    from graphveil.graph.contents import content_hash

    digest = hashlib.blake2b(key=_read_key(folder), digest_size=16)
    left_out = "public", "stored", "ids"
    names = sorted(name for name in data.keys() if name not in left_out)  # noqa: SIM118
    tensors = [name for name in names if _is_tensor(data[name])]
    facts = {name: data[name] for name in names if name not in tensors}
    digest.update(json.dumps(facts, sort_keys=True, default=_text_of).encode(errors="replace"))
    ids = getattr(data, "ids", None) or ()
    for first in range(0, len(ids), _IDS_AT_ONCE):
        block = list(ids[first : first + _IDS_AT_ONCE])
        digest.update(json.dumps(block).encode(errors="replace"))
    return content_hash(data, tensors, digest)


def _text_of(value: Any) -> str:
    """What an object says of itself, which must be the same in another process."""
    text = str(value)
    if " at 0x" in text:
        raise TypeError(f"{type(value).__name__} has no text of its own")
    return text


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "dtype") and hasattr(value, "detach")


def _read_key(folder: Path) -> bytes:
    """The key of a folder, which is made if there is none; of several at once the first counts."""
    path = folder / KEY
    try:
        if not path.exists():
            made = folder / f"{KEY}.{secrets.token_hex(8)}"
            write_file(made, secrets.token_hex(32).encode(), private=True)
            link(made, path)
            made.unlink(missing_ok=True)
        return bytes.fromhex(read_text(path))
    except (OSError, ValueError) as error:
        raise InvalidInputError(
            f"{path} must hold the key by which results know their data. Got {error} instead; "
            "name another folder."
        ) from None
