"""What a `MainLoop` takes and returns: the options of an execution, and its result."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from ..displays import markdown
from ..limits import TokenUsage
from ..visibility import SectionPath, SectionVisibility
from .adapter import ConversationOptions, ProviderAdapter
from .conversation import Conversation
from .errors import LimitError
from .response import PromptResponse

__all__ = ["Execution", "ExecutionOptions", "Expansion", "ExpansionLimitError"]


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


class ExecutionOptions(ConversationOptions, total=False):
    """The arguments of `MainLoop.execute` beside the prompt.

    `adapter` replaces the loop's own. `visibility_overrides` hold in all evaluations. `save` is
    called with the conversation when the run ends, however it ends.
    """

    adapter: ProviderAdapter | None
    visibility_overrides: Mapping[SectionPath, SectionVisibility] | None
    save: Callable[[Conversation], object] | None
