"""Which source and key a file has, and which files are found, on folders made here."""

import os
from pathlib import Path
from typing import Any

import pytest
from ingested import load, unreadable, write

from second_brain.errors import ConfigurationError
from second_brain.ingest import KnowledgeSource, UnreadDocument, find_files


def repository(folder: Path, remote: str | None = None) -> Path:
    """Make what git leaves of a repository, with a remote or without."""
    config = '[core]\n\tbare = false\n[remote "upstream"]\n\turl = elsewhere:x/y\n'
    if remote is not None:
        config += f'[remote "origin"]\n\tfetch = +refs/*\n\turl = {remote}\n[branch "main"]\n'
    write(folder / ".git" / "config", config if remote is not None else "[core]\n")
    return folder


def keys(*paths: Path, **options: Any) -> list[str]:
    return [one.external_key for one in find_files(paths, **options).documents]


def fill(folder: Path, names: str) -> Path:
    for name in names.split():
        write(folder / name)
    return folder


def test_folders_give_known_files_once_and_nothing_hidden(tmp_path: Path) -> None:
    fill(tmp_path, "b.md a.TXT sub/c.rst .git.d/d.md .e.md ~$g.docx node_modules/f.md")
    found = find_files([tmp_path, tmp_path / "b.md"], source="s").documents
    assert [one.external_key for one in found] == ["s:a.TXT", "s:b.md", "s:sub/c.rst"]
    path = {"path": "sub/c.rst", "document_type": "rst", "source_file": "c.rst"}
    assert found[2].load().metadata == path


def test_a_key_is_the_same_from_every_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = fill(repository(tmp_path / "project"), "docs/a.md")
    found: set[str] = set()
    for place, path in ((tmp_path, "project"), (project, "docs"), (project / "docs", "a.md")):
        monkeypatch.chdir(place)
        found.update(keys(Path(path)), keys(place / path / ".." / Path(path).name))
    assert found == {"project:docs/a.md"}


REMOTES = """
    git@example.org:team/handbook.git https://user:secret@example.org/team/handbook.git
    https://example.org/team/handbook/ ssh://git@example.org:2222/team/handbook.git
"""


@pytest.mark.parametrize("remote", REMOTES.split())
def test_a_repository_is_named_by_its_remote(tmp_path: Path, remote: str) -> None:
    found = find_files([fill(repository(tmp_path / "clone", remote), "a.md")])
    assert found.sources == [KnowledgeSource("handbook", "example.org/team/handbook")]
    assert [one.external_key for one in found.documents] == ["handbook:a.md"]
    assert found.folders == [(found.sources[0], "handbook:")]


def test_a_worktree_is_the_repository_that_it_belongs_to(tmp_path: Path) -> None:
    git = repository(tmp_path / "clone", "https://example.org/team/handbook") / ".git"
    write(git / "worktrees" / "new" / "commondir", "../..\n")
    write(tmp_path / "new" / ".git", f"gitdir: {git}/worktrees/new\n")
    fill(tmp_path, "new/docs/a.md")
    assert keys(tmp_path / "new" / "docs") == ["handbook:docs/a.md"]


def test_two_repositories_with_the_same_folders_have_different_keys(tmp_path: Path) -> None:
    paths = [fill(repository(tmp_path / name), "docs/a.md") / "docs" for name in ("one", "two")]
    assert keys(*paths) == ["one:docs/a.md", "two:docs/a.md"]
    with pytest.raises(ConfigurationError, match="several places"):
        keys(*paths, source="both")
    both = keys(*paths, source="both", base=tmp_path)
    assert both == ["both:one/docs/a.md", "both:two/docs/a.md"]


def test_other_paths_do_not_change_a_key(tmp_path: Path) -> None:
    fill(tmp_path, "docs/sub/a.md README.md")
    docs = tmp_path / "docs"
    assert keys(docs) == keys(docs, docs / "sub") == ["docs:sub/a.md"]
    assert "docs:sub/a.md" in keys(docs, tmp_path / "README.md")


