"""Every release of an unfinished run, with the part that paid for it.

============================  ======================================================================
releases.json                 the index: the part of every release, written before it is made
NAME.safetensors              what a part released, on disk before anybody reads it
NAME/                         the steps of a part: a journal of those begun, the last weights,
                              and ``finished.safetensors`` once all are taken
============================  ======================================================================

"Has anything been released?" is asked of the index, and of nothing else. It is made with the
checkpoint: where there is a checkpoint without one, what it says is lost, and something may have
been released.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphveil._errors import InvalidInputError, UnprovenError
from graphveil._files import partial_name, private_directory, write_file
from graphveil._inputs import json_of, read_text
from graphveil.methods.parts import Part, Release, to_json

if TYPE_CHECKING:
    from torch import Tensor

    from graphveil.grads.journal import Witness

INDEX = "releases.json"
_FORMAT = 1


class Checkpoint:
    """The releases of a run that is being trained in ``directory``.

    A ``witness`` remembers them apart from these files; see docs/guarantees/ledger.md.
    """

    def __init__(self, directory: str | Path, witness: Witness | None = None) -> None:
        self.directory, self.witness = Path(directory), witness

    # --- what was released -----------------------------------------------------------------------

    @property
    def begun(self) -> bool:
        """Whether anything may have been released."""
        try:
            return bool(self.releases)
        except InvalidInputError:
            return not self._empty

    @property
    def _empty(self) -> bool:
        """Whether nothing is here but perhaps a first index that was not written to its end."""
        if not self.directory.exists():
            return True
        return all(path.name == partial_name(INDEX) for path in self.directory.iterdir())

    @property
    def lost(self) -> bool:
        """Whether the index is gone, so that nobody knows what was released."""
        return not (self.directory / INDEX).exists()

    @property
    def releases(self) -> dict[str, dict[str, Any]]:
        """The part of every release that was begun, by its name."""
        if self.lost:
            if not self._empty:
                raise self._unreadable("its index is gone")
            return {}
        try:
            content = json_of(read_text(self.directory / INDEX))
            if content["format"] != _FORMAT:
                raise ValueError(f"format {content['format']!r} is not {_FORMAT}")
            return {str(name): dict(part) for name, part in content["releases"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise self._unreadable(str(error)) from error

    def steps_begun(self, name: str | None = None) -> int:
        """How many steps the journals hold, of one part or of all."""
        names = [name] if name is not None else list(self.releases)
        journals = [self.directory / part / "steps" for part in names]
        return sum(path.stat().st_size for path in journals if path.exists())

    def _unreadable(self, why: str) -> InvalidInputError:
        return InvalidInputError(
            f"The checkpoint in {self.directory} cannot be read: {why}. What it may have released "
            "stays spent; start anew with --force, or in another directory."
        )

    # --- releasing -------------------------------------------------------------------------------

    def open(self) -> None:
        """Make the index, if there is none."""
        if self.directory.exists() and not self.directory.is_dir():
            raise InvalidInputError(
                f"The 'directory' must be a directory. Got {self.directory}, which is a file, "
                "instead; name another."
            )
        private_directory(self.directory)
        if self.lost and self._empty:
            self._write({})

    def clear(self, part: Part) -> None:
        """Remove what is left of steps that never began: whoever made it died before."""
        place = self.directory / part.name
        lost = (place / "checkpoint.pt").exists() and not (place / "steps").exists()
        if lost or self.steps_begun(part.name):
            raise self._unreadable(f"it has steps of {part.name!r}, of which its index knows none")
        shutil.rmtree(place, ignore_errors=True)

    def begin(self, part: Part, *, alike: bool = True) -> None:
        """Note that a part begins to release.

        What had begun before must be ``alike``. Steps that are all of a plan need not be: those of
        an earlier attempt stay charged as what they were.
        """
        releases, now = self.releases, plain(part)
        before = releases.get(part.name)
        if before != now:
            if before is not None and alike:
                raise UnprovenError(
                    f"What was released to {self.directory} as {part.name!r} was made under other "
                    "settings or with other noise than here; resume with the same, or start in "
                    "another directory."
                )
            self._write(releases | {part.name: now})

    def once(
        self, part: Release, draw: Callable[[], Mapping[str, Tensor]], made_by: str
    ) -> dict[str, Tensor]:
        """What a part released, drawn at most once; ``made_by`` says under what it may be used.

        It is on disk before anybody reads it, and the witness hears of it before there is a file
        that somebody could take away. Should the process die before, nobody has seen it, and it is
        drawn again at no cost; should it die in between, what was paid for is lost, and the run
        does not go on.
        """
        import safetensors.torch
        import torch

        file = self.directory / f"{part.name}.safetensors"
        known = 0 if self.witness is None else self.witness.known(file)
        self.begin(part)
        begun = list(self.releases)
        followed = begun.index(part.name) < len(begun) - 1  # later parts were made from it
        if (known or followed) and not file.exists():
            raise InvalidInputError(
                f"What was released to {file} was paid for once, and is gone; put the file back, "
                "or start anew with --force."
            )
        key = torch.tensor(list(hashlib.sha256(made_by.encode()).digest()), dtype=torch.uint8)
        drawn = None
        if not file.exists():
            drawn = safetensors.torch.save({**draw(), "made_by": key})
        if self.witness is not None and not known:
            self.witness.note(file, 1)
        if drawn is not None:
            write_file(file, drawn, private=True)
        try:
            released = safetensors.torch.load(file.read_bytes())
            same = torch.equal(released.pop("made_by"), key)
        except (safetensors.SafetensorError, KeyError) as error:
            raise InvalidInputError(
                f"What was released to {file} cannot be read: {error}; it was paid for, so put the "
                "file back, or start in another directory."
            ) from error
        if not same:
            raise UnprovenError(
                f"What was released to {file} was made under other settings or with other noise "
                "than here; resume with the same, or start in another directory."
            )
        return released

    def _write(self, releases: Mapping[str, Any]) -> None:
        content = {"format": _FORMAT, "releases": releases}
        write_file(self.directory / INDEX, json.dumps(content, indent=2).encode(), private=True)


def plain(part: Part) -> dict[str, Any]:
    """A part as the index gives it back."""
    return dict(json.loads(json.dumps(to_json(part))))
