from .installation import Installation as Installation
from .installation import find as find
from .installation import server_version as server_version
from .judge import Judge as Judge
from .judge import judge_config as judge_config
from .judge import judging as judging
from .server import Server as Server
from .server import serve as serve
