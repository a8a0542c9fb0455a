"""Builder of an ONNX graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


class Graph:
    """Operators and constants of one model, in order."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, value: Any, dtype: str = "float32") -> str:
        """Add a constant array to the model and return its name."""
        from onnx import numpy_helper

        name = f"constant_{len(self.constants)}"
        self.constants.append(
            numpy_helper.from_array(np.ascontiguousarray(value, dtype).reshape(np.shape(value)), name)
        )
        return name

    def add(self, operator: str, *inputs: str, name: str = "", **attributes: Any) -> str:
        """Append an operator and return the name of its output."""
        from onnx import helper

        output = name or f"{operator.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [output], **attributes))
        return output

    def reshape(self, value: str, *shape: int) -> str:
        """Reshape `value`; one size may be -1."""
        return self.add("Reshape", value, self.constant(shape, "int64"))

    def clip(self, value: str, low: Any, high: Any) -> str:
        """Clip `value` to bounds that broadcast over it."""
        return self.add("Min", self.add("Max", value, self.constant(low)), self.constant(high))

    def split(self, value: str, sizes: Sequence[int]) -> list[str]:
        """Split `value` along axis 1 into parts of these sizes."""
        from onnx import helper

        names = [f"part_{len(self.nodes)}_{i}" for i in range(len(sizes))]
        given = [value, self.constant(sizes, "int64")]
        self.nodes.append(helper.make_node("Split", given, names, axis=1))
        return names
