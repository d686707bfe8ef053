"""The words that settings about graphs may take; a plan reads them without torch."""

from __future__ import annotations

import math

NORMALISATIONS = ("inverse-degree", "symmetric", "none")
"""What weight a message has; see :func:`graphveil.graph.messages.weigh_messages`."""

CAPS = ("hard", "soft")
"""How a sender's messages are bounded; see :mod:`graphveil.graph.aggregation`."""

SIMILARITIES = {"sigmoid": 1 / (1 + math.exp(-1)), "half": 1.0, "positive": 1.0}
"""Maps of the cosine of two rows to a weight, each with the largest weight it can give."""

RANKINGS = ("ista", "push")
"""How PageRank is approximated; see :mod:`graphveil.graph.pagerank`."""
