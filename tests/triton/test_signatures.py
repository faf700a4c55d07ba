"""Signatures of published models, valid and invalid ones."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from builder.errors import EnvironmentProblem, UsageError
from builder.store import clean_up, published
from builder.store.published import SIGNATURE
from builder.triton import publish, signatures
from tests.triton.artifacts import scorer


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two key pairs, by the command that the error message names."""
    folder = tmp_path_factory.mktemp("keys")
    for name in ("own", "other"):
        command = signatures.MAKE_KEYS.replace("sign.", f"{name}.")
        subprocess.run(command, shell=True, cwd=folder, check=True, capture_output=True)
    return folder


@pytest.fixture
def repository(tmp_path: Path, keys: Path) -> Path:
    with signatures.signing_with(keys / "own.key"):
        publish(scorer(), tmp_path / "repository")
    return tmp_path / "repository"


def test_a_model_is_signed_before_it_is_published(repository: Path, keys: Path) -> None:
    assert (repository / "scorer" / SIGNATURE).is_file()
    assert signatures.problems(repository, keys / "own.pub") == {}
    signatures.require(repository, keys / "own.pub")
    assert {path.name for path in repository.iterdir()} == {"scorer"}


def test_signature_of_another_key_is_reported(repository: Path, keys: Path) -> None:
    (reason,) = signatures.problems(repository, keys / "other.pub").values()
    assert "another key" in reason


def _flip(folder: Path) -> None:
    file = folder / "config.pbtxt"
    file.write_text(file.read_text().replace("scorer", "Scorer"))


