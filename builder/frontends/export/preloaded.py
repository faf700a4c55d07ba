"""Imports what torch imports when torch.export.load is called for the first time: 1,200 modules,
about 1.5 s of CPU time. Processes that are forked from one that has them do not pay for it again.
"""

import torch._export.serde.serialize
import torch._functorch._aot_autograd.graph_compile
import torch._inductor.sizevars
import torch.export.pt2_archive._package
import torch.fx.experimental.validator
import torch.utils.serialization.config  # noqa: F401
