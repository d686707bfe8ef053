"""What a store is: a directory with plain arrays and a manifest, read by memory map.

==================  ==============================================================================
file                content
==================  ==============================================================================
manifest.json       what is known of the graph, and the type, shape and checksum of every array
offsets.npy         int64 (nodes + 1): where in ``receivers`` the messages of a sender begin
receivers.npy       int32 (messages,): of every sender in ascending order, none twice, no self-loop
x.npy               float32 or float16 (nodes, features); or, if the manifest says ``sparse``,
                    ``x_offsets`` int64 (nodes + 1), ``x_columns`` int32 and ``x_values``
y.npy               as :mod:`graphveil.graph.targets` says; absent where there are no labels
\\*_mask.npy         bool (nodes,): who is trained on, validated with and tested
ids.npy             int64 (nodes,): ids as their owner wrote them; or, where they are text,
                    ``id_offsets`` int64 (nodes + 1) and ``id_bytes`` uint8, which is UTF-8
==================  ==============================================================================

The manifest is written last, and at once: a directory without it is a store that was not finished,
and nobody but :mod:`graphveil.data.store_building` reads that. All files are private: their owner's
alone. Neither pandas nor torch is loaded here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphveil._errors import InvalidInputError
from graphveil._files import write_file
from graphveil._inputs import at_home, json_of, read_text, regular

FORMAT = 1
MANIFEST = "manifest.json"
BUILDING = "building"  # a folder inside a store while it is built
MASK_ARRAYS = ("train_mask", "val_mask", "test_mask")
ARRAYS: Mapping[str, tuple[str, ...]] = {  # and the types that they may have
    "offsets": ("int64",),
    "receivers": ("int32", "int64"),
    "x": ("float32", "float16"),
    "x_offsets": ("int64",),
    "x_columns": ("int32",),
    "x_values": ("float32", "float16"),
    "y": ("int64", "float32"),
    **dict.fromkeys(MASK_ARRAYS, ("bool",)),
    "ids": ("int64",),
    "id_offsets": ("int64",),
    "id_bytes": ("uint8",),
}
_PIECE = 1 << 22  # bytes that are hashed together
Track = Callable[[str, Iterable[Any]], Iterable[Any]]  # shows how far something is


def track_nothing(label: str, items: Iterable[Any]) -> Iterable[Any]:
    """The ``items``, and nobody is shown how far they are."""
    return items


@dataclass(frozen=True)
class ArrayFacts:
    """Type, shape and checksum of an array of a store."""

    dtype: str
    shape: tuple[int, ...]
    sha256: str

    def nbytes(self) -> int:
        """How much room its numbers take."""
        size = np.dtype(self.dtype).itemsize
        for length in self.shape:
            size *= length
        return size


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What is known of a store; what is None was not stated.

    What has the name of an attribute of a PyG ``Data`` means what it means there. ``source`` says
    where the graph came from. ``loops_removed`` and ``repeats_removed`` count lines of edges that
    no method reads, and are private, as all counts of edges are.
    """

    num_nodes: int
    num_features: int
    num_messages: int
    arrays: Mapping[str, ArrayFacts]
    directed: bool | None = None
    task: str | None = None
    num_classes: int | None = None
    class_names: list[str] | None = None
    value_range: list[float] | None = None
    columns: list[str] | None = None
    schema: dict[str, Any] | None = None
    unit_name: str | None = None
    own_lists: list[str] | None = None
    spent: list[dict[str, Any]] | None = None
    public: list[str] = field(default_factory=list)
    unprotected: list[str] = field(default_factory=list)
    void_because: list[str] = field(default_factory=list)
    owner: str | None = None
    source: str = ""
    loops_removed: int = 0
    repeats_removed: int = 0

    @property
    def sparse(self) -> bool:
        """Whether features are sparse rows."""
        return "x_values" in self.arrays

    @property
    def nbytes(self) -> int:
        """How much room all arrays take."""
        return sum(facts.nbytes() for facts in self.arrays.values())

    def to_dict(self) -> dict[str, Any]:
        """The content of ``manifest.json``."""
        return {"format": FORMAT, **asdict(self), "sparse": self.sparse}

    @classmethod
    def from_dict(cls, content: Any) -> Manifest:
        """What :meth:`to_dict` gave; ValueError where it is something else."""
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            got = content.get("format") if isinstance(content, dict) else type(content).__name__
            raise ValueError(f"it has the format {got!r}, and this version reads {FORMAT}")
        arrays = {
            name: ArrayFacts(facts["dtype"], tuple(facts["shape"]), facts["sha256"])
            for name, facts in content["arrays"].items()
        }
        names = [item.name for item in fields(cls) if item.name != "arrays"]
        manifest = cls(arrays=arrays, **{name: content[name] for name in names if name in content})
        _check_arrays(manifest)
        return manifest

    @classmethod
    def read(cls, directory: str | Path) -> Manifest:
        """The manifest of a store; one line where there is none, or a damaged one."""
        directory = at_home(directory)
        path = directory / MANIFEST
        if not path.is_file():
            raise InvalidInputError(_why_no_store(directory))
        try:
            return cls.from_dict(json_of(read_text(path)))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            reason = f"no {error}" if isinstance(error, KeyError) else " ".join(str(error).split())
            raise InvalidInputError(
                f"{path} is no manifest of a store ({reason.rstrip('.')}); build the store again "
                "with --force."
            ) from None

    def write(self, directory: Path) -> None:
        """Write ``manifest.json``, whole or not at all: from then on the store is finished."""
        text = json.dumps(self.to_dict(), indent=1) + "\n"
        write_file(directory / MANIFEST, text.encode("utf-8", "backslashreplace"), private=True)


