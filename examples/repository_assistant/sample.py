"""A small repository with an outdated changelog, and a hook that checks commit messages."""

from pathlib import Path

from git import Repo

__all__ = ["make_sample"]

_HOOK = """\
#!/bin/sh
echo "checked: $(head -1 "$1")" >> hook.log
grep -Eq '^(docs|feat|fix): ' "$1" || {
    echo "The message must begin with docs:, feat: or fix:" >&2; exit 1; }
"""
_COMMITS = {
    "shop.py": "feat: Orders have a total",
    "prices.py": "fix: Prices are rounded to the cent",
    "vat.py": "feat: Taxes differ by country",
}


def make_sample(folder: Path) -> Path:
    """Creates a Git repository in `folder`, which must not exist yet, and returns its path."""
    with Repo.init(folder, initial_branch="main") as repository:
        with repository.config_writer() as config:
            config.set_value("user", "name", "Example")
            config.set_value("user", "email", "example@example.com")
        (folder / ".gitignore").write_text("hook.log\n")
        (folder / "CHANGELOG.md").write_text("# Changes\n\n- feat: Orders have a total\n")
        for file, subject in _COMMITS.items():
            (folder / file).write_text(f'"""{subject}."""\n')
            repository.git.add(".")
            repository.index.commit(subject)
    hook = folder / ".git/hooks/commit-msg"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(_HOOK)
    hook.chmod(0o755)
    return folder
