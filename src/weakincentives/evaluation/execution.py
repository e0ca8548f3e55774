"""What a `MainLoop` takes and returns: the options of an execution, and its result."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from ..displays import markdown
from ..limits import RunUsage, TokenUsage
from ..runs import Run
from ..visibility import SectionPath, SectionVisibility
from .adapter import ConversationOptions, ProviderAdapter
from .approval import Decision
from .call_history import CallHistory
from .conversation import Conversation
from .errors import LimitError
from .response import PromptResponse, Restarted
from .suspension import RunSuspended, Suspension

__all__ = [
    "Execution",
    "ExecutionOptions",
    "Expansion",
    "ExpansionLimitError",
    "RunOptions",
    "add_run",
    "options_of",
]


class ExpansionLimitError(LimitError):
    """The model requested sections more often than `max_expansions` allows."""


@dataclass(frozen=True, slots=True)
class Expansion:
    """Sections that a new evaluation opened, and the model's reason."""

    section_keys: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution[Out]:
    """The final response, the sections opened on the way, and the tokens of the whole run."""

    response: PromptResponse[Out]
    expansions: tuple[Expansion, ...]
    usage: TokenUsage

    def __repr__(self) -> str:
        tokens = self.usage.total_tokens
        return f"<Execution restarts={self.restarts} tokens={tokens} response={self.response!r}>"

    def _repr_markdown_(self) -> str:
        """Shows the final answer in a notebook."""
        return markdown(self.response)

    @property
    def restarts(self) -> int:
        """The number of evaluations after the first."""
        return len(self.expansions)

    @property
    def output(self) -> Out:
        """The typed answer of the final response."""
        return self.response.output

    @property
    def text(self) -> str:
        """The text of the final response."""
        return self.response.text

    @property
    def conversation(self) -> Conversation | None:
        """The conversation, to go on with."""
        return self.response.conversation

    @property
    def whole_response(self) -> PromptResponse[Out]:
        """The final response with the tokens of the whole run."""
        return replace(self.response, usage=self.usage)


class RunOptions(ConversationOptions, total=False):
    """The arguments of `MainLoop.resume` beside the prompt and the decisions.

    `adapter` replaces the loop's own. `visibility_overrides` hold in all evaluations. `save` is
    called with the conversation when the run ends, unless it is suspended. `caller` is the run that
    has reserved the session for this one, such as the turn of a chat.
    """

    adapter: ProviderAdapter | None
    visibility_overrides: Mapping[SectionPath, SectionVisibility] | None
    save: Callable[[Conversation], object] | None
    caller: Run | None


class ExecutionOptions(RunOptions, total=False):
    """The arguments of `MainLoop.execute` beside the prompt.

    A suspended run goes on from its `suspension` with `decisions` by call id, as `MainLoop.resume`
    says.
    """

    suspension: Suspension | None
    decisions: Mapping[str, Decision] | None


def options_of(suspension: Suspension, options: ExecutionOptions) -> ExecutionOptions:
    """Returns the options with which the suspended run began.

    Raises `TypeError` for what is no suspension and `ValueError` for options of a new run.
    """
    if not isinstance(suspension, Suspension):
        raise TypeError(f"suspension is {suspension!r:.200}; pass RunSuspended.suspension")
    for name in ("message", "conversation"):
        if options.get(name) is not None:
            raise ValueError(f"{name}= goes with a new run; the suspension has the run's own")
    return {
        **options,
        "message": suspension.message,
        "conversation": suspension.start,
        "on_change": suspension.on_change,
    }


def add_run(
    waiting: RunSuspended,
    spent_before: RunUsage,
    turns_before: int,
    expansions: Sequence[Expansion],
    history: CallHistory | None,
) -> RunSuspended:
    """Returns the error with what its run knows of the evaluations before."""
    suspension = replace(
        waiting.suspension,
        spent_before=spent_before,
        turns_before=turns_before,
        restarts=tuple([Restarted(item.section_keys, item.reason) for item in expansions]),
        calls=history.recorded() if history else (),
    )
    return RunSuspended(suspension, waiting.remedy)