def test_models_are_signed_under_the_lock_of_the_repository(
    repository: Path, keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A publication meanwhile would get the signature of the model that it replaces."""

    def sign(folder: Path, key: Path) -> None:
        handle = os.open(repository, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(handle)

    monkeypatch.setattr(signatures, "sign", sign)
    assert signatures.sign_missing(repository, keys / "other.key") == ["scorer"]


CHANGES = {
    "a changed file": (_flip, "changed config.pbtxt"),
    "a file more": (
        lambda folder: (folder / "1/extra.py").write_text(""),
        "added 1/extra.py",
    ),
    "a hidden file more": (
        lambda folder: (folder / ".gitignore").write_text(""),
        "added .gitignore",
    ),
    "compiled code": (
        lambda folder: (
            (folder / "1/__pycache__").unlink()
            or (folder / "1/__pycache__").mkdir()
            or (folder / "1/__pycache__/model.cpython-311.pyc").write_text("")
        ),
        "added 1/__pycache__/model.cpython-311.pyc",
    ),
    "a file less": (
        lambda folder: (folder / "trt-build.json").unlink(),
        "missing trt-build.json",
    ),
    "a link": (lambda folder: (folder / "link").symlink_to("/etc/passwd"), "link"),
    "no signature": (
        lambda folder: (folder / SIGNATURE).unlink(),
        "has no trt-build.sig",
    ),
    "an empty signature": (
        lambda folder: (folder / SIGNATURE).write_text(""),
        "trt-build.sig is damaged",
    ),
    "a signature of another kind": (
        lambda folder: (folder / SIGNATURE).write_text("[1]"),
        "trt-build.sig is damaged",
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changes_after_signing_are_reported(
    repository: Path, keys: Path, change: str
) -> None:
    alter, words = CHANGES[change]
    alter(repository / "scorer")
    (reason,) = signatures.problems(repository, keys / "own.pub").values()
    assert words in reason
    if (
        change == "compiled code"
    ):  # Triton's Python backend writes it: no reason to refuse
        signatures.require(repository, keys / "own.pub")
        assert not any(path.is_dir() for path in repository.rglob("__pycache__"))
        return
    with pytest.raises(UsageError, match="scorer: "):
        signatures.require(repository, keys / "own.pub")


def test_empty_pycache_files_are_not_reported(repository: Path, keys: Path) -> None:
    (placed,) = (repository / "scorer/1").glob("__pycache__")
    placed.unlink()
    assert signatures.problems(repository, keys / "own.pub") == {}
    placed.write_text("import os")
    (reason,) = signatures.problems(repository, keys / "own.pub").values()
    assert "added 1/__pycache__" in reason


def test_unsigned_folders_in_repository_are_reported(
    repository: Path, keys: Path
) -> None:
    (repository / ".hidden").mkdir()
    assert set(signatures.problems(repository, keys / "own.pub")) == {".hidden"}
    (repository / "linked").symlink_to(repository / "scorer")
    assert signatures.problems(repository, keys / "own.pub")["linked"] == "it is a link"


def test_signed_model_under_another_name_is_reported(
    repository: Path, keys: Path
) -> None:
    shutil.copytree(repository / "scorer", repository / "better")
    assert signatures.problems(repository, keys / "own.pub") == {
        "better": "it was signed as 'scorer'"
    }


def test_only_models_without_valid_signature_are_signed(
    repository: Path, keys: Path
) -> None:
    before = (repository / "scorer" / SIGNATURE).read_bytes()
    assert signatures.sign_missing(repository, keys / "own.key") == []
    assert (repository / "scorer" / SIGNATURE).read_bytes() == before
    assert signatures.sign_missing(repository, keys / "other.key") == ["scorer"]
    assert signatures.problems(repository, keys / "other.pub") == {}


def test_signature_of_a_killed_command_is_removed_by_the_next(
    repository: Path, keys: Path
) -> None:
    left = repository / f"{published.UNFINISHED_SIGNATURE}0123"
    left.write_text("")
    assert signatures.problems(repository, keys / "own.pub") == {}
    signatures.require(repository, keys / "own.pub")
    assert clean_up(repository) == () and not left.exists()


def test_folder_instead_of_a_signature_is_refused(repository: Path, keys: Path) -> None:
    path = repository / "scorer" / SIGNATURE
    path.unlink()
    path.mkdir()
    with pytest.raises(UsageError, match="is a folder"):
        signatures.sign_missing(repository, keys / "own.key")


@pytest.mark.parametrize("text", [None, "", "-----BEGIN PUBLIC KEY-----\n"])
def test_invalid_key_is_usage_error(
    repository: Path, tmp_path: Path, text: str | None
) -> None:
    key = tmp_path / "key"
    if text is not None:
        key.write_text(text)
    with pytest.raises(UsageError, match="public key"):
        signatures.problems(repository, key)
    with pytest.raises(UsageError, match="private key"), signatures.signing_with(key):
        pass


def test_an_encrypted_key_needs_its_password(
    repository: Path, keys: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    locked = tmp_path / "locked.key"
    subprocess.run(
        [
            *"openssl ec -aes256 -passout pass:secret -in".split(),
            keys / "own.key",
            "-out",
            locked,
        ],
        check=True,
        capture_output=True,
    )
    with pytest.raises(UsageError, match=signatures.PASSWORD):
        signatures.sign(repository / "scorer", locked)
    monkeypatch.setenv(signatures.PASSWORD, "secret")
    signatures.sign(repository / "scorer", locked)
    assert signatures.problems(repository, keys / "own.pub") == {}


def test_missing_signing_library_is_reported(
    repository: Path, keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "model_signing.verifying", None)
    with pytest.raises(EnvironmentProblem, match="model-signing") as caught:
        signatures.require(repository, keys / "own.pub")
    assert "trt-build[sign]" in str(caught.value)


def test_a_worker_signs_only_in_its_own_staging_folder(
    repository: Path, keys: Path
) -> None:
    with signatures.signing_with(keys / "own.key"):
        (sign,) = signatures.handlers(repository).values()
        assert signatures.secrets() == (keys / "own.key",)
    sign(repository.name, "scorer")
    for parent, name in (("elsewhere", "scorer"), (repository.name, "../scorer")):
        with pytest.raises(UsageError, match="not a model that this task publishes"):
            sign(parent, name)


def test_the_worker_that_publishes_has_its_model_signed_by_its_caller(
    tmp_path: Path, keys: Path
) -> None:
    """An isolated build, whose worker cannot read the key; then an unchanged one, and an edit."""
    from builder import build_repository
    from tests.cli.conftest import save_small

    models, out = save_small(tmp_path), tmp_path / "out"
    (result,) = build_repository(models, out)
    assert result.ok and set(signatures.problems(out, keys / "own.pub")) == {"small"}
    (result,) = build_repository(models, out, sign=keys / "own.key")
    assert result.state == "unchanged" and not signatures.problems(
        out, keys / "own.pub"
    )
    (result,) = build_repository(models, out, sign=keys / "own.key", rebuild=True)
    assert result.state != "unchanged" and not signatures.problems(
        out, keys / "own.pub"
    )
    (out / "small/config.pbtxt").open("a").write("# mine\n")
    (result,) = build_repository(models, out, sign=keys / "own.key")
    assert any("not signed" in text for text in result.warnings)
    assert signatures.problems(out, keys / "own.pub") == {
        "small": "changed config.pbtxt"
    }
