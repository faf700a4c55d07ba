"""What TensorRT runs and what stays in torch, as few pieces as the graph allows."""

from builder.partition.drawing import svg
from builder.partition.split import Partition, Segment, split

__all__ = ["Partition", "Segment", "split", "svg"]
