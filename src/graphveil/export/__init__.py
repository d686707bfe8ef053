"""What leaves graphveil for other programs: models as ONNX, embeddings as tables.

    from graphveil import export

    export.to_onnx(method, "model.onnx")
    export.write_embedding(method.embed(data), "rows.parquet")

docs/export.md says what may be shown to whom. Names load on first use.
"""

from typing import TYPE_CHECKING

from graphveil._lazy import lazy_names

if TYPE_CHECKING:
    from graphveil.export.models import to_onnx
    from graphveil.export.tables import write_embedding

__all__ = ["to_onnx", "write_embedding"]

_NAMES_OF = {
    "graphveil.export.models": "to_onnx",
    "graphveil.export.tables": "write_embedding",
}
__getattr__, __dir__ = lazy_names(globals(), _NAMES_OF)
