"""Hosts as network namespaces: they are what they say, and nothing of them survives."""

import os
import signal
import socket
import subprocess
import sys
import time

import pytest

import gradweave
from gradweave.lab import hosts

_REASON = hosts.unavailable_reason()
needs_hosts = pytest.mark.skipif(_REASON is not None, reason=str(_REASON))


def _output(command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@needs_hosts
@pytest.mark.parametrize("workers,links", [(1, 1), (2, 1), (2, 2), (4, 2)])
def test_each_rank_has_its_own_interfaces_shaped_to_the_rate(workers, links):
    with hosts.Hosts(workers, links) as made:
        made.shape(4e8)
        for rank in range(workers):
            for link in range(links):
                name = hosts.interface_of(link)
                assert f" {hosts.address_of(rank, link)}/24 " in _output(made.inside(rank) + ["ip", "addr", "show", name])
                assert "rate 400Mbit" in _output(made.inside(rank) + ["tc", "qdisc", "show", "dev", name])
        made.shape(None)
        assert "tbf" not in _output(made.inside(0) + ["tc", "qdisc", "show"])


_TRANSFER = """
import os, socket, sys, time
sys.path.insert(0, sys.argv[1])
rank, size = int(os.environ["RANK"]), int(sys.argv[2])
if rank == 0:
    with socket.create_server((os.environ["MASTER_ADDR"], 1234)) as server:
        connection = server.accept()[0]
        begin, received = time.perf_counter(), 0
        while data := connection.recv(1 << 20):
            received += len(data)
        seconds = time.perf_counter() - begin
    print(received * 8 / seconds)
elif rank == 1:
    while True:
        try:
            connection = socket.create_connection((os.environ["MASTER_ADDR"], 1234))
            break
        except OSError:
            time.sleep(0.02)
    connection.sendall(bytes(size))
"""


@needs_hosts
@pytest.mark.parametrize("workers", [2, 3])
def test_a_link_carries_no_more_than_its_rate(workers, tmp_path, capfd):
    script = tmp_path / "transfer.py"
    script.write_text(_TRANSFER)
    with hosts.Hosts(workers) as made:
        made.shape(1e8)
        command = [sys.executable, str(script), os.path.dirname(hosts.__file__), str(6 << 20)]
        measured = []
        while len(measured) < 5 and max(measured, default=0) < 0.75e8:  # less where processors are busy
            assert made.run(command, timeout_s=60) == 0
            measured.append(float(capfd.readouterr().out))
    assert 0.75e8 < max(measured) < 1.06e8


# Prints the burst that the job finds, in microseconds.
_BURST = """
import torch
import gradweave
from gradweave import ranks
torch.set_num_threads(1)
with ranks.joined("burst"):
    found = []
    while len(found) < 4 and max(found, default=0) == 0:  # none where something else has disturbed it
        torch.manual_seed(0)
        model = torch.nn.Linear(64, 64)
        with gradweave.wrap(model, torch.optim.SGD(model.parameters(), 0.1), "ddp", warm_up=1, profile_iterations=1,
                            report=False) as (model, optimizer):
            while model.gradweave.overheads is None:
                model(torch.ones(1, 64)).sum().backward()
                optimizer.step()
            found.append(model.gradweave.overheads["burst_us"])
    if ranks.is_first():
        print(max(found))
"""


@needs_hosts
@pytest.mark.slow  # what else runs here disturbs it
def test_a_job_finds_the_burst_of_its_link(tmp_path, capfd):
    script = tmp_path / "burst.py"
    script.write_text(_BURST)
    rate = 1e8
    with hosts.Hosts(2) as made:
        made.shape(rate)
        assert made.run([sys.executable, str(script)], timeout_s=150) == 0
    of_link_us = 8e6 * hosts.burst_bytes(rate) / rate
    assert 0.4 * of_link_us < float(capfd.readouterr().out) < 1.6 * of_link_us


def test_a_free_port_is_kept_for_who_asks_for_it_by_number():
    port = hosts.free_port()
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("", port))
    with socket.create_server(("", port)):  # as torch's store does
        pass


