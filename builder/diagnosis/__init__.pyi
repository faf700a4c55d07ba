from .ladder import Ladder as Ladder
from .ladder import Step as Step
from .ladder import asked_step as asked_step
from .ladder import climb as climb
