"""The files of a run of private steps: a checkpoint, and a journal of the steps begun since.

One byte goes to disk before every step. Steps taken between two checkpoints are lost in a crash,
but they were released, and stay charged.
"""

from __future__ import annotations

import copy
import io
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any

import dp_accounting as dpa
import torch

from graphveil import _validate
from graphveil._errors import InvalidInputError, RefusedError, UnprovenError
from graphveil._files import private_directory, write_file
from graphveil.grads.clipping import Adaptive
from graphveil.grads.journal import Journal
from graphveil.privacy.events import composed, from_json, repeated, to_json

if TYPE_CHECKING:
    from graphveil.grads.step import PrivateStep
    from graphveil.processes import Ranks

FILE = "checkpoint.pt"
_UNREADABLE = (RuntimeError, KeyError, EOFError, ValueError, TypeError, UnpicklingError)


class StepCheckpoint:
    """Where one :class:`~graphveil.grads.step.PrivateStep` is saved, once it has been."""

    def __init__(self, step: PrivateStep) -> None:
        self._step = step
        self._journal: Journal | None = None
        self._place = Path()  # where the journal is, by the name that the witness knows
        self._witnessed = 0  # steps that the witness knows of

    def save(self, directory: str | Path) -> None:
        """Write a checkpoint; see :meth:`~graphveil.grads.step.PrivateStep.save`."""
        place, directory = Path(directory).absolute(), Path(directory).resolve()
        ours = self._journal is not None and self._journal.directory == directory
        if not ours and (directory / FILE).exists():
            raise RefusedError(
                f"{directory} holds the checkpoint of another run, whose steps must stay charged. "
                "Resume it, or save to another directory."
            )
        if directory.exists() and not directory.is_dir():
            raise InvalidInputError(f"The 'directory' must be a directory. {directory} is a file.")
        private_directory(directory)
        witness = self._step.witness
        if not ours and witness is not None and witness.known(place):
            raise InvalidInputError(
                f"The steps that were begun in {directory} are known, and their journal is gone. "
                "They stay charged; put it back, or start anew with --force."
            )
        if not ours:  # before the checkpoint: where there is one, a journal is missed
            self._journal, self._place = Journal(directory, self._step.taken), place
        self._write(directory)

    def note_step(self) -> None:
        """Put the beginning of a step on disk; the witness hears of a hundredth of them at once.

        What it was told of and was not taken before a crash stays charged, and is not taken later.
        """
        if self._journal is None:
            return
        taken, witness = self._step.taken, self._step.witness
        if witness is not None and taken >= self._witnessed:
            planned = self._step.max_steps or 0
            ahead = taken + max(1, planned // 100)
            self._witnessed = max(min(ahead, planned), taken + 1)
            witness.note(self._place, self._witnessed)
        self._journal.note()

    def resume(self, directory: str | Path) -> None:
        """Go on from a checkpoint; see :meth:`~graphveil.grads.step.PrivateStep.resume`."""
        step = self._step
        place, directory = Path(directory).absolute(), Path(directory).resolve()
        if step.rng.void_reason is not None:
            raise RefusedError(
                "A run with a fixed secret stream cannot be resumed, since its noise would repeat. "
                "Start again, or use graphveil.secret()."
            )
        before = copy.deepcopy((step.module.state_dict(), step.optimizer.state_dict()))
        try:
            state = torch.load(directory / FILE, map_location="cpu", weights_only=True)
            earlier, crashed = self._check_charges(state, directory)
            noted = self._count_noted(state, directory)
            self._witnessed = 0 if step.witness is None else step.witness.known(place)
            self._load(state, state["torch_rng"])
        except FileNotFoundError as error:
            missing = Path(error.filename).name
            raise InvalidInputError(
                f"There is no checkpoint in {directory}: '{missing}' is missing."
            ) from error
        except _UNREADABLE as error:
            step.module.load_state_dict(before[0])  # not half of somebody else's weights
            step.optimizer.load_state_dict(before[1])
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            raise InvalidInputError(
                f"The checkpoint in {directory} cannot be read into this module: {reason}"
            ) from error
        spent = max(noted, self._witnessed)
        if crashed == step.one_step:
            step.earlier, step.taken = earlier, spent
        else:
            # Other settings from here on: what came before stays charged as what it was. The
            # checkpoint says so before the journal starts anew, so that no crash loses a step.
            step.earlier, step.taken = composed(earlier, repeated(crashed, spent)), 0
            self._write(directory)
        if step.earlier != dpa.NoOpDpEvent():
            step.stay_within_target()
        # One that is shorter than what is charged would hide the next steps.
        self._journal = Journal(directory, None if noted == step.taken else step.taken)
        self._place = place

    def share(self, ranks: Ranks) -> None:
        """Have the other processes go on as rank 0 does: weights, optimizer, steps, charges."""
        step = self._step

        def write() -> torch.Tensor:
            return torch.frombuffer(bytearray(_as_bytes(self._state())), dtype=torch.uint8)

        content = ranks.once(write)
        if ranks.first:
            return
        state = torch.load(
            io.BytesIO(content.numpy().tobytes()), map_location="cpu", weights_only=True
        )
        self._load(state, torch.get_rng_state())
        step.earlier, step.taken = from_json(state["earlier"]), state["taken"]
        step.max_steps = state["max_steps"]

    def _write(self, directory: Path) -> None:
        write_file(directory / FILE, _as_bytes(self._state()), private=True)

    def _state(self) -> dict[str, Any]:
        step = self._step
        clipping = step.clipped.clipping
        return {
            "module": step.module.state_dict(),
            "optimizer": step.optimizer.state_dict(),
            "torch_rng": torch.get_rng_state(),
            "max_grad_norm": clipping.max_grad_norm if isinstance(clipping, Adaptive) else None,
            "earlier": to_json(step.earlier),
            "one_step": to_json(step.one_step),
            "taken": step.taken,
            "max_steps": step.max_steps,
            "promise": step.promise,
            "void_reason": step.rng.void_reason,
        }

    def _check_charges(
        self, state: dict[str, Any], directory: Path
    ) -> tuple[dpa.DpEvent, dpa.DpEvent]:
        """Refuse steps that were charged for something else; what was charged before, and each."""
        step = self._step
        if (then := state.get("promise", "")) != step.promise:
            raise UnprovenError(
                f"The steps in {directory} were charged for another promise ({then or 'none'}) "
                f"than this run makes ({step.promise or 'none'}), and one does not count for "
                "the other. Resume with the same, or start in another directory."
            )
        if (void := state.get("void_reason")) is not None:
            raise RefusedError(
                f"The steps in {directory} cannot be gone on with: {void} Start again in "
                "another directory."
            )
        earlier, crashed = from_json(state["earlier"]), from_json(state["one_step"])
        other = crashed != step.one_step or earlier != dpa.NoOpDpEvent()
        if step.witness is not None and other:  # whose run has the settings it began with
            raise ValueError(
                "its steps had other noise or batches than this run's; put the right one back, "
                "or start anew with --force"
            )
        return earlier, crashed

    def _count_noted(self, state: dict[str, Any], directory: Path) -> int:
        """Steps in the journal, which are no fewer than were taken."""
        noted = Journal(directory).steps
        taken = _validate.integer("taken", state["taken"], "[0, inf)")
        if noted < taken:
            raise ValueError(f"its journal has {noted} steps, and {taken} were taken")
        return noted

    def _load(self, state: dict[str, Any], generator: torch.Tensor) -> None:
        """Weights, the optimizer's state, torch's generator and an adaptive bound."""
        step, bound = self._step, state["max_grad_norm"]
        if bound is not None:
            _validate.number("max_grad_norm", bound, "(0, inf)")
        self._check_options(state["optimizer"])
        step.module.load_state_dict(state["module"])
        step.optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(generator)
        if isinstance(step.clipped.clipping, Adaptive) and bound is not None:
            step.clipped.clipping.max_grad_norm = bound

    def _check_options(self, saved: dict[str, Any]) -> None:
        """Refuse the state of another kind of optimizer, which could not step."""
        groups = zip(self._step.optimizer.param_groups, saved["param_groups"], strict=False)
        lost = sorted({name for ours, theirs in groups for name in ours.keys() - theirs.keys()})
        if lost:
            raise InvalidInputError(
                f"it was saved with another kind of optimizer, without {', '.join(lost)}; resume "
                "with the same kind."
            )


def _as_bytes(state: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()
