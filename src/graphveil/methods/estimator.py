"""What scikit-learn asks of an estimator, and what it may not do with a private one.

A method can be cloned, put at the end of a ``Pipeline``, and says ``classes_``,
``feature_names_in_`` and ``n_features_in_`` once it is fitted. Cross-validation and searches are
refused: they fit many times on the same records and show scores of them.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Self

from graphveil._errors import UnprovenError
from graphveil.methods.settings import Settings, settings

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from graphveil.data.schema import Schema
    from graphveil.methods.plan import Plan

# Modules of scikit-learn that fit clones of an estimator again and again on the same data.
_REPEATED = (
    "sklearn.model_selection", "sklearn.ensemble", "sklearn.calibration", "sklearn.multiclass",
    "sklearn.feature_selection", "sklearn.multioutput", "sklearn.semi_supervised",
)  # fmt: skip


@settings()
class Estimator(Settings):
    """Settings with the names that scikit-learn knows fitted estimators by.

    ``class_names_``, ``columns_`` and ``schema_`` hold what is public: what the owner of the data
    stated of classes, feature columns and tables, or None.
    """

    if TYPE_CHECKING:
        plan_: Plan
        class_names_: tuple[str, ...] | None
        columns_: tuple[str, ...] | None
        schema_: Schema | None

        def _check_fitted(self) -> None: ...

    @property
    def classes_(self) -> NDArray[Any]:
        """The classes, or labels, as their owner wrote them where names are public; else numbers.

        A column of ``predict_proba`` is one of them. A regression has none.
        """
        import numpy as np

        self._check_fitted()
        facts = self.plan_.facts
        if facts.task == "regression":
            raise AttributeError("A regression has no 'classes_'.")
        if self.class_names_ is None:
            return np.arange(facts.num_classes)
        return np.array(self.class_names_, dtype=object)

    @property
    def feature_names_in_(self) -> NDArray[np.object_]:
        """The names of the feature columns; data that had none has no such attribute."""
        import numpy as np

        self._check_fitted()
        if self.columns_ is None:
            raise AttributeError("The data trained on had no names of columns.")
        return np.array(self.columns_, dtype=object)

    @property
    def n_features_in_(self) -> int:
        """How many feature columns were trained on."""
        self._check_fitted()
        return self.plan_.facts.num_features

    def __sklearn_clone__(self) -> Self:
        """A method with the same settings that is not fitted; refused to who fits many."""
        frame = sys._getframe(1)
        while frame is not None:
            module = str(frame.f_globals.get("__name__"))
            if module.startswith(_REPEATED):
                package = ".".join(module.split(".")[:2])
                raise UnprovenError(
                    f"{package} fits a method again and again on the same records, and shows "
                    "scores of them: releases that no certificate covers. Use 'graphveil tune' "
                    "(graphveil.tuning), which charges all trials to one epsilon, or on public "
                    "data a loop over graphveil.split(data, seed=...); see docs/sklearn.md."
                )
            frame = frame.f_back  # type: ignore[assignment]
        return type(self)(**self.get_params())

    def __sklearn_is_fitted__(self) -> bool:
        """Whether it was fitted."""
        return hasattr(self, "network_")

    def __sklearn_tags__(self) -> Any:
        """What scikit-learn may expect: labels stand in the data, which is no table of rows."""
        from sklearn.utils import InputTags, Tags, TargetTags

        target = TargetTags(required=False)
        graphs = InputTags(two_d_array=False)
        return Tags(estimator_type=None, target_tags=target, input_tags=graphs, no_validation=True)
