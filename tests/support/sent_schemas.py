"""The schemas of tools and outputs as OpenAI's APIs and Anthropic's receive them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from weakincentives.adapters.anthropic.strict_schemas import ANTHROPIC
from weakincentives.adapters.schema_dialects import OPENAI, encode_function, encode_output
from weakincentives.evaluation.schemas import OutputSpec, ToolSpec, output_to_spec, tool_to_spec
from weakincentives.prompt.output import StructuredOutputConfig
from weakincentives.prompt.tool import AnyTool
from weakincentives.serde import JsonSchema

__all__ = ["ANTHROPIC", "OPENAI", "Sent", "sent_output", "sent_spec", "sent_tool"]


@dataclass(frozen=True)
class Sent:
    """The schema that OpenAI receives, and the plain schema that is stored."""

    name: str
    parameters: JsonSchema
    strict: bool
    plain: JsonSchema


def sent_spec(spec: ToolSpec | OutputSpec) -> Sent:
    if isinstance(spec, ToolSpec):
        body = encode_function(spec, OPENAI)
        return Sent(spec.name, body["parameters"], body["strict"], spec.parameters)
    body = encode_output(spec, OPENAI)
    return Sent(spec.name, body["schema"], body["strict"], spec.schema)


def sent_tool(tool: AnyTool, descriptions: Mapping[str, str] | None = None) -> Sent:
    return sent_spec(tool_to_spec(tool, descriptions))


# Any: output of any type
def sent_output(config: StructuredOutputConfig[Any]) -> Sent:
    return sent_spec(output_to_spec(config))
