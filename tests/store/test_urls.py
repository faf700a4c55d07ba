"""Azure URLs in Triton's form, and their credentials."""

from __future__ import annotations

import pytest
from fsspec import register_implementation
from fsspec.implementations.memory import MemoryFileSystem

from builder.errors import UsageError
from builder.store import Folders, Store, buckets, urls

SECRET = "c2VjcmV0IG9mIHRoZSB0ZXN0cw=="


class Blobs(MemoryFileSystem):
    """Replaces adlfs, and keeps the account that it was opened with."""

    protocol = "abfs"
    store: dict[str, object] = {}  # noqa: RUF012
    pseudo_dirs = [""]  # noqa: RUF012
    cachable = False

    def __init__(self, account_name: str = "", account_key: str = "") -> None:
        super().__init__()
        self.account = (account_name, account_key)

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        inside = path.removeprefix("abfs://").strip("/")
        return f"/{inside}" if inside else ""


@pytest.fixture(autouse=True)
def azure(monkeypatch: pytest.MonkeyPatch) -> None:
    register_implementation("abfs", Blobs, clobber=True)
    for name in (urls.TRITON_KEY, urls.CONNECTION, "AZURE_STORAGE_ACCOUNT_KEY"):
        monkeypatch.delenv(name, raising=False)


def test_account_in_url_is_passed_to_adlfs() -> None:
    store = Store("as://account/container/plans")
    assert store.fs.account == ("account", "")
    assert store.root.strip("/") == "container/plans"
    store.remember("net", {"request": 1})
    assert Store("as://account/container/plans").last("net") == {"request": 1}


def test_tritons_key_is_used_without_a_key_of_adlfs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(urls.TRITON_KEY, SECRET)
    assert Store("as://account/container").fs.account == ("account", SECRET)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "of adlfs itself")
    assert Store("as://account/container").fs.account == ("account", "")


def test_connection_string_of_another_account_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """adlfs would use the account of the connection string, not that of the URL."""
    connection = (
        f"DefaultEndpointsProtocol=https;AccountName=other;AccountKey={SECRET};"
    )
    monkeypatch.setenv(urls.CONNECTION, connection)
    with pytest.raises(
        UsageError, match=r"of the account mine, and .* of other"
    ) as refused:
        Folders("as://mine/container/store")
    assert SECRET not in str(refused.value)
    monkeypatch.setenv(urls.CONNECTION, connection.replace("=other", "=mine"))
    assert Store("as://mine/container/store").fs.account == ("mine", "")


@pytest.mark.parametrize(
    "url", ["as://", "as://account", "as://account/", "as:///container/a"]
)
def test_url_without_account_or_container_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="no account and container"):
        Store(url)
    with (
        pytest.raises(UsageError, match="no account and container"),
        buckets.opened(url),
    ):
        pass


def test_repository_is_published_at_tritons_url() -> None:
    with buckets.opened("as://account/container/out", writes=True) as mirror:
        (mirror.path / "net").mkdir()
        (mirror.path / "net" / "config.pbtxt").write_text("name: 'net'")
        mirror.publish()
    with buckets.opened("as://account/container/out") as mirror:
        assert (mirror.path / "net" / "config.pbtxt").read_text() == "name: 'net'"
