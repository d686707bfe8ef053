"""What a certificate says of settings that trials chose; graphveil.tuning plans and runs these.

Two lines say how they were chosen, and stand among what is public. What is released besides, and
what would void it, follows from them: :func:`rests_on`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from graphveil.privacy.guarantee import DECLARED_PUBLIC, TUNED

ON_PUBLIC_DATA = (
    f"{TUNED}on {{data}}, declared public: settings were chosen there ({{tried}}), where nothing "
    "is charged; the private data was used once, for the last run"
)
BY_TRIALS = (
    f"{TUNED}by {{number}}, drawn from {{tried}}: these settings were chosen by looking at the "
    "data, and every look is charged"
)
COUNTED = "{trials:g} trials"
SECRET = "a secret number of trials, {trials:g} on average ({law} law)"
VALIDATION = "how many validation {records} there are and who they are"
DECLARED = (
    "the validation {records}, their labels{read}, which scored the trials: "
    f"{DECLARED_PUBLIC}, and not protected; training on the other {{records}} is charged"
)
PUBLIC_SCORE = "the chosen settings and their score on the public validation records"
NOISY_SCORE = "the chosen settings and their noisy validation score"
SCORE = "the chosen settings and their validation score"  # which no edge moves
NOT_PUBLIC_DATA = "{data} was not public, or not another data set than this one"
NOT_PUBLIC_RECORD = "a validation record was not public"
SHOWN = "the number of trials, a trial that did not win, or the time the trials took was shown"


def rests_on(public: Sequence[str], record: str, unit: str) -> dict[str, Any]:
    """What :meth:`Plan.resting_on` adds, by the last of a plan's ``public`` lines; ValueError.

    ``record`` is what the method classifies, ``unit`` what its plan protects.
    """
    last = list(public[-2:])
    if last and (data := re.fullmatch(_pattern(ON_PUBLIC_DATA), last[-1])):
        voided = [NOT_PUBLIC_DATA.format(data=data["data"])]
        return {"tuned": True, "public": last[-1:], "voided_by": voided}
    trials = re.fullmatch(_pattern(BY_TRIALS), last[0]) if len(last) == 2 else None
    if trials is None:
        raise ValueError("public does not end with how the settings were chosen by trials")
    records = f"{record}s"
    read = " and the edges among them" if record == "node" else ""
    declared = DECLARED.format(records=records, read=read)
    if last[1] not in (declared, VALIDATION.format(records=records)):
        raise ValueError(f"public has not {declared!r}, nor that validation {records} are private")
    on_public = last[1] == declared
    secret = trials["number"].startswith("a secret number")
    private = SCORE if unit.startswith("edge") else NOISY_SCORE
    return {
        "tuned": True,
        "public": last,
        "unprotected": [declared] if on_public else [],
        "also_released": [PUBLIC_SCORE if on_public else private],
        "voided_by": [*([NOT_PUBLIC_RECORD] if on_public else []), *([SHOWN] if secret else [])],
    }


def _pattern(line: str) -> str:
    """A line as a pattern, with a group for each of its places."""
    return re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>.+?)", re.escape(line))
