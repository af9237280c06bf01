"""The agent's thread budget and its way to the launcher."""

from __future__ import annotations

import json
import os
import socket

import pytest

from tfring.launch import agent


def spec(**changes):
    values = {
        "host": "h",
        "env": {},
        "remote": False,
        "ranks_here": 2,
        "store_hosts": ["127.0.0.1"],
        "store_hosts_fixed": False,
        "store_port": 1,
        "start_timeout": 2.0,
    }
    return values | changes


@pytest.mark.parametrize(
    ("cores", "ranks", "intra", "inter"),
    [(2, 2, "1", "2"), (2, 1, "2", "2"), (2, 4, "1", "2"), (16, 2, "8", "8"), (1.5, 1, "1", "2")],
)
def test_thread_budget(monkeypatch, cores, ranks, intra, inter):
    monkeypatch.setattr(agent, "usable_cores", lambda: cores)
    assert agent.thread_defaults(ranks) == {
        "TF_NUM_INTRAOP_THREADS": intra,
        "TF_NUM_INTEROP_THREADS": inter,
        "OMP_NUM_THREADS": intra,
    }


@pytest.mark.parametrize(
    "name", ["TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS"]
)
def test_a_users_own_thread_count_is_kept(name):
    env = agent.worker_environment(spec(env={name: "7"}))
    assert env[name] == "7"


def test_usable_cores_is_not_more_than_the_affinity():
    assert 0 < agent.usable_cores() <= len(os.sched_getaffinity(0))


def test_read_spec_takes_not_a_byte_more():
    read_end, write_end = os.pipe()
    data = json.dumps({"a": "é" * 1000}).encode()
    os.write(write_end, b"%d\n" % len(data) + data + b"kill\n")
    try:
        assert agent.read_spec(read_end) == {"a": "é" * 1000}
        assert os.read(read_end, 100) == b"kill\n"
    finally:
        os.close(read_end)
        os.close(write_end)


def test_a_remote_agent_takes_the_first_address_that_answers(monkeypatch):
    monkeypatch.delenv("SSH_CONNECTION", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        hosts = ["127.0.0.2", "127.0.0.1"]
        found = agent.choose_rendezvous(spec(remote=True, store_hosts=hosts, store_port=port))
    assert found == f"127.0.0.1:{port}"


def test_a_remote_agent_asks_sshd_where_it_was_called_from(monkeypatch):
    monkeypatch.setenv("SSH_CONNECTION", "127.0.0.1 5 127.0.0.1 22")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        found = agent.choose_rendezvous(
            spec(remote=True, store_hosts=["127.0.0.2"], store_port=port)
        )
    assert found == f"127.0.0.1:{port}"


def test_a_remote_agent_that_reaches_nobody_says_what_it_tried(monkeypatch):
    monkeypatch.delenv("SSH_CONNECTION", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(
        agent.AgentError, match=rf"host h cannot reach.*127.0.0.1:{port}.*--network"
    ):
        agent.choose_rendezvous(spec(remote=True, store_port=port))


def test_addresses_of_ipv6_get_brackets():
    assert agent.join_address("::1", 5) == "[::1]:5"
    assert agent.join_address("10.0.0.1", 5) == "10.0.0.1:5"
