from . import conversion as conversion
from . import engine as engine
from . import errors as errors
from . import lowering as lowering
from . import manifest as manifest
from . import parity as parity
from . import quantization as quantization
from . import reference as reference
from . import serving as serving
from . import triton as triton
from .conversion import Conversion as Conversion
from .conversion import convert as convert
from .conversion import converter as converter
from .conversion import decomposition as decomposition
from .conversion import evaluator as evaluator
from .engine import build_engine as build_engine
from .errors import TrtBuildError as TrtBuildError
from .errors import UnsupportedOperators as UnsupportedOperators
from .lowering import LoweredGraph as LoweredGraph
from .lowering import add_pass as add_pass
from .lowering import lower as lower
from .manifest import ModelSpec as ModelSpec
from .manifest import TensorSpec as TensorSpec
from .pipeline import compile as compile
from .quantization import quantize as quantize
from .repository import build_repository as build_repository

__version__: str
