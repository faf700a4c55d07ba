"""Differential fuzzing: random programs are compared in torch, lowered, saved, and as a network."""
