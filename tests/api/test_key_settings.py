"""Settings of API keys, in the lines of the key file."""

from __future__ import annotations

from pathlib import Path

import pytest

from cenote.api.api_keys import ApiKeyStore, parse_key_lines
from cenote.errors import LoadError


def test_a_line_is_a_key_and_its_settings() -> None:
    lines = [b"plain", b"", b"# comment", b"two words", b"big weight=2.5 max-queue-tokens=10k", b"boss admin priority"]
    plain, spaces, big, boss = parse_key_lines(lines)

    assert not plain.has_settings and plain.weight == 1 and not plain.is_admin
    assert not spaces.has_settings and spaces.digest != plain.digest
    assert (big.weight, big.max_queue_tokens, big.max_tokens_per_minute) == (2.5, 10_000, None)
    assert boss.is_admin and boss.may_prioritize and boss.tenant == boss.digest.hex()


@pytest.mark.parametrize(
    "line",
    ["k weight=0", "k weight=-1", "k weight=nan", "k weight=x", "k weight=1e9", "k wieght=2", "k weight=1 weight=2"]
    + ["k max-queue-tokens=none", "k admin=yes", "k admin other"],
)
def test_an_invalid_setting_is_refused_with_its_line(line: str) -> None:
    with pytest.raises(LoadError, match="line 2 of the API key file: "):
        parse_key_lines([b"first", line.encode()])


def test_keys_without_settings_may_set_priorities_until_a_key_has_some(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("one\ntwo\n")
    plain = ApiKeyStore([], str(path))
    path.write_text("one\ntwo priority\nthree admin\n")
    settings = ApiKeyStore([], str(path))

    assert all(plain.may_prioritize(key) for key in plain.keys)
    assert [settings.may_prioritize(key) for key in settings.keys] == [False, True, True]
    assert [key.is_admin for key in settings.keys] == [False, False, True]


def test_a_file_that_becomes_invalid_keeps_the_keys_that_were_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("cenote.api.api_keys.RELOAD_INTERVAL_S", 0.0)
    path = tmp_path / "keys"
    path.write_text("one\n")
    keys = ApiKeyStore([], str(path))
    path.write_text("one weight=zero\n")

    assert all(keys.find([(b"api-key", b"one")]) for _ in range(3))
    assert len([record for record in caplog.records if "stay valid" in record.getMessage()]) == 1
