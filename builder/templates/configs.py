"""The templates of config.pbtxt, and the script that starts tritonserver in a container."""

from __future__ import annotations

from pathlib import Path


def config_templates() -> Path:
    """The folder of the templates: `templates/` at the top of a checkout. A wheel carries them
    beside this file (`force-include` in pyproject.toml).
    """
    here = Path(__file__).resolve().parent
    if (here / "base.pbtxt").is_file():
        return here
    return here.parents[1] / "templates"


def server_script() -> Path:
    """The shell script with which NVIDIA's image starts tritonserver in a cluster."""
    return config_templates() / "deploy" / "tritonserver.sh"
