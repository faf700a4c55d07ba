"""Exported programs: checked as archives, loaded, and written as graphs of TorchScript nodes."""
