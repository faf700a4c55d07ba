from . import overflow as overflow
from .overflow import Beyond as Beyond
from .quantize import quantize as quantize
from .results import Quantized as Quantized
from .results import trained_scales as trained_scales