def test_ranks_get_the_environment_of_torchrun(capfd):
    command = ["sh", "-c", "[ $MASTER_PORT -gt 0 ] && echo $RANK/$WORLD_SIZE $MASTER_ADDR $OMP_NUM_THREADS $EXTRA"]
    assert hosts.run_ranks([[], []], command, {"EXTRA": "x"}) == 0
    lines = sorted(capfd.readouterr().out.split("\n")[:2])
    assert lines == [f"{rank}/2 127.0.0.1 1 x" for rank in range(2)]


def test_pinning_gives_each_rank_its_processor(capfd):
    cpu = min(os.sched_getaffinity(0))
    command = [sys.executable, "-c", "import os; print(sorted(os.sched_getaffinity(0)))"]
    assert hosts.run_ranks([[], []], command, cpus=[cpu, cpu]) == 0
    assert capfd.readouterr().out.split("\n")[:2] == [f"[{cpu}]"] * 2


@pytest.mark.parametrize("script,code", [("exit $RANK", 1), ("kill -9 $$", 137), ("[ $RANK = 1 ] && exit 3; sleep 60", 3)])
def test_the_first_failure_is_the_result_and_ends_the_others(script, code):
    begin = time.monotonic()
    assert hosts.run_ranks([[], []], ["sh", "-c", script], grace_s=0.3) == code
    assert time.monotonic() - begin < 10


def test_a_run_that_takes_too_long_is_ended():
    assert hosts.run_ranks([[]], ["sleep", "60"], timeout_s=0.2) == 124


@needs_hosts
@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_survives_the_process_that_made_the_hosts(ending):
    # A parent that ignores SIGINT, as a shell's background job does, would pass that on.
    program = ("import signal\n"
               "from gradweave.lab import hosts\n"
               "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
               "with hosts.Hosts(3, 2) as made:\n"
               "    print(*[holder.pid for holder in made._holders + [made._switch]], flush=True)\n"
               "    made.run(['sh', '-c', 'echo $$; exec sleep 60'])\n")
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, stderr=subprocess.DEVNULL)
    pids = [int(pid) for pid in process.stdout.readline().split()]
    assert len(pids) == 4
    pids += [int(process.stdout.readline()) for _ in range(3)]
    process.send_signal(ending)
    process.wait(timeout=20)
    deadline = time.monotonic() + 10
    while any(_alive(pid) for pid in pids):
        assert time.monotonic() < deadline, f"alive: {[pid for pid in pids if _alive(pid)]}"
        time.sleep(0.05)


def _alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@needs_hosts
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become a plain user")
def test_a_plain_user_may_have_hosts_too():
    nobody = ["setpriv", "--reuid=nobody", "--clear-groups"]
    if subprocess.run([*nobody, "unshare", "--user", "true"], capture_output=True).returncode != 0:
        pytest.skip("this kernel does not let plain users make user namespaces")
    program = ("import sys; sys.path.insert(0, sys.argv[1]); import os; from gradweave.lab import hosts\n"
               "assert hosts.unavailable_reason() is None\n"
               "hosts.become_root_of_namespace(['-c', 'import os; print(os.geteuid())'])\n")
    done = subprocess.run([*nobody, "/usr/bin/python3", "-c", program, os.path.dirname(gradweave.__path__[0])],
                          capture_output=True, text=True)
    assert done.stdout.strip() == "0", done.stderr


@needs_hosts
def test_a_rate_that_no_link_can_have_is_an_error():
    with hosts.Hosts(2) as made:
        with pytest.raises(hosts.HostError, match="at least"):
            made.shape(0)


def test_absurd_numbers_of_hosts_are_errors():
    with pytest.raises(hosts.HostError, match="1 to 64"):
        hosts.Hosts(0).__enter__()
    with pytest.raises(hosts.HostError, match="1 to 8"):
        hosts.Hosts(2, 9).__enter__()
