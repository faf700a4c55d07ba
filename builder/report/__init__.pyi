from . import records as records
from .changes import read_old as read_old
from .formatting import percent as percent
from .formatting import size as size
from .gather import gather as gather
from .render import format_of as format_of
from .render import render as render
