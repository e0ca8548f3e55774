"""The text difference between two versions of a file, for previews and events."""

from difflib import unified_diff

from ..displays import visible

__all__ = ["text_diff"]


def text_diff(
    before: bytes | None, after: bytes | None, names: tuple[str, str], max_bytes: int
) -> str | None:
    """Returns a unified diff with `names` in its header; it is empty if all lines are equal.

    `None` as content means that the file does not exist. Returns `None` if a content is not UTF-8
    text or has more than `max_bytes`, because comparing takes more than linear time.
    """
    contents = [content or b"" for content in (before, after)]
    if max(map(len, contents)) > max_bytes or any(b"\0" in content for content in contents):
        return None
    try:
        old, new = [_lines_of(content.decode()) for content in contents]
    except UnicodeDecodeError:
        return None
    old_name, new_name = map(visible, names)  # a line break would start a diff line
    return "".join(unified_diff(old, new, old_name, new_name))


def _lines_of(text: str) -> list[str]:
    """Returns lines with their line endings; like `diff`, notes if the last line has none."""
    lines = [f"{line}\n" for line in text.split("\n")]
    last = lines.pop()
    return lines if last == "\n" else [*lines, f"{last}\\ No newline at end of file\n"]
