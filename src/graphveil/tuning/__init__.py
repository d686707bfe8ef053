"""Choosing settings, and paying for it: random search whose trials are charged.

Three ways, and the certificate names which one was used: scores on private validation records
(noisy, charged with their trial), on validation records declared public (exact; the trainings are
charged all the same), or trials on another data set that is public (free).
Proofs: docs/guarantees/tuning.md.
"""

from graphveil.tuning.candidates import Between, Listed, values_of
from graphveil.tuning.counting import LAWS
from graphveil.tuning.plan import SAMPLERS, SCORES, PricedTuning, Tuning, TuningPlan
from graphveil.tuning.trials import Winner, check_jobs_of, require_optuna, search, search_openly

__all__ = [
    "LAWS",
    "SAMPLERS",
    "SCORES",
    "Between",
    "Listed",
    "PricedTuning",
    "Tuning",
    "TuningPlan",
    "Winner",
    "check_jobs_of",
    "require_optuna",
    "search",
    "search_openly",
    "values_of",
]
