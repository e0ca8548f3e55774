"""The public names of `weakincentives.evaluation`."""

from ..citations import Citation
from ..locks import ConcurrentRunError
from .adapter import Connection, ProviderAdapter
from .approval import Approve, Approver, Change, Decision, Deny, Preview, ReplaceArguments
from .chat import Chat, TurnOptions
from .compaction import Compaction
from .config import InnerLoopConfig, RunConfig
from .conversation import Conversation
from .errors import (
    BudgetExceededError,
    ChangedRunError,
    DeadlineExceededError,
    ExpansionLimitError,
    LimitError,
    PromptEvaluationError,
    ThrottleError,
    TurnLimitError,
)
from .inner_loop import InnerLoop, ProviderRequest
from .loop_adapter import LoopAdapter
from .main_loop import MainLoop
from .messages import AssistantMessage, Instructions, Message, ToolCall, ToolMessage, UserMessage
from .response import (
    AnswerRejected,
    ApprovalRequested,
    Completed,
    Execution,
    OutputDelta,
    PromptResponse,
    ReasoningDelta,
    Restarted,
    StreamEvent,
    TextDelta,
    ToolCallFinished,
    ToolCallStarted,
)
from .run import Run
from .run_log import LogSink, RunLog
from .schemas import OutputSpec, ToolSpec
from .suspension import RunSuspended, Suspension
from .tool_executor import ToolExecutor

__all__ = [
    "AnswerRejected",
    "ApprovalRequested",
    "Approve",
    "Approver",
    "AssistantMessage",
    "BudgetExceededError",
    "Change",
    "ChangedRunError",
    "Chat",
    "Citation",
    "Compaction",
    "Completed",
    "ConcurrentRunError",
    "Connection",
    "Conversation",
    "DeadlineExceededError",
    "Decision",
    "Deny",
    "Execution",
    "ExpansionLimitError",
    "InnerLoop",
    "InnerLoopConfig",
    "Instructions",
    "LimitError",
    "LogSink",
    "LoopAdapter",
    "MainLoop",
    "Message",
    "OutputDelta",
    "OutputSpec",
    "Preview",
    "PromptEvaluationError",
    "PromptResponse",
    "ProviderAdapter",
    "ProviderRequest",
    "ReasoningDelta",
    "ReplaceArguments",
    "Restarted",
    "Run",
    "RunConfig",
    "RunLog",
    "RunSuspended",
    "StreamEvent",
    "Suspension",
    "TextDelta",
    "ThrottleError",
    "ToolCall",
    "ToolCallFinished",
    "ToolCallStarted",
    "ToolExecutor",
    "ToolMessage",
    "ToolSpec",
    "TurnLimitError",
    "TurnOptions",
    "UserMessage",
]
