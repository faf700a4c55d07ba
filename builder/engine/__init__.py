"""The only package that imports TensorRT: the flavour, an empty network, and the build of a
plan.
"""

from builder.engine.build import Plan, build, build_engine
from builder.engine.options import BuildOptions

__all__ = ["BuildOptions", "Plan", "build", "build_engine"]
