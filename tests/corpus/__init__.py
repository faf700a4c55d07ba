"""A corpus of real model architectures, each taken from TorchScript to a published repository."""
