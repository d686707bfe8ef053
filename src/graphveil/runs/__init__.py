"""A run is a directory: what was asked for, what was trained, what it cost.

In the order in which they are written:

====================  ==============================================================================
log.txt               what happened when
ledger.json           the account the run is charged to, and its reservation; before it is reserved
settings.json         method, settings, data, split, seed and the public facts
private-losses.jsonl  the loss of every step, where asked for; private, covered by nothing
checkpoint/           while training: weights, the count of steps begun, the turn that the ledger
                      knows; removed last of all
model.safetensors     the weights
cache.safetensors     noisy sums that predictions read (gap); under the unit node for nobody
events.json           every charge, and the hash of the weights it paid for
metrics.json          accuracy on the test nodes: read off labels, hence outside the certificate
environment.json      versions
certificate.txt       for people; so is certificate.md
certificate.json      makes the run *finished*
====================  ==============================================================================

Each file is written whole or not at all. Whenever a run is killed, either the checkpoint or the
weights with their charges are on disk, and :func:`train` goes on from there; no step begun is ever
forgotten. Charges are read from events.json: it is written before every certificate.

A directory that is made here is its owner's alone (mode 0700): metrics are outside the certificate.
ledger.json, private losses, a cache under the unit node and all of checkpoint/ are so, too, also
where the directory is opened to others.
"""

from graphveil.runs.charged import check_charged
from graphveil.runs.charging import charged_to, was_charged
from graphveil.runs.directory import (
    FILES,
    LOSSES,
    arranged,
    class_names,
    has_cache,
    load_for,
    read,
    state,
    state_of_run,
    trained_on,
)
from graphveil.runs.files import write_text
from graphveil.runs.metrics import METRICS, OUTSIDE, measure
from graphveil.runs.predicting import predict
from graphveil.runs.source import Arranged, Source
from graphveil.runs.training import check, train, write
from graphveil.runs.tuned import check_tuning, tune

__all__ = [
    "FILES",
    "LOSSES",
    "METRICS",
    "OUTSIDE",
    "Arranged",
    "Source",
    "arranged",
    "charged_to",
    "check",
    "check_charged",
    "check_tuning",
    "class_names",
    "has_cache",
    "load_for",
    "measure",
    "predict",
    "read",
    "state",
    "state_of_run",
    "train",
    "trained_on",
    "tune",
    "was_charged",
    "write",
    "write_text",
]
