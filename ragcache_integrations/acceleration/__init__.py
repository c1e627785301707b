"""What `accelerate` has in common for both frameworks: its rules, and its report."""

from ragcache_integrations.acceleration.arguments import AccelerateArguments, ReportTo
from ragcache_integrations.acceleration.functions import FUNCTIONS, objects_used_by
from ragcache_integrations.acceleration.made_models import MadeModels
from ragcache_integrations.acceleration.model_names import find_model_name, is_model_of
from ragcache_integrations.acceleration.report import (
    AccelerationReport,
    LeftPart,
    SwappedPart,
    log_report,
)
from ragcache_integrations.acceleration.stock_options import (
    CannotCarry,
    carry_options,
    rename_options,
    settle_temperature,
)
from ragcache_integrations.acceleration.task import (
    AccelerationTask,
    ModelChoice,
    Rules,
    describe_model,
)

__all__ = [
    "FUNCTIONS",
    "AccelerateArguments",
    "AccelerationReport",
    "AccelerationTask",
    "CannotCarry",
    "LeftPart",
    "MadeModels",
    "ModelChoice",
    "ReportTo",
    "Rules",
    "SwappedPart",
    "carry_options",
    "describe_model",
    "find_model_name",
    "is_model_of",
    "log_report",
    "objects_used_by",
    "rename_options",
    "settle_temperature",
]
