"""Which source and key a file has, and which files are found, on folders made here."""

import os
from pathlib import Path

import pytest
from ingested import load, unreadable, write

from second_brain.errors import ConfigurationError
from second_brain.ingest import FoundFiles, KnowledgeSource, find_files


def repository(folder: Path, remote: str | None = None) -> Path:
    """Make what git leaves of a repository, with a remote or without."""
    config = '[core]\n\tbare = false\n[remote "upstream"]\n\turl = elsewhere:x/y\n'
    if remote is not None:
        config += f'[remote "origin"]\n\tfetch = +refs/*\n\turl = {remote}\n[branch "main"]\n'
    write(folder / ".git" / "config", config if remote is not None else "[core]\n")
    return folder


def keys(found: FoundFiles) -> list[str]:
    return [document.external_key for document in found.documents]


def test_folders_give_known_files_once_and_nothing_hidden(tmp_path: Path) -> None:
    hidden = (".git.d/d.md", ".e.md", "~$g.docx", "node_modules/f.md")
    for name in ("b.md", "a.TXT", "sub/c.rst", *hidden):
        write(tmp_path / name)
    found = find_files([tmp_path, tmp_path / "b.md"], source="s")
    assert keys(found) == ["s:a.TXT", "s:b.md", "s:sub/c.rst"]
    path = {"path": "sub/c.rst", "document_type": "rst", "source_file": "c.rst"}
    assert found.documents[2].load().metadata == path


def test_a_key_is_the_same_from_every_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = repository(tmp_path / "project")
    write(project / "docs" / "a.md")
    found = set()
    for place, path in ((tmp_path, "project"), (project, "docs"), (project / "docs", "a.md")):
        monkeypatch.chdir(place)
        found.update(keys(find_files([Path(path)])))
        found.update(keys(find_files([place / path / ".." / Path(path).name])))
    assert found == {"project:docs/a.md"}


REMOTES = """
    git@example.org:team/handbook.git https://user:secret@example.org/team/handbook.git
    https://example.org/team/handbook/ ssh://git@example.org:2222/team/handbook.git
"""


@pytest.mark.parametrize("remote", REMOTES.split())
def test_a_repository_is_named_by_its_remote(tmp_path: Path, remote: str) -> None:
    write(repository(tmp_path / "clone", remote) / "a.md")
    found = find_files([tmp_path / "clone"])
    assert found.sources == [KnowledgeSource("handbook", "example.org/team/handbook")]
    assert keys(found) == ["handbook:a.md"]
    assert found.folders == [(found.sources[0], "handbook:")]


def test_a_worktree_is_the_repository_that_it_belongs_to(tmp_path: Path) -> None:
    git = repository(tmp_path / "clone", "https://example.org/team/handbook") / ".git"
    write(git / "worktrees" / "new" / "commondir", "../..\n")
    write(tmp_path / "new" / ".git", f"gitdir: {git}/worktrees/new\n")
    write(tmp_path / "new" / "docs" / "a.md")
    assert keys(find_files([tmp_path / "new" / "docs"])) == ["handbook:docs/a.md"]


def test_two_repositories_with_the_same_folders_have_different_keys(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write(repository(tmp_path / name) / "docs" / "a.md")
    paths = [tmp_path / "one" / "docs", tmp_path / "two" / "docs"]
    assert keys(find_files(paths)) == ["one:docs/a.md", "two:docs/a.md"]
    with pytest.raises(ConfigurationError, match="several places"):
        find_files(paths, source="both")
    assert keys(find_files(paths, source="both", base=tmp_path)) == [
        "both:one/docs/a.md",
        "both:two/docs/a.md",
    ]


def test_other_paths_do_not_change_a_key(tmp_path: Path) -> None:
    docs, inner = tmp_path / "docs", tmp_path / "docs" / "sub"
    write(inner / "a.md")
    readme = write(tmp_path / "README.md")
    assert keys(find_files([docs])) == keys(find_files([docs, inner])) == ["docs:sub/a.md"]
    assert "docs:sub/a.md" in keys(find_files([docs, readme]))


def test_a_base_names_the_source_and_holds_every_path(tmp_path: Path) -> None:
    write(tmp_path / "x" / "docs" / "a.md")
    assert keys(find_files([tmp_path / "x" / "docs"], base=tmp_path / "x")) == ["x:docs/a.md"]
    with pytest.raises(ConfigurationError, match="not in the base folder"):
        find_files([tmp_path], base=tmp_path / "x")


def test_excluded_names_and_paths_are_left_out(tmp_path: Path) -> None:
    for name in ("a.md", "a.draft.md", "old/b.md", "sub/old/c.md", "sub/d.md"):
        write(tmp_path / name)
    found = find_files([tmp_path], source="s", exclude=["*.draft.md", "sub/old/"])
    assert keys(found) == ["s:a.md", "s:old/b.md", "s:sub/d.md"]
    assert found.excluded == {"s:a.draft.md", "s:sub/old"}
    assert keys(find_files([tmp_path], source="s", exclude=["old"])) == [
        "s:a.draft.md",
        "s:a.md",
        "s:sub/d.md",
    ]


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


def test_links_out_of_the_folder_are_refused(tmp_path: Path, secret: Path) -> None:
    found = find_files([tmp_path / "docs"])
    assert keys(found) == ["docs:a.md", "docs:folder", "docs:inside.md", "docs:link.md"]
    for document in (found.documents[1], found.documents[3]):
        with unreadable("leads out of") as refused:
            document.load()
        assert "--follow-symlinks" in refused.value.remedy
    assert found.documents[2].load().text == "text"
    with unreadable("leads out of"):
        load(tmp_path / "docs" / "link.md")


def test_links_are_followed_when_asked_for(tmp_path: Path, secret: Path) -> None:
    found = find_files([tmp_path / "docs"], follow_symlinks=True)
    assert keys(found) == ["docs:a.md", "docs:folder/secret.md", "docs:inside.md", "docs:link.md"]
    assert [document.load().text for document in found.documents[1::2]] == ["secret", "secret"]


def test_a_folder_that_leads_out_of_its_repository_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "outside" / "a.md")
    link = repository(tmp_path / "project") / "docs"
    link.symlink_to(tmp_path / "outside")
    with pytest.raises(ConfigurationError, match="leads out of"):
        find_files([link])
    assert keys(find_files([link], follow_symlinks=True)) == ["outside:a.md"]


@pytest.mark.parametrize("follow_symlinks", [False, True])
def test_loops_of_links_end(tmp_path: Path, follow_symlinks: bool) -> None:
    write(tmp_path / "docs" / "sub" / "a.md")
    write(tmp_path / "other" / "b.md")
    (tmp_path / "docs" / "sub" / "loop").symlink_to(tmp_path / "docs")
    (tmp_path / "docs" / "up").symlink_to(tmp_path)
    (tmp_path / "docs" / "self.md").symlink_to("self.md")
    found = find_files([tmp_path / "docs"], follow_symlinks=follow_symlinks)
    assert "docs:sub/a.md" in keys(found)
    assert ("docs:up/other/b.md" in keys(found)) is follow_symlinks
    (itself,) = [one for one in found.documents if one.external_key == "docs:self.md"]
    with unreadable("is not there|cannot be"):
        itself.load()


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
