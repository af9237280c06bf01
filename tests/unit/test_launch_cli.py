"""The command line: its flags, its words, and what it refuses."""

from __future__ import annotations

import ctypes.util
import sys

import pytest

import tfring.cli
import tfring.launch
from tfring import gpu_libraries
from tfring.bench import cli as bench_cli
from tfring.launch import __main__, check_build, cli, flags, ssh


def parse(*argv):
    return cli.make_parser().parse_args(argv)


def error_of(capsys, *argv):
    with pytest.raises(SystemExit) as raised:
        cli.main(argv)
    assert raised.value.code == 2
    return capsys.readouterr().err


def test_help_fits_a_screen():
    lines = cli.make_parser().format_help().splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 80


def test_the_command_is_taken_as_it_is():
    args = parse("-np", "2", "python", "train.py", "-np", "3", "--verbose", "--", "x y")
    assert args.num_proc == 2
    assert not args.verbose
    assert args.command == ["python", "train.py", "-np", "3", "--verbose", "--", "x y"]


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["-np", "0", "true"], ["-np", "positive integer", "Received: 0"]),
        (["-np", "-1", "true"], ["positive integer", "Received: -1"]),
        (["-np", "two", "true"], ["positive integer", "Received: two"]),
        (["true"], ["-np"]),
        (["-np", "2"], ["command"]),
        (["-np", "2", "--"], ["command"]),
        (["-np", "5", "-H", "a:1,b:3", "true"], ["5 processes", "4 slots"]),
        (["-np", "1", "-H", "a:1", "--hostfile", "f", "true"], ["-H", "--hostfile", "together"]),
        (["-np", "1", "-H", "a:x", "true"], ["slots", "'x'"]),
        (["-np", "1", "--hostfile", "/nosuch/file", "true"], ["/nosuch/file", "cannot be read"]),
        (["-np", "1", "--start-timeout", "0", "true"], ["positive number", "Received: 0"]),
        (["-np", "1", "--start-timeout", "inf", "true"], ["positive number", "Received: inf"]),
        (["-np", "1", "--log-level", "loud", "true"], ["--log-level", "LOUD", "DEBUG"]),
        (["-np", "1", "--frobnicate", "true"], ["--frobnicate"]),
        (["-np", "1", "--verb", "true"], ["--verb"]),
    ],
    ids=lambda value: " ".join(value),
)
def test_errors_name_what_is_wrong(capsys, argv, words):
    text = error_of(capsys, *argv)
    assert text.startswith("tfringrun: error: ")
    assert "--help" in text
    for word in words:
        assert word in text


