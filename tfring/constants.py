"""The reduce operations, with Horovod's numbers."""

from __future__ import annotations

__all__ = ["Adasum", "Average", "Max", "Min", "Product", "Sum"]

# Numbers of tfr_reduce_op in custom_ops/core/tfring.h.
Average: int = 0
Sum: int = 1
Adasum: int = 2
Min: int = 3
Max: int = 4
Product: int = 5

NAMES: dict[int, str] = {
    Average: "Average",
    Sum: "Sum",
    Adasum: "Adasum",
    Min: "Min",
    Max: "Max",
    Product: "Product",
}
