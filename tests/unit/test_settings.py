from __future__ import annotations

import dataclasses
import pathlib
import re

import pytest

import tfring as hvd
from tfring import settings
from tfring.launch.hosts import Place

DOCS = pathlib.Path(__file__).parents[2] / "docs" / "settings.md"


def test_defaults() -> None:
    values = settings.load({})
    assert (values.start_timeout, values.warn_after, values.fail_after) == (30.0, 60.0, 300.0)
    assert values.shared_memory is True
    assert values.interfaces is None


def test_fields_are_the_table() -> None:
    fields = {field.name for field in dataclasses.fields(settings.Settings)}
    assert fields == {setting.name for setting in settings.SETTINGS}


@pytest.mark.parametrize(
    ("environment", "arguments", "expected"),
    [
        ({"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "7"}, {}, 7.0),
        ({"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "7", "TFRING_STALL_FAIL_SECONDS": "8"}, {}, 8.0),
        ({"TFRING_STALL_FAIL_SECONDS": "8"}, {"fail_after": 9}, 9.0),
        ({"TFRING_STALL_FAIL_SECONDS": ""}, {"fail_after": None}, 300.0),
        ({"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "0"}, {}, 0.0),
    ],
)
def test_precedence(environment: dict, arguments: dict, expected: float) -> None:
    assert settings.load(environment, **arguments).fail_after == expected


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TFRING_START_TIMEOUT", "soon"),
        ("TFRING_START_TIMEOUT", "0"),
        ("TFRING_START_TIMEOUT", "-1"),
        ("TFRING_START_TIMEOUT", "nan"),
        ("HOROVOD_FUSION_THRESHOLD", "1.5"),
        ("TFRING_FUSION_THRESHOLD", "-1"),
        ("TFRING_SHARED_MEMORY", "maybe"),
        ("TFRING_LOG_LEVEL", "loud"),
        ("TFRING_DRIFT", "fix"),
        ("TFRING_SPIN_US", "-2"),
        ("TFRING_SPIN_US", "99999999999"),
        ("TFRING_CHUNK_BYTES", "1073741825"),
        ("TFRING_HOST_CONNECTIONS", "65"),
        ("TFRING_HOST_LEADERS", "65"),
        ("TFRING_HOST_ALGORITHM", "tree"),
    ],
)
def test_bad_value_names_variable_and_value(name: str, value: str) -> None:
    with pytest.raises(ValueError, match=rf"`{name}` must be .*Received: {name}='{value}'"):
        settings.load({name: value})


def test_bad_argument_is_named() -> None:
    with pytest.raises(ValueError, match="`fail_after` must be"):
        settings.load({}, fail_after=-1)


def test_unknown_argument_is_refused() -> None:
    with pytest.raises(TypeError, match="fail_afterr"):
        settings.load({}, fail_afterr=1)


def test_documentation_holds_the_table() -> None:
    assert settings.markdown() in DOCS.read_text()


def test_variables_without_effect() -> None:
    environment = {"HOROVOD_CYCLE_TIME": "5", "HOROVOD_TIMELINE": "", "HOROVOD_LOG_LEVEL": "info"}
    assert list(settings.ignored(environment)) == ["HOROVOD_CYCLE_TIME"]


def test_no_variable_is_both_read_and_ignored() -> None:
    read = {name for setting in settings.SETTINGS for name in setting.environment}
    without_effect = [name for names in settings.IGNORED for name in names]
    assert len(set(without_effect)) == len(without_effect)
    assert not read & set(without_effect)


def test_init_tells_what_has_no_effect(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("HOROVOD_CYCLE_TIME", "5")
    monkeypatch.setenv("HOROVOD_LOG_LEVEL", "info")
    hvd.init()
    hvd.shutdown()
    assert "HOROVOD_CYCLE_TIME is set, but has no effect. There is no polling" in caplog.text


def init_with(monkeypatch: pytest.MonkeyPatch, **variables: str) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    hvd.init()
    hvd.shutdown()


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]


def test_init_warns_of_a_misspelt_variable(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    init_with(monkeypatch, TFRING_STALL_FAIL_SECOND="5")
    assert warnings(caplog) == [
        "TFRING_STALL_FAIL_SECOND is set, but tfring reads no such variable. "
        "Did you mean TFRING_STALL_FAIL_SECONDS?"
    ]


def test_init_warns_of_a_variable_like_no_other(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    init_with(monkeypatch, TFRING_QQQ="5")
    (warning,) = warnings(caplog)
    assert warning.startswith("TFRING_QQQ is set, but tfring reads no such variable. docs/settings")


def test_init_warns_of_none_that_it_or_the_launcher_knows(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    place = Place(0, 1, 0, 1, 0, 1, "h").environment()
    init_with(monkeypatch, **place, TFRING_JOB_ID="j", TFRING_SPIN_US="5", HOROVOD_NO_SUCH="1")
    assert warnings(caplog) == []


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("TFRING_STALL_FAIL_SECOND", "TFRING_STALL_FAIL_SECONDS"),
        ("TFRING_FAIL_AFTER", "TFRING_STALL_FAIL_SECONDS"),
        ("TFRING_STALL_SHUTDOWN_TIME_SECONDS", "TFRING_STALL_FAIL_SECONDS"),
        ("TFRING_LOGLEVEL", "TFRING_LOG_LEVEL"),
        ("TFRING_DRIFTS", "TFRING_DRIFT"),
        ("TFRING_SECRET", "known"),
        ("TFRING_TEST_MARK", "known"),
        ("HOROVOD_LOGLEVEL", "known"),
    ],
)
def test_nearest_name(name: str, nearest: str | None) -> None:
    assert settings.unknown({name: "1"}).get(name, "known") == nearest


def test_every_variable_that_the_package_names_is_known() -> None:
    package = pathlib.Path(hvd.__file__).parent
    texts = [path.read_text() for path in package.rglob("*.py")]
    names = set(re.findall(r"\bTFRING_[A-Z0-9_]*[A-Z0-9]\b", "\n".join(texts)))
    assert "TFRING_DRIFT" in names
    # Those of examples of misspelling.
    assert settings.unknown(dict.fromkeys(names, "1")).keys() <= {"TFRING_STALL_FAIL_SECOND"}
