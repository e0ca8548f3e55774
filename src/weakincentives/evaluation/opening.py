"""The conversation with which an evaluation begins, and the tools that belong to it."""

from dataclasses import replace
from typing import Any

from ..content import ContentStore, to_content
from ..prompt.progressive_disclosure import disclosure_tool
from ..prompt.registry import RESERVED_TOOL_NAMES
from ..prompt.renderer import RenderedPrompt
from .adapter import LoopOptions
from .conversation import Conversation, begin, rendered_tools

__all__ = ["opening", "with_disclosure_tools"]


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
