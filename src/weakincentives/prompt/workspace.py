"""The section that gives a prompt files: folders of the host copied in, or a filesystem of the
author's.

The disk is reached through `weakincentives.filesystem` alone, and not before the resource is asked
for.
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
Your files are in a workspace, which the file tools alone reach. Paths are relative to its root, such as `src/app.py`;
`.` is the root. An answer that would be too long comes in parts and says how to go on."""


@dataclass(frozen=True, slots=True)
class HostMount:
    """A folder of the host, whose files are copied to `mount_path` in the workspace.

    Files are copied if a glob of `include` matches their path below the folder and none of
    `exclude` does; folders that `exclude` matches are not entered. Links, hard ones too, and
    special files are left out. `max_bytes` bounds the sum of the sizes. Raises
    `PromptValidationError` for paths and globs that are none.
    """

    host_path: "StrPath"
    mount_path: str = field(default=".", kw_only=True)
    include: Sequence[str] = field(default=("**",), kw_only=True)
    exclude: Sequence[str] = field(default=("**/.git/**",), kw_only=True)
    max_bytes: int = field(default=50_000_000, kw_only=True)

    def __post_init__(self) -> None:
        assign = object.__setattr__
        assign(self, "mount_path", _normal("mount_path", (self.mount_path,))[0])
        assign(self, "include", _normal("include", self.include))
        assign(self, "exclude", _normal("exclude", self.exclude))

    def files(self) -> Iterator[tuple[str, bytes]]:
        """What is to be copied: paths in the workspace and contents. Raises as `HostFilesystem`
        does.
        """
        from ..filesystem import (
            FilesystemLimitError,
            FilesystemLimits,
            HostFilesystem,
            glob_matches,
        )

        left, pending = self.max_bytes, ["."]
        limits = FilesystemLimits(file_bytes=self.max_bytes)
        with closing(HostFilesystem(self.host_path, read_only=True, limits=limits)) as host:
            while pending:
                for found in host.list(pending.pop()):
                    if any(glob_matches(one, found.path) for one in self.exclude):
                        continue
                    if found.kind == "directory":
                        pending.append(found.path)
                    elif found.kind == "file" and any(
                        glob_matches(one, found.path) for one in self.include
                    ):
                        left -= found.size
                        if left < 0:
                            raise FilesystemLimitError(
                                f"{found.path!r} of {found.size:,} bytes makes it more than {self.max_bytes:,} bytes; "
                                f"exclude files or raise max_bytes"
                            )
                        place = (
                            found.path
                            if self.mount_path == "."
                            else f"{self.mount_path}/{found.path}"
                        )
                        yield place, host.read_bytes(found.path)


def _normal(name: str, paths: Sequence[str]) -> tuple[str, ...]:
    from ..filesystem.paths import FilesystemLimits, PathError, normal_path

    if isinstance(paths, str):
        raise PromptValidationError(
            f"{name} is the text {paths!r}; give a tuple of globs, ({paths!r},)"
        )
    try:
        return tuple(normal_path(one, FilesystemLimits()) for one in paths)
    except PathError as error:
        raise PromptValidationError(f"{name}: {error}") from error


class WorkspaceSection(Section[None]):
    """A section with file tools over a `Filesystem`, which it also contributes as a resource.

    Each prompt gets a copy of the `mounts` of its own, in memory and made when it is first asked
    for; without mounts it starts empty. A `filesystem` takes their place: one that prompts share
    and that stays open, or a function that makes one for each, such as `lambda:
    HostFilesystem("docs", read_only=True)`, which copies nothing. `read_only` leaves out the tools
    that write, and a copy then refuses to be changed. Raises `PromptValidationError` for mounts
    that cannot work, and for folders that cannot be copied when they are.
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
        """How to use the workspace, what is where, and what may be done with it."""
        contents = (
            "It is empty at first." if self.filesystem is None else "List `.` to see what it holds."
        )
        if self.mounts:
            places = ", ".join(f"`{mount.mount_path}`" for mount in self.mounts).replace("$", "$$")
            contents = f"It holds copies of the author's folders at {places}."
        access = (
            "You can read and change files."
            if self._writable
            else "You can read files, not change them."
        )
        return f"{_TEXT}\n\n{contents}\n\n{access}"

    def render_body(self, params: None, *, path: SectionPath) -> str:
        return substitute(self.body_text(), params, path)

    def tools(self) -> tuple[AnyTool, ...]:
        """The file tools, those that write unless it is read-only, and the tools that were given."""
        from .workspace_tools import READING_TOOLS, WRITING_TOOLS

        return (*READING_TOOLS, *(WRITING_TOOLS if self._writable else ()), *super().tools())

    def resources(self) -> ResourceRegistry:
        """The `Filesystem` that the tools use."""
        from ..filesystem import Filesystem

        given = self.filesystem
        if given is None:
            return ResourceRegistry.of(Binding(Filesystem, self._copy))
        if callable(given):
            return ResourceRegistry.of(Binding(Filesystem, lambda _: given()))
        return ResourceRegistry.of(Binding.instance(Filesystem, given))

    def _copy(self, _: Resources) -> "Filesystem":
        from ..filesystem import FilesystemLimits, InMemoryFilesystem

        files: dict[str, bytes] = {}
        for mount in self.mounts:
            try:
                for path, data in mount.files():
                    if path in files:
                        raise FileExistsError(
                            f"another mount has {path!r} too; exclude it from one of them"
                        )
                    files[path] = data
            except (OSError, WeakIncentivesError) as error:
                raise self._refusal(
                    f"mount {str(mount.host_path)!r} cannot be copied: {error}"
                ) from error
        largest = max(map(len, files.values()), default=0)
        limits = FilesystemLimits(file_bytes=max(largest, FilesystemLimits().file_bytes))
        try:
            return InMemoryFilesystem(files, read_only=self.read_only, limits=limits)
        except OSError as error:
            raise self._refusal(f"the mounts do not fit into one tree: {error}") from error

    def _compile(self) -> None:
        self.mounts, given = tuple(self.mounts), self.filesystem
        for at, mount in enumerate(self.mounts):
            if not isinstance(mount, HostMount):
                raise self._refusal(
                    f"mounts holds {mount!r}, which is no HostMount; write HostMount({mount!r})"
                )
            if any(mount.mount_path == other.mount_path for other in self.mounts[:at]):
                raise self._refusal(
                    f"two mounts are at {mount.mount_path!r}; give each a mount_path of its own"
                )
        if self.mounts and given is not None:
            raise self._refusal(
                "mounts are copied and a filesystem is used as it is; give one of the two"
            )
        # a path; os is not for prompts to import
        if isinstance(given, str) or hasattr(given, "__fspath__"):
            path = str(given)
            raise self._refusal(
                f"filesystem is the path {path!r}; write filesystem=lambda: HostFilesystem({path!r})"
            )
        self._writable = not (self.read_only or getattr(given, "read_only", False))
        super()._compile()
