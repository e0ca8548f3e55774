"""`wink eval-schema`: what a file of cases for a prompt may contain."""

from .printing import write_json
from .target import Target, load_prompt

__all__ = ["eval_schema"]


def eval_schema(target: Target) -> None:
    """Print the JSON Schema of case files, so that your editor can check them.

    Save the schema in FILE, and start each YAML file with `# yaml-language-server: $schema=FILE`.
    """
    from ..evals import case_schema

    write_json(case_schema(load_prompt(target)))
