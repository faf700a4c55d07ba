from . import board as board
from . import cluster as cluster
from .config import Farm as Farm
from .config import Target as Target
from .config import read as read
from .journal import folder_of as folder_of
from .run import Outcome as Outcome
from .run import build_on_farm as build_on_farm
