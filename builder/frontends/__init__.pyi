from .export.program import ExportedModule as ExportedModule
from .loading import SUFFIX as SUFFIX
from .loading import load as load
from .loading import preloaded as preloaded
