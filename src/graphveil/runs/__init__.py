"""A run is a directory: what was asked for, what was trained, what it cost.

In the order in which they are written:

====================  ==============================================================================
log.txt               what happened when
ledger.json           the account the run is charged to, and its reservation; before it is reserved
checkpoint/           while training: every release with the part that paid for it, weights, the
                      count of steps begun, the turn that the ledger knows; removed last of all
plan.json             the plan: the parts that run, and what they cost
settings.json         method, settings, data, split and seed
private-losses.jsonl  the loss of every step, where asked for; private, covered by nothing
model.safetensors     the weights
cache.safetensors     noisy sums that predictions read (gap); under the unit node for nobody
events.json           every charge, and the hash of the weights it paid for
metrics.json          accuracy on the test nodes: read off labels, hence outside the certificate
environment.json      versions
certificate.txt       for people; so is certificate.md
certificate.json      makes the run *finished*
====================  ==============================================================================

Each file is written whole or not at all. Whenever a run is killed, either the checkpoint or the
weights with their charges are on disk, and :meth:`Run.train` goes on from there with the very plan
that was begun; no step begun is ever forgotten. Charges are read from events.json: it is written
before every certificate. Whoever reads a run plans nothing and prices nothing.

A directory that is made here is its owner's alone (mode 0700): metrics are outside the certificate.
ledger.json, private losses, a cache under the unit node and all of checkpoint/ are so, too, also
where the directory is opened to others.
"""

from graphveil.runs.files import write_text
from graphveil.runs.record import CACHE, FILES, LOSSES, Record
from graphveil.runs.run import Run
from graphveil.runs.saving import read, save
from graphveil.runs.searching import check_search, search_into
from graphveil.runs.source import Arranged, Source
from graphveil.runs.training import measure
from graphveil.runs.verifying import check_charged

__all__ = [
    "CACHE",
    "FILES",
    "LOSSES",
    "Arranged",
    "Record",
    "Run",
    "Source",
    "check_charged",
    "check_search",
    "measure",
    "read",
    "save",
    "search_into",
    "write_text",
]
