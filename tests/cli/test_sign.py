"""Signatures on the command line: refused models and keys, and exit codes."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from builder.serving import FREE_PORTS, serve
from builder.triton import signatures

Run = Callable[..., Result]


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    subprocess.run(
        signatures.MAKE_KEYS, shell=True, cwd=folder, check=True, capture_output=True
    )
    return folder


def _error(result: Result, code: int) -> str:
    assert result.exit_code == code, result.output
    return result.stderr


def test_serve_refuses_unsigned_and_changed_models(
    published: Path, run: Run, keys: Path
) -> None:
    public = keys / "sign.pub"
    required = ("serve", published, "--port", "0", "--require-signature", public)
    killed = published / ".trt-build.sig.0123"
    killed.write_text("")
    text = _error(run(*required), 2)
    assert "small: it has no trt-build.sig" in text and "trt-build sign" in text
    assert (
        run("sign", published, "--key", keys / "sign.key").stdout == "signed: small\n"
    )
    assert not killed.exists()
    assert "nothing" in run("sign", published, "--key", keys / "sign.key").stdout
    signatures.require(published, public)
    (published / "small" / "1" / "extra").write_text("")
    assert "small: added 1/extra" in _error(run(*required), 2)


def _rsa_key() -> bytes:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    return rsa.generate_private_key(65537, 2048).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def test_invalid_key_or_model_name_is_a_usage_error(
    published: Path, published_once: Path, run: Run, keys: Path
) -> None:
    assert "not a private key" in _error(
        run("sign", published, "--key", keys / "sign.pub"), 2
    )
    assert "cannot be read" in _error(run("sign", published, "--key", keys / "none"), 2)
    (keys / "rsa.key").write_bytes(_rsa_key())
    assert "it is not an elliptic-curve key" in _error(
        run("sign", published, "--key", keys / "rsa.key"), 2
    )
    wrong = run("sign", published, "--key", keys / "sign.key", "--only", "smal")
    assert "has no model 'smal'" in _error(wrong, 2)
    models = published_once.parent / "models"
    out = run(
        "repo", models, "--out", published.parent / "new", "--sign", keys / "sign.pub"
    )
    assert "not a private key" in _error(out, 2)
    assert not (published.parent / "new").exists()


@pytest.mark.live
@pytest.mark.slow
def test_verify_fails_for_an_unsigned_folder(
    published: Path, run: Run, keys: Path
) -> None:
    public = keys / "sign.pub"
    arguments = (
        "verify",
        published,
        "--serve",
        "--require-signature",
        public,
        "--json",
    )
    run("sign", published, "--key", keys / "sign.key")
    assert run(*arguments).exit_code == 0
    assert run(*arguments).exit_code == 0, (
        "files that the server compiled are no change"
    )
    (published / "unknown").mkdir()
    assert "unknown: it has no trt-build.sig" in _error(run(*arguments), 2)
    with serve(published, explicit=True, models=["small"], **FREE_PORTS) as server:
        result = run("verify", published, "--url", server.http_url, *arguments[3:])
    assert result.exit_code == 3
    assert json.loads(result.stdout)["signatures"]["problems"] == {
        "unknown": "it has no trt-build.sig"
    }


def test_promotion_removes_or_renews_the_signature(
    published: Path, run: Run, keys: Path, tmp_path: Path
) -> None:
    run("sign", published, "--key", keys / "sign.key")
    result = run("promote", published, tmp_path / "live")
    assert "removed its signature" in result.stderr
    result = run("promote", published, tmp_path / "signed", "--sign", keys / "sign.key")
    assert "signature" not in result.stderr
    assert signatures.problems(tmp_path / "signed", keys / "sign.pub") == {}
