"""Puts a guarantee on trial: replays, draws of single releases, canaries, attacks.

=============================  =====================================================================
:mod:`~graphveil.audit.replay`     the same secret stream on a data set and on its neighbours
:mod:`~graphveil.audit.mechanism`  many draws of one release, beside the law that is charged
:mod:`~graphveil.audit.one_run`    canaries in one run of a method, found again in what it released
:mod:`~graphveil.audit.attacks`    membership, links, attributes: what an attacker gets
=============================  =====================================================================

A replay and a proof look from above, an attack from below: docs/guarantees/audits.md says what each
number proves. All results are :class:`~graphveil.audit.results.Finding`, and go to ``audit.json``.
"""
