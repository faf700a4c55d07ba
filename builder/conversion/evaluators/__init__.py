"""Static nodes: evaluated while the network is built; with DynamicScalars they become arithmetic on
shape tensors. Importing this package fills the registry.
"""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
