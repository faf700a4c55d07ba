"""Computes the versions of the code that affects every plan, which takes about 0.1 s.

Processes that are forked afterwards do not compute them again.
"""

from builder.store import sources
from builder.store.key import ALWAYS

sources.version_of_all()
for _module in ALWAYS:
    sources.version(_module)
