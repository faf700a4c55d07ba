"""What TensorRT runs and what stays in torch, as few pieces as the graph allows."""

from builder.partition.branches import Branch, Part, branches, take_apart
from builder.partition.drawing import svg
from builder.partition.split import Partition, Segment, split

__all__ = ["Branch", "Part", "Partition", "Segment", "branches", "split", "svg", "take_apart"]
