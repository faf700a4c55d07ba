"""The only room that imports TensorRT: the flavour, an empty network, and the build of a plan."""

from builder.engine.build import BuildOptions, Plan, build, build_engine

__all__ = ["BuildOptions", "Plan", "build", "build_engine"]
