"""What an evaluation begins with: its conversation, and the tools that belong to it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..content import ContentStore, to_content
from ..prompt.progressive_disclosure import disclosure_tool
from ..prompt.prompt import Prompt
from ..prompt.registry import RESERVED_TOOL_NAMES
from ..prompt.renderer import RenderedPrompt
from ..prompt.tool import AnyTool
from .adapter import LoopOptions
from .conversation import Conversation, begin, rendered_tools
from .inner_loop import InnerLoop, InnerLoopConfig

__all__ = [
    "earlier_conversation",
    "inner_loop",
    "opening",
    "render",
    "with_disclosure_tools",
    "with_provider_tools",
]


def earlier_conversation(options: LoopOptions) -> Conversation | None:
    """Returns the conversation that an evaluation goes on with, as it was before."""
    resumption = options.get("resume")
    return resumption.suspension.conversation if resumption else options.get("conversation")


def render[Out](
    prompt: Prompt[Out] | RenderedPrompt[Out], options: LoopOptions
) -> RenderedPrompt[Out]:
    """Renders the prompt as its conversation goes on; one that is rendered already stays."""
    if isinstance(prompt, RenderedPrompt):
        return prompt
    earlier = earlier_conversation(options)
    decisions = None if earlier is None else earlier.decisions_for(prompt)
    return prompt.render(
        session=options["session"], decisions=decisions, deadline=options.get("deadline")
    )


# Any: a prompt of any output
def opening(
    rendered: RenderedPrompt[Any], options: LoopOptions, store: ContentStore
) -> Conversation:
    """Returns the conversation that an evaluation begins with; `store` gets bytes of new media."""
    if (resumption := options.get("resume")) is not None:
        return resumption.suspension.conversation
    for media in rendered.media:
        store.put(media)
    tools, message = rendered_tools(rendered), options.get("message")
    earlier, content = options.get("conversation"), None if message is None else to_content(message)
    if earlier is None:
        return begin(rendered, tools, content).keeping_media(store)
    conversation = earlier.continued(rendered, tools, content, options.get("on_change", "append"))
    appended = conversation.messages[0] is earlier.messages[0]
    # the last message may have been one that the provider did not finish
    return conversation.keeping_media(store, len(earlier.messages) - 1 if appended else 0)


# Any: as above
def with_disclosure_tools(
    rendered: RenderedPrompt[Any], conversation: Conversation
) -> RenderedPrompt[Any]:
    """Returns the prompt with the disclosure tools that an earlier run of the conversation had."""
    names = RESERVED_TOOL_NAMES & conversation.available_tools.keys()
    names -= {tool.name for tool in rendered.tools}
    tools = [disclosure_tool(name, rendered.view) for name in sorted(names)]
    return replace(rendered, tools=(*rendered.tools, *tools)) if tools else rendered


# Any: as above
def with_provider_tools(
    rendered: RenderedPrompt[Any], tools: Sequence[AnyTool], options: LoopOptions
) -> RenderedPrompt[Any]:
    """Returns the prompt with the tools that the provider runs.

    Raises `ValueError` if some need approval and there is no approver: their calls cannot outlast
    the connection, so such a run cannot wait.
    """
    asking = [tool.name for tool in tools if tool.approval is not None]
    if asking and options.get("approver") is None:
        raise ValueError(
            f"the provider runs {asking}, which need approval, and their calls cannot wait in a "
            "suspended run; pass approver="
        )
    return replace(rendered, tools=(*rendered.tools, *tools)) if tools else rendered


# Any: as above
def inner_loop(
    rendered: RenderedPrompt[Any],
    conversation: Conversation,
    options: LoopOptions,
    config: InnerLoopConfig,
    model: str,
) -> InnerLoop:
    """Returns the inner loop of an evaluation by a `model`."""
    parent = options.get("parent")
    return InnerLoop(
        conversation=conversation,
        structured_output=rendered.structured_output,
        param_descriptions=rendered.tool_param_descriptions,
        max_request_tokens=options.get("max_request_tokens"),
        previous_turns=options.get("previous_turns", 0),
        content=options["session"].content,
        parent_meter=parent.meter if parent else None,
        config=config,
        model=model,
    )
