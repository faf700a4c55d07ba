"""Differential fuzzing: compares random programs in torch, lowered, saved, and as a network."""
