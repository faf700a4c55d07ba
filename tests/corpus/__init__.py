"""A corpus of real model architectures, each published from TorchScript."""
