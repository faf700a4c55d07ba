from . import plugins as plugins
from .archive import inspect as inspect
from .facts import ArchiveFacts as ArchiveFacts
from .facts import sha256 as sha256
from .loading import load as load
from .traced import Example as Example