@pytest.mark.parametrize(
    ("argv", "meant"),
    [
        (["--np", "2"], "-np"),
        (["-np2"], "-np"),
        (["--stal-check"], "--stall-check"),
        (["--verbos"], "--verbose"),
        (["--out=x"], "--output-filename"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_misspelt_flag_gets_the_closest_one(capsys, argv, meant):
    assert f". Did you mean {meant}?\n" in error_of(capsys, *argv, "true")


def test_a_flag_unlike_any_other_gets_none(capsys):
    assert "Did you mean" not in error_of(capsys, "--qqqq", "true")


def bench_error(capsys, *argv):
    with pytest.raises(SystemExit) as raised:
        bench_cli.main(argv, "tfring bench")
    assert raised.value.code == 2
    return capsys.readouterr().err


def test_misspelt_options_of_the_benchmark(capsys):
    assert "Did you mean --sizes?" in bench_error(capsys, "--size", "4")
    assert "Did you mean --xla?" in bench_error(capsys, "train", "--xlaa")


def test_the_benchmark_says_where_xla_is(capsys):
    text = bench_error(capsys, "--xla")
    assert "--level xla" in text
    assert "`tfring bench train --xla`" in text


def test_a_misspelt_command_gets_the_closest_one(capsys):
    assert tfring.cli.main(["benhc"]) == 2
    assert "Did you mean bench?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kernels", "line"),
    [
        ("built", "    [X] kernels for GPUs"),
        ("no CUDA", "    [ ] kernels for GPUs: this TensorFlow is built without CUDA"),
    ],
)
@pytest.mark.parametrize("path", [None, "/there/lib.so"])
def test_check_build_tells_of_gpus(monkeypatch, kernels, line, path):
    monkeypatch.setattr(gpu_libraries, "nccl", lambda: path)
    monkeypatch.setattr(gpu_libraries, "cudart", lambda: path)
    monkeypatch.setattr(ctypes.util, "find_library", lambda name: f"lib{name}.so.99")
    mark, where = ("X", path) if path else (" ", "not found")
    assert check_build._gpu(kernels) == [
        "GPU:",
        line,
        f"    [{mark}] NCCL: {where}",
        f"    [{mark}] CUDA run-time: {where}",
    ]


@pytest.mark.parametrize("row", flags.REFUSED, ids=lambda row: row[0][0])
def test_refused_flags_say_why(capsys, row):
    names, values, reason = row
    for name in names:
        text = error_of(capsys, "-np", "1", name, *["1"] * values, "true")
        assert f"{name}: {reason}" in text


@pytest.mark.parametrize("row", flags.WITHOUT_EFFECT, ids=lambda row: row[0][0])
def test_flags_without_effect_say_so_in_one_line(row):
    names, values, reason = row
    for name in names:
        args = parse("-np", "1", name, *["1"] * values, "true")
        assert args.notes == [f"{name} has no effect: {reason}"]
        assert args.command == ["true"]


@pytest.mark.parametrize(
    ("argv", "variables"),
    [
        (["--fusion-threshold-mb", "8"], {"TFRING_FUSION_THRESHOLD": "8388608"}),
        (["--stall-check-warning-time-seconds", "1.5"], {"TFRING_STALL_WARN_SECONDS": "1.5"}),
        (["--stall-check-shutdown-time-seconds", "0"], {"TFRING_STALL_FAIL_SECONDS": "0"}),
        (
            ["--no-stall-check"],
            {"TFRING_STALL_WARN_SECONDS": "1e9", "TFRING_STALL_FAIL_SECONDS": "0"},
        ),
        (["--log-level", "debug"], {"TFRING_LOG_LEVEL": "DEBUG"}),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_tuning_flags_set_variables(argv, variables):
    assert parse("-np", "1", *argv, "true").tuning == variables


def test_parsers_share_nothing():
    parse("-np", "1", "--autotune", "--log-level", "debug", "true")
    args = parse("-np", "1", "true")
    assert (args.notes, args.tuning) == ([], {})


@pytest.mark.parametrize(
    ("given", "env", "seconds"),
    [
        (None, {}, 30.0),
        (None, {"HOROVOD_START_TIMEOUT": "7"}, 7.0),
        (None, {"HOROVOD_START_TIMEOUT": "7", "TFRING_START_TIMEOUT": "8"}, 8.0),
        (9.0, {"TFRING_START_TIMEOUT": "8"}, 9.0),
    ],
)
def test_start_timeout(given, env, seconds):
    assert cli.start_timeout(given, env) == seconds


def test_a_bad_start_timeout_in_the_environment_is_named():
    with pytest.raises(ValueError, match=r"HOROVOD_START_TIMEOUT .*Received: soon"):
        cli.start_timeout(None, {"HOROVOD_START_TIMEOUT": "soon"})


def test_without_np_all_slots_are_used():
    assert len(cli.choose_places(None, "a:2,b:3", None)) == 5


def test_version(capsys):
    from tfring.version import __version__

    with pytest.raises(SystemExit) as raised:
        cli.main(["--version"])
    assert raised.value.code == 0
    assert capsys.readouterr().out == f"tfringrun {__version__}\n"


def test_ssh_command_never_asks_and_holds_no_environment():
    options = ssh.SshOptions(port=2222, identity_file="/k", connect_timeout_s=7)
    words = ssh.command("me@node1", "/opt/my python/bin/python", options)
    assert words[0] == "ssh"
    assert words[words.index("-p") + 1] == "2222"
    assert words[words.index("-i") + 1] == "/k"
    assert {"BatchMode=yes", "ConnectTimeout=7"} <= set(words)
    assert words[-3:-1] == ["--", "me@node1"]
    assert words[-1].startswith("exec '/opt/my python/bin/python' -I -S -c ")
    assert "\n" not in words[-1]


@pytest.mark.parametrize("name", ["HOME", "DISPLAY", "SSH_AUTH_SOCK", "TMUX_PANE", "_", "USER"])
def test_variables_of_this_machine_stay_here(name):
    assert ssh.exportable({name: "1", "PATH": "/bin", "USERS": "2"}) == {
        "PATH": "/bin",
        "USERS": "2",
    }


def test_an_unknown_interface_is_named():
    with pytest.raises(ValueError, match="Received: 'nosuch0'"):
        ssh.interface_address("nosuch0")
    assert ssh.interface_address("nosuch0,lo") == "127.0.0.1"


def interrupted(*_):
    raise KeyboardInterrupt


@pytest.mark.parametrize("main", [cli.main, __main__.main], ids=["cli", "__main__"])
def test_sigint_outside_a_job_is_one_line(monkeypatch, capsys, main):
    monkeypatch.setattr(cli, "run_job", interrupted)
    monkeypatch.setattr(sys, "argv", ["tfringrun", "-np", "1", "true"])
    assert main() == 130
    assert capsys.readouterr().err == "tfringrun: SIGINT: ended\n"


class InterruptedImport:
    find_spec = staticmethod(interrupted)


def test_sigint_while_modules_load_is_one_line(monkeypatch, capsys):
    monkeypatch.delitem(sys.modules, "tfring.launch.cli")
    monkeypatch.delattr(tfring.launch, "cli")
    monkeypatch.setattr(sys, "meta_path", [InterruptedImport, *sys.meta_path])
    assert __main__.main() == 130
    assert capsys.readouterr().err == "tfringrun: SIGINT: ended\n"
