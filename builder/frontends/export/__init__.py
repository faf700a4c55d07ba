"""Exported programs: archive inspection, loading, and conversion to graphs of TorchScript nodes."""
