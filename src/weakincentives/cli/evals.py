"""`wink eval-schema`: what a file of cases for a prompt may contain."""

from .printing import write_json
from .target import Target, load_prompt

__all__ = ["eval_schema"]


def eval_schema(target: Target) -> None:
    """Print the JSON Schema of a file of cases, with which editors check it.

    Save it, and begin a YAML file with `# yaml-language-server: $schema=` and its name.
    """
    from ..evals import case_schema

    write_json(case_schema(load_prompt(target)))
