"""Imports the modules that the first call of torch.export.load imports: 1,200 modules, about 1.5 s
of CPU time.

Processes that are forked afterwards do not import them again.
"""

import torch._export.serde.serialize
import torch._functorch._aot_autograd.graph_compile
import torch._inductor.sizevars
import torch.export.pt2_archive._package
import torch.fx.experimental.validator
import torch.utils.serialization.config  # noqa: F401