def is_store(path: str | Path) -> bool:
    """Whether a finished store is at ``path``."""
    return (at_home(path) / MANIFEST).is_file()


def is_unfinished(path: str | Path) -> bool:
    """Whether a store was begun at ``path`` and is not finished."""
    return not is_store(path) and (at_home(path) / BUILDING).is_dir()


def array_path(directory: str | Path, name: str) -> Path:
    """The file of an array."""
    return at_home(directory) / f"{name}.npy"


def open_array(directory: str | Path, name: str, manifest: Manifest) -> NDArray[Any]:
    """An array of a store, read only and by memory map; one line where it is damaged."""
    path, facts = array_path(directory, name), manifest.arrays[name]
    try:
        if 0 in facts.shape:  # nothing can be mapped
            array = np.load(regular(path), allow_pickle=False)
        else:
            array = np.load(regular(path), mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        reason = " ".join(str(error).split()).rstrip(".") or "it is empty"
        # What numpy advises about objects would run code.
        raise damage(path, "it holds objects" if "pickle" in reason else reason) from None
    if str(array.dtype) != facts.dtype or array.shape != facts.shape:
        got = f"it is {array.dtype} {array.shape}, the manifest says {facts.dtype} {facts.shape}"
        raise damage(path, got)
    return array


def verify(directory: str | Path, track: Track = track_nothing) -> Manifest:
    """The manifest of a store whose arrays all have their type, shape and checksum.

    *Guarantee*: a changed byte of an array is noticed; whoever changes the manifest, too, is not.
    """
    directory = at_home(directory)
    manifest = Manifest.read(directory)
    for name in track("checking sums", list(manifest.arrays)):
        open_array(directory, name, manifest)
        path = array_path(directory, name)
        if sha256_of(path) != manifest.arrays[name].sha256:
            raise damage(path, "its checksum is not the one in the manifest")
    return manifest


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for piece in _pieces(file):
            digest.update(piece)
    return digest.hexdigest()


def _pieces(file: Any) -> Iterator[bytes]:
    while piece := file.read(_PIECE):
        yield piece


def _check_arrays(manifest: Manifest) -> None:
    """Refuse arrays that no store has, that have another type, or that do not fit the sizes."""
    nodes, messages, width = manifest.num_nodes, manifest.num_messages, manifest.num_features
    arrays = manifest.arrays
    shapes = {
        "offsets": (nodes + 1,), "receivers": (messages,), "x": (nodes, width),
        "x_offsets": (nodes + 1,), "ids": (nodes,), "id_offsets": (nodes + 1,),
        **dict.fromkeys(MASK_ARRAYS, (nodes,)),
    }  # fmt: skip
    for name, facts in arrays.items():
        if facts.dtype not in ARRAYS.get(name, ()):
            raise ValueError(f"an array {name!r} of {facts.dtype}")
        if facts.shape != shapes.get(name, facts.shape):
            raise ValueError(f"the array {name!r} has the shape {facts.shape}")
    features = ("x_offsets", "x_columns", "x_values") if manifest.sparse else ("x",)
    for name in ("offsets", "receivers", *features):
        if name not in arrays:
            raise ValueError(f"no array {name!r}")


def _why_no_store(directory: Path) -> str:
    if is_unfinished(directory):
        return (
            f"The store {directory} is not finished; give the command that builds it once more, "
            "which goes on where it stopped."
        )
    return (
        f"There is no store {directory}, which would hold {MANIFEST}; build one with 'graphveil "
        "data store SOURCE --out STORE'."
    )


def damage(path: Path, reason: str) -> InvalidInputError:
    """The refusal of an array that is not what the manifest says."""
    return InvalidInputError(
        f"{path} is damaged ({reason}); build the store again with --force, or copy it again."
    )
