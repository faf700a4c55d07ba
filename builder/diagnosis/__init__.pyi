from .bisection import Bisection as Bisection
from .bisection import bisect as bisect
from .bisection import description as description
from .ladder import Ladder as Ladder
from .ladder import Step as Step
from .ladder import run_steps as run_steps
from .ladder import step_of_parity as step_of_parity
