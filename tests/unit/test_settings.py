"""The settings registry: sources, their order, and refusals."""

from pathlib import Path

import pytest

from systolic import settings


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    for name in ("SYSTOLIC_CACHE_DIR", "SYSTOLIC_LOG_LEVEL", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    settings.reset()
    yield
    settings.reset()


def test_defaults(monkeypatch):
    monkeypatch.setenv("HOME", "/home/someone")
    current = settings.current()
    assert current.cache_dir == Path("/home/someone/.cache/systolic")
    assert current.models_dir == Path("/home/someone/.cache/systolic/models")
    assert current.log_level == "INFO" and current.program_cache is True


def test_cache_home_of_the_desktop_standard_is_honoured(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/cache/me")
    assert settings.current().cache_dir == Path("/var/cache/me/systolic")


def test_environment_overrides_default_and_apply_overrides_environment(monkeypatch):
    monkeypatch.setenv("SYSTOLIC_LOG_LEVEL", "warning")
    assert settings.current().log_level == "WARNING"
    settings.apply({"log_level": "error"}, "additional-config")
    assert settings.current().log_level == "ERROR"
    entry = next(entry for entry in settings.entries() if entry.name == "log_level")
    assert (entry.value, entry.source, entry.env) == ("ERROR", "additional-config", "SYSTOLIC_LOG_LEVEL")


def test_source_of_an_environment_value_names_the_variable(monkeypatch):
    monkeypatch.setenv("SYSTOLIC_CACHE_DIR", "/data/cache")
    entry = next(entry for entry in settings.entries() if entry.name == "cache_dir")
    assert entry.value == Path("/data/cache") and "SYSTOLIC_CACHE_DIR" in entry.source


@pytest.mark.parametrize("text, expected", [("off", False), ("TRUE", True), (False, False), ("1", True)])
def test_flags(text, expected):
    assert settings.apply({"program_cache": text}, "test").program_cache is expected


@pytest.mark.parametrize(
    "values, words",
    [
        ({"program_cache": "maybe"}, ["program_cache", "maybe", "true or false"]),
        ({"log_level": "LOUD"}, ["log_level", "LOUD", "DEBUG"]),
        ({"program_cach": True}, ["program_cach", "did you mean 'program_cache'"]),
        ({"cache_dir": 3}, ["cache_dir", "3", "folder"]),
    ],
)
def test_refusals_name_setting_value_and_remedy_and_change_nothing(values, words):
    before = settings.current()
    with pytest.raises(settings.SettingError) as caught:
        settings.apply({"log_level": "ERROR", **values}, "additional-config")
    for word in words:
        assert word in str(caught.value)
    assert settings.current() == before


def test_apply_refuses_what_is_not_an_object():
    with pytest.raises(settings.SettingError, match="expected an object"):
        settings.apply([1], "additional-config")


def test_invalid_environment_value_names_the_variable(monkeypatch):
    monkeypatch.setenv("SYSTOLIC_LOG_LEVEL", "LOUD")
    with pytest.raises(settings.SettingError, match="SYSTOLIC_LOG_LEVEL.*LOUD"):
        settings.current()


def test_unknown_variables_are_found(monkeypatch):
    monkeypatch.setenv("SYSTOLIC_CACHEDIR", "/x")
    assert settings.unknown_environment() == ["SYSTOLIC_CACHEDIR"]
