"""Approval for the CLI's own tools: the CLI asks before each call, and the inner loop decides.

By default, the CLI runs some calls, such as `ls`, without asking. A hook makes it ask about every
call, and the SDK's permission callback answers once the inner loop has decided.
"""

import json
from collections.abc import Mapping, Sequence

from ...prompt.approval_rules import Approval, ApprovalMode, approval_mode, check_approval
from ...prompt.context import ToolContext
from ...prompt.tool import JsonParams
from ...protocols import StateView
from ..codec import JsonObject
from .bridge import Bridge
from .turns import OUTPUT_TOOL, AnySDK

__all__ = ["approval_options", "check_builtin_approval", "selector"]

# SDK options that also decide which calls are allowed.
_DECIDING = "allowed_tools can_use_tool hooks permission_mode permission_prompt_tool_name"


def check_builtin_approval(
    approval: Mapping[str, Approval], builtin_tools: Sequence[str], options: Mapping[str, object]
) -> None:
    """Raises `ValueError` for tools not offered, for `"effects"`, and for conflicting `options`.

    Raises `PromptValidationError` for a value that is not an `Approval`.
    """
    if unknown := sorted(approval.keys() - set(builtin_tools)):
        raise ValueError(
            f"approval= must name built-in tools from {list(builtin_tools)}, got {unknown!r}"
        )
    for name, value in approval.items():
        check_approval(f"the built-in tool {name!r}", value)
        if value == "effects":
            raise ValueError(f"cannot preview the effects of {name!r}; use approval='arguments'")
    if approval and (names := sorted(options.keys() & _DECIDING.split())):
        raise ValueError(
            f"options {names!r} cannot be combined with approval=, because both decide on calls; "
            "remove one of them"
        )


def selector(approval: Approval | None) -> Approval | None:
    """Wraps a built-in tool's approval, so that selecting `"effects"` raises `TypeError`."""
    if not callable(approval):
        return approval

    def select(
        params: JsonParams, *, session: StateView, context: ToolContext
    ) -> ApprovalMode | None:
        mode = approval_mode(approval, params, session, context)
        if mode == "effects":
            raise TypeError("cannot preview the effects of a built-in tool; return 'arguments'")
        return mode

    return select


def approval_options(sdk: AnySDK, bridge: Bridge, names: Sequence[str]) -> JsonObject:
    """Returns SDK options that make calls to the built-in tools in `names` wait for approval.

    Subagents cannot call these tools, because the inner loop does not see a subagent's calls.
    """

    async def ask(call: JsonObject, *_: object) -> JsonObject:
        name = call["tool_name"]
        if name in names and call.get("agent_id"):
            return _deny(call, "Not available to subagents: a person has to approve it.")
        if name in names:
            return _hook(call, permissionDecision="ask")
        if name in bridge.builtin_names.values() or bridge.find_tool(name):
            return _hook(call, permissionDecision="allow")
        if name == OUTPUT_TOOL or name.startswith("mcp__"):
            return {}  # the CLI's own rules decide
        return _deny(call, "Not available.")  # for example, a tool's older name

    async def decide(name: str, _: JsonObject, context: AnySDK) -> object:
        if name not in names:
            return sdk.PermissionResultDeny(message="Not allowed.")
        decision = await bridge.decision(context.tool_use_id)
        if isinstance(decision, str):
            return sdk.PermissionResultDeny(message=decision)
        return sdk.PermissionResultAllow(updated_input=dict(decision))

    async def explain(call: JsonObject, *_: object) -> JsonObject:
        arguments = bridge.replacement(call["tool_use_id"])
        if arguments is None:
            return {}
        text = json.dumps(arguments, ensure_ascii=False)
        return _hook(call, additionalContext=f"The arguments were replaced by {text}")

    after = [sdk.HookMatcher(matcher="|".join(names), hooks=[explain])]
    return {
        "allowed_tools": [],  # with `can_use_tool`, the SDK warns if this is not empty
        "can_use_tool": decide,
        "hooks": {
            "PreToolUse": [sdk.HookMatcher(hooks=[ask], on_failure="block")],
            "PostToolUse": after,
            "PostToolUseFailure": after,
        },
    }


def _deny(call: JsonObject, reason: str) -> JsonObject:
    return _hook(call, permissionDecision="deny", permissionDecisionReason=reason)


def _hook(call: JsonObject, **output: str) -> JsonObject:
    return {"hookSpecificOutput": {"hookEventName": call["hook_event_name"], **output}}
