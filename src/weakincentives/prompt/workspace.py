"""`WorkspaceSection` gives a prompt files: copies of host folders, or the author's filesystem.

The section accesses the disk only through `weakincentives.filesystem`, when a tool first needs the
files. Importing that package takes as long as importing all of `weakincentives.prompt`, so it is
imported inside functions.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Unpack

from ..errors import WeakIncentivesError
from ..protocols import Resources
from ..resources import Binding, ResourceRegistry
from ..visibility import SectionPath
from .errors import PromptValidationError
from .sections import Section, substitute
from .tool import AnyTool

if TYPE_CHECKING:
    from _typeshed import StrPath

    from ..filesystem import Filesystem
    from .sections import SectionArguments

__all__ = ["HostMount", "WorkspaceSection"]

_TEXT = """\
Your files are in a workspace, which the file tools alone reach. Paths are relative to its root, \
such as `src/app.py`;
`.` is the root. An answer that would be too long comes in parts and says how to go on."""


@dataclass(frozen=True, slots=True)
class HostMount:
    """A host folder whose files the workspace copies to `mount_path`.

    A file is copied if its path below the folder matches a glob in `include` and none in `exclude`;
    folders that match `exclude` are not entered. Special files and links, including hard links, are
    skipped. `max_bytes` limits the total size. Raises `PromptValidationError` for invalid paths and
    globs.
    """

    host_path: "StrPath"
    mount_path: str = field(default=".", kw_only=True)
    include: Sequence[str] = field(default=("**",), kw_only=True)
    exclude: Sequence[str] = field(default=("**/.git/**",), kw_only=True)
    max_bytes: int = field(default=50_000_000, kw_only=True)

    def __post_init__(self) -> None:
        assign = object.__setattr__
        assign(self, "mount_path", _normal_paths("mount_path", (self.mount_path,))[0])
        assign(self, "include", _normal_paths("include", self.include))
        assign(self, "exclude", _normal_paths("exclude", self.exclude))

    def files(self) -> Iterator[tuple[str, bytes]]:
        """Yields workspace paths with contents; raises the same errors as `HostFilesystem`."""
        from ..filesystem import FilesystemLimitError, FilesystemLimits, HostFilesystem

        prefix = "" if self.mount_path == "." else f"{self.mount_path}/"
        bytes_left, folders = self.max_bytes, ["."]
        limits = FilesystemLimits(file_bytes=self.max_bytes)
        with closing(HostFilesystem(self.host_path, read_only=True, limits=limits)) as host:
            while folders:
                for entry in host.list(folders.pop()):
                    path = entry.path
                    if _matches_any(self.exclude, path):
                        continue
                    if entry.kind == "directory":
                        folders.append(path)
                    elif entry.kind == "file" and _matches_any(self.include, path):
                        bytes_left -= entry.size
                        if bytes_left < 0:
                            raise FilesystemLimitError(
                                f"cannot copy {path!r} of {entry.size:,} bytes: the copies would "
                                f"have more than {self.max_bytes:,} bytes; exclude files or raise "
                                "max_bytes"
                            )
                        yield prefix + path, host.read_bytes(path)


def _matches_any(globs: Sequence[str], path: str) -> bool:
    from ..filesystem import glob_matches

    return any(glob_matches(glob, path) for glob in globs)


def _normal_paths(name: str, paths: Sequence[str]) -> tuple[str, ...]:
    from ..filesystem.paths import FilesystemLimits, PathError, normal_path

    if isinstance(paths, str):
        raise PromptValidationError(
            f"{name} must be a tuple of globs, such as ({paths!r},), got a string"
        )
    try:
        return tuple(normal_path(path, FilesystemLimits()) for path in paths)
    except PathError as error:
        raise PromptValidationError(f"{name}: {error}") from error


class WorkspaceSection(Section[None]):
    """A section with file tools for a `Filesystem`, which it also contributes as a resource.

    Each prompt gets its own in-memory copy of the `mounts`, created when a tool first needs it;
    without mounts, the workspace starts empty. Instead of mounts, you can pass a `filesystem`:
    either one that prompts share and that stays open, or a function that creates one for each
    prompt. For example, `lambda: HostFilesystem("docs", read_only=True)` does not copy any files.
    `read_only` omits the tools that write, and makes the copy reject changes. Raises
    `PromptValidationError` for invalid mounts, and if a folder cannot be copied.
    """

    def __init__(
        self,
        *,
        title: str = "Workspace",
        mounts: Iterable[HostMount] = (),
        filesystem: "Filesystem | Callable[[], Filesystem] | None" = None,
        read_only: bool = False,
        **others: "Unpack[SectionArguments[None]]",
    ) -> None:
        self.mounts, self.filesystem, self.read_only = tuple(mounts), filesystem, read_only
        super().__init__(title=title, **others)

    def body_text(self) -> str:
        """Explains the workspace: the mounts, and whether the model may change files."""
        if self.mounts:
            places = ", ".join(f"`{mount.mount_path}`" for mount in self.mounts).replace("$", "$$")
            contents = f"It holds copies of the author's folders at {places}."
        elif self.filesystem is None:
            contents = "It is empty at first."
        else:
            contents = "List `.` to see what it holds."
        access = "read and change files." if self._writable else "read files, not change them."
        return f"{_TEXT}\n\n{contents}\n\nYou can {access}"

    def render_body(self, params: None, *, path: SectionPath) -> str:
        return substitute(self.body_text(), params, path)

    def tools(self) -> tuple[AnyTool, ...]:
        """The file tools (if read-only, only those that read) and the author's own tools."""
        from .workspace_tools import READING_TOOLS, WRITING_TOOLS

        return (*READING_TOOLS, *(WRITING_TOOLS if self._writable else ()), *super().tools())

    def resources(self) -> ResourceRegistry:
        """Binds the `Filesystem` that the tools use."""
        from ..filesystem import Filesystem

        filesystem = self.filesystem
        if filesystem is None:
            return ResourceRegistry.of(Binding(Filesystem, self._copy))
        if callable(filesystem):
            return ResourceRegistry.of(Binding(Filesystem, lambda _: filesystem()))
        return ResourceRegistry.of(Binding.instance(Filesystem, filesystem))

    def _copy(self, _: Resources) -> "Filesystem":
        from ..filesystem import FilesystemLimits, InMemoryFilesystem

        files: dict[str, bytes] = {}
        for mount in self.mounts:
            try:
                for path, data in mount.files():
                    if path in files:
                        raise FileExistsError(
                            f"another mount also has {path!r}; exclude it from one of them"
                        )
                    files[path] = data
            except (OSError, WeakIncentivesError) as error:
                problem = f"mount {str(mount.host_path)!r} cannot be copied: {error}"
                raise self._refusal(problem) from error
        largest = max(map(len, files.values()), default=0)
        limits = FilesystemLimits(file_bytes=max(largest, FilesystemLimits().file_bytes))
        try:
            return InMemoryFilesystem(files, read_only=self.read_only, limits=limits)
        except OSError as error:
            raise self._refusal(f"cannot combine the mounts into one tree: {error}") from error

    def _compile(self) -> None:
        self.mounts, filesystem = tuple(self.mounts), self.filesystem
        places: set[str] = set()
        for mount in self.mounts:
            if not isinstance(mount, HostMount):
                raise self._refusal(
                    f"mounts must contain HostMount objects, got {mount!r}; write "
                    f"HostMount({mount!r})"
                )
            if mount.mount_path in places:
                raise self._refusal(
                    f"two mounts have the mount_path {mount.mount_path!r}; change one of them"
                )
            places.add(mount.mount_path)
        if self.mounts and filesystem is not None:
            raise self._refusal(
                "pass either mounts= (copied into memory) or filesystem= (used directly), not both"
            )
        # a path; prompts must not import `os`, which defines the type
        if isinstance(filesystem, str) or hasattr(filesystem, "__fspath__"):
            path = str(filesystem)
            raise self._refusal(
                "filesystem must be a filesystem or a function that returns one, got the path "
                f"{path!r}; write filesystem=lambda: HostFilesystem({path!r})"
            )
        self._writable = not (self.read_only or getattr(filesystem, "read_only", False))
        super()._compile()