def test_a_base_names_the_source_and_holds_every_path(tmp_path: Path) -> None:
    base = fill(tmp_path, "x/docs/a.md") / "x"
    assert keys(base / "docs", base=base) == ["x:docs/a.md"]
    with pytest.raises(ConfigurationError, match="not in the base folder"):
        keys(tmp_path, base=base)


def test_excluded_names_and_paths_are_left_out(tmp_path: Path) -> None:
    fill(tmp_path, "a.md a.draft.md old/b.md sub/old/c.md sub/d.md")
    excluded = ["*.draft.md", "sub/old/"]
    assert keys(tmp_path, source="s", exclude=excluded) == ["s:a.md", "s:old/b.md", "s:sub/d.md"]
    found = find_files([tmp_path], source="s", exclude=excluded)
    assert found.excluded == {"s:a.draft.md", "s:sub/old"}
    rest = keys(tmp_path, source="s", exclude=["old"])
    assert rest == ["s:a.draft.md", "s:a.md", "s:sub/d.md"]


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A file outside the folder `docs`, with links to it and to its folder inside."""
    docs = tmp_path / "docs"
    write(docs / "a.md")
    secret = write(tmp_path / "outside" / "secret.md", "secret")
    (docs / "link.md").symlink_to(secret)
    (docs / "folder").symlink_to(secret.parent)
    (docs / "inside.md").symlink_to(docs / "a.md")
    return secret


def found_in(folder: Path, **options: Any) -> dict[str, UnreadDocument]:
    return {one.external_key: one for one in find_files([folder], **options).documents}


def test_links_out_of_the_folder_are_refused(tmp_path: Path, secret: Path) -> None:
    found = found_in(tmp_path / "docs")
    assert [*found] == ["docs:a.md", "docs:folder", "docs:inside.md", "docs:link.md"]
    for key in ("docs:folder", "docs:link.md"):
        with unreadable("leads out of") as refused:
            found[key].load()
        assert "--follow-symlinks" in refused.value.remedy
    assert found["docs:inside.md"].load().text == "text"
    with unreadable("leads out of"):
        load(tmp_path / "docs" / "link.md")


def test_links_are_followed_when_asked_for(tmp_path: Path, secret: Path) -> None:
    found = found_in(tmp_path / "docs", follow_symlinks=True)
    assert [*found] == ["docs:a.md", "docs:folder/secret.md", "docs:inside.md", "docs:link.md"]
    linked = [found[f"docs:{name}.md"].load().text for name in ("folder/secret", "link")]
    assert linked == ["secret", "secret"]


def test_a_folder_that_leads_out_of_its_repository_is_refused(tmp_path: Path) -> None:
    fill(tmp_path, "outside/a.md")
    link = repository(tmp_path / "project") / "docs"
    link.symlink_to(tmp_path / "outside")
    with pytest.raises(ConfigurationError, match="leads out of"):
        keys(link)
    assert keys(link, follow_symlinks=True) == ["outside:a.md"]


@pytest.mark.parametrize("follow_symlinks", [False, True])
def test_loops_of_links_end(tmp_path: Path, follow_symlinks: bool) -> None:
    docs = fill(tmp_path, "docs/sub/a.md other/b.md") / "docs"
    (docs / "sub" / "loop").symlink_to(docs)
    (docs / "up").symlink_to(tmp_path)
    (docs / "self.md").symlink_to("self.md")
    found = found_in(docs, follow_symlinks=follow_symlinks)
    assert "docs:sub/a.md" in found
    assert ("docs:up/other/b.md" in found) is follow_symlinks
    with unreadable("is not there|cannot be"):
        found["docs:self.md"].load()


def test_a_named_file_of_unknown_kind_is_read_as_text(tmp_path: Path) -> None:
    assert load(write(tmp_path / "LICENSE", "# Permission")).text == "# Permission"


def test_a_dead_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.md").symlink_to(tmp_path / "gone.md")
    with unreadable("is not there"):
        load(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root can list every folder")
def test_a_folder_that_cannot_be_listed_is_reported(tmp_path: Path) -> None:
    write(tmp_path / "locked" / "a.md")
    (tmp_path / "locked").chmod(0)
    (document,) = find_files([tmp_path]).documents
    (tmp_path / "locked").chmod(0o700)
    with unreadable("cannot be listed"):
        document.load()
