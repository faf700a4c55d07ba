from .push import Pushed as Pushed
from .push import Target as Target
from .push import push as push
