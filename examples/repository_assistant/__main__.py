"""`python -m examples.repository_assistant [PATH]`: updates a repository's changelog."""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from examples.common.command import command_line, run
from examples.common.watch import Watch
from weakincentives import Session, serde

from .offline import offline
from .prompt import Repository, assistant
from .sample import make_sample


def main(arguments: list[str] | None = None) -> int:
    """Updates one repository; returns 1 if the provider fails, otherwise 0."""
    parser = command_line("repository_assistant", __doc__)
    parser.add_argument(
        "path", nargs="?", type=Path, help="a Git repository; by default a new sample"
    )
    options = parser.parse_args(arguments)
    with TemporaryDirectory() as place:
        repository = (options.path or make_sample(Path(place, "sample"))).resolve()
        if not (repository / ".git").is_dir():
            parser.error(f"{str(repository)!r} is not a Git repository")
        console, session = Console(quiet=options.json, highlight=False), Session()
        Watch(console, state=lambda: _files(repository)).attach(session.bus)
        release = run(
            assistant(repository).bind(Repository(str(repository))),
            session=session,
            options=options,
            console=console,
            task=f"Updating the changelog of {repository.name}",
            offline=offline(repository),
        )
    if release is None:
        return 1
    if options.json:
        sys.stdout.write(serde.dump_json(release) + "\n")
    console.print(*release.entries, release.commit, sep="\n", markup=False)
    return 0


def _files(repository: Path) -> str:
    """Returns the content of all files, including Git's own."""
    paths = sorted(path for path in repository.rglob("*") if path.is_file())
    return "\n".join(f"{path}: {path.read_bytes()!r}" for path in paths)


if __name__ == "__main__":
    sys.exit(main())
