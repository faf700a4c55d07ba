from .configs import config_templates as config_templates
from .runtime.trt_build_runtime.operator_safety import findings as findings
from .runtime.trt_build_runtime.operator_safety import graph_findings as graph_findings
from .runtime.trt_build_runtime.operator_safety import reason as reason
