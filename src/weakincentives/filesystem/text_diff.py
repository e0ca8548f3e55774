"""The difference of two contents of a file as text, which previews and events show."""

from difflib import unified_diff

from ..displays import visible

__all__ = ["text_diff"]


def text_diff(
    before: bytes | None, after: bytes | None, names: tuple[str, str], max_bytes: int
) -> str | None:
    """Returns a unified diff with `names` in its head, empty for equal lines; `None` means no file.

    Returns `None` if a content has more than `max_bytes` or is not UTF-8 text: comparing takes more
    than linear time.
    """
    contents = [content or b"" for content in (before, after)]
    if max(map(len, contents)) > max_bytes or any(b"\0" in content for content in contents):
        return None
    try:
        old, new = [_lines_of(content.decode()) for content in contents]
    except UnicodeDecodeError:
        return None
    old_name, new_name = map(visible, names)  # a line break in it would begin a line of the diff
    return "".join(unified_diff(old, new, old_name, new_name))


def _lines_of(text: str) -> list[str]:
    """Returns lines with their ends, and a note after a last line that has none, as `diff` does."""
    lines = [f"{line}\n" for line in text.split("\n")]
    last = lines.pop()
    return lines if last == "\n" else [*lines, f"{last}\\ No newline at end of file\n"]
