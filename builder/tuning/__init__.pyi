from .goal import Goal as Goal
from .search import Trial as Trial
from .space import Values as Values
from .tune import UNMET as UNMET
from .tune import Tuned as Tuned
from .tune import TuneOptions as TuneOptions
from .tune import tune as tune
