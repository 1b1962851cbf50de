"""Real hosts on one machine: network namespaces joined by shaped virtual links.

Each rank is a network namespace of its own, held open by a process that ends when this process ends, so the
kernel removes namespaces, interfaces and queues even after SIGKILL and nothing is left to sweep. Two hosts are
joined directly; other numbers are joined by one switch (a bridge) for each link. Every end of a link is shaped with a token
bucket. Inside a host, link k is the interface `gwk`.

It is a test bed, not a launcher for real clusters: there, torchrun starts the ranks.
"""

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field

from gradweave.usage import UsageError

# What a link sends at once after a pause: as much as its rate gives in the time by which a busy machine's kernel may be late,
# and no more, since that passes faster than the rate.
BURST_S = 3.5e-3
LEAST_BURST_BYTES, MOST_BURST_BYTES = 32 * 1024, 256 * 1024
QUEUE_MS = 50
# One congestion control for every machine: the host's own may pace below the shaped rate.
CONGESTION_CONTROL = "cubic"
_AS_ROOT = ["unshare", "--user", "--map-root-user", "--"]


class HostError(UsageError):
    """The test bed could not be made; the message names the command and the remedy."""


def interface_of(link):
    """The name that link number `link` has inside every host."""
    return f"gw{link}"


def address_of(rank, link=0):
    """The IPv4 address of `rank` on `link`, as text."""
    return f"10.231.{link}.{rank + 1}"


def unavailable_reason():
    """None when namespaces with shaped links can be made here, else the reason and the remedy in one sentence.

    For a plain user it tells what would be after `become_root_of_namespace`.
    """
    for tool, package in (("ip", "iproute2"), ("tc", "iproute2"), ("unshare", "util-linux"), ("nsenter", "util-linux")):
        if _find(tool) is None:
            return f"the command '{tool}' is missing: apt-get install {package}"
    if os.geteuid() != 0:
        done = subprocess.run([*_AS_ROOT, sys.executable, "-m", "gradweave.lab.hosts"], capture_output=True, text=True,
                              env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)})
        return (done.stdout + done.stderr).strip() or None
    try:
        with Hosts(workers=2) as hosts:
            hosts.shape(1e9)
    except HostError as error:
        return str(error)
    return None


def become_root_of_namespace(arguments):
    """Restart this program as root of a user namespace of its own, where a plain user may make hosts.

    Returns only when that is not needed (already root) or not possible here. `arguments` is the command line that
    follows the Python interpreter.
    """
    if os.geteuid() == 0:
        return
    if _find("unshare") is None or subprocess.run(_AS_ROOT + ["true"], capture_output=True).returncode != 0:
        return
    os.execvp(_AS_ROOT[0], _AS_ROOT + [sys.executable, *arguments])


def shape_interface(interface, bits_per_second):
    """Shape what leaves `interface` of the current namespace; None removes the limit. Callable inside a host."""
    _tc(["tc"], interface, bits_per_second)


def sent_bytes():
    """Bytes that have left this host by all interfaces of its namespace but the loopback's, headers included."""
    with open("/proc/self/net/dev") as file:
        rows = [line.split(":") for line in file if ":" in line]
    return sum(int(values.split()[8]) for name, values in rows if name.strip() != "lo")


@dataclass
class Hosts:
    """`workers` hosts joined by `links` links; a context manager. Errors: HostError."""

    workers: int
    links: int = 1
    _holders: list = field(default_factory=list, repr=False)
    _switch: object = field(default=None, repr=False)

    def __enter__(self):
        try:
            self._make()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """Remove the hosts. Safe to call twice."""
        for holder in self._holders + ([self._switch] if self._switch else []):
            holder.stdin.close()
            holder.wait()
        self._holders, self._switch = [], None

    def shape(self, bits_per_second, link=None):
        """Give every end of one link (None: of all links) this rate; a rate of None removes the limit."""
        for number in range(self.links) if link is None else [link]:
            for rank in range(self.workers):
                _tc(self.inside(rank) + ["tc"], interface_of(number), bits_per_second)
                if self._switch:
                    _tc(_enter(self._switch) + ["tc"], f"p{rank}_{number}", bits_per_second)

    def inside(self, rank):
        """The command prefix that runs a command inside the host of `rank`."""
        return _enter(self._holders[rank])

    def process(self, rank):
        """The id of the process that holds the host of `rank` open."""
        return self._holders[rank].pid

    def run(self, command, environment=None, cpus=None, timeout_s=None):
        """Run `command` once per rank and return the exit code: 0, or that of the first rank that failed.

        See `run_ranks`.
        """
        network = {"MASTER_ADDR": address_of(0), "GLOO_SOCKET_IFNAME": interface_of(0)}
        network["GRADWEAVE_INTERFACES"] = ",".join(interface_of(link) for link in range(self.links))
        prefixes = [self.inside(rank) for rank in range(self.workers)]
        return run_ranks(prefixes, command, {**network, **(environment or {})}, cpus, timeout_s)

    def _make(self):
        if not 1 <= self.workers <= 64 or not 1 <= self.links <= 8:
            raise HostError(f"{self.workers} workers and {self.links} links: choose 1 to 64 workers, 1 to 8 links")
        self._holders = [_hold_namespace() for _ in range(self.workers)]
        if self.workers != 2:
            self._switch = _hold_namespace()
        for holder in self._holders:
            _ip(holder, "link", "set", "lo", "up")
            setting = "/proc/sys/net/ipv4/tcp_congestion_control"
            subprocess.run(_enter(holder) + ["sh", "-c", f"echo {CONGESTION_CONTROL} > {setting}"], capture_output=True)
        for link in range(self.links):
            self._join(link)

    def _join(self, link):
        name = interface_of(link)
        if self._switch:
            bridge = f"br{link}"
            _ip(self._switch, "link", "add", bridge, "type", "bridge", "mcast_snooping", "0")
            _ip(self._switch, "link", "set", bridge, "up")
            for rank, holder in enumerate(self._holders):
                port = f"p{rank}_{link}"
                _ip(self._switch, "link", "add", port, "type", "veth", "peer", "name", name, "netns", str(holder.pid))
                _ip(self._switch, "link", "set", port, "master", bridge, "up")
        else:
            first, second = self._holders
            _ip(first, "link", "add", name, "type", "veth", "peer", "name", name, "netns", str(second.pid))
        for rank, holder in enumerate(self._holders):
            _ip(holder, "addr", "add", f"{address_of(rank, link)}/24", "dev", name)
            _ip(holder, "link", "set", name, "up")


def run_on_hosts(workers, cpus=None):
    """Start this program again, once on each of as many hosts with torchrun's environment; returns the exit code."""
    become_root_of_namespace(sys.argv)
    with Hosts(workers) as machines:
        return machines.run([sys.executable, *sys.argv], cpus=cpus)


def run_ranks(prefixes, command, environment=None, cpus=None, timeout_s=None, grace_s=15.0):
    """Run `command` once per prefix with torchrun's environment and return the exit code of the whole.

    Rank r runs `prefixes[r] + command` with one thread, pinned to processor `cpus[r]` where given. When a rank
    fails the others get `grace_s` seconds to report it themselves. Returns 0, the first failing exit code
    (128 + signal), or 124 after `timeout_s`. All ranks are gone when this returns, and they die with this process.
    """
    shared = dict(os.environ, WORLD_SIZE=str(len(prefixes)), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
    shared.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # c10d warns that addresses of hosts have no names
    shared.update(LOCAL_WORLD_SIZE="1", LOCAL_RANK="0", OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")
    shared.update(environment or {})
    ranks = []
    try:
        for rank, prefix in enumerate(prefixes):
            pin = ["taskset", "-c", str(cpus[rank])] if cpus else []
            ranks.append(subprocess.Popen(prefix + pin + list(command), env=dict(shared, RANK=str(rank)),
                                          preexec_fn=die_with_parent, start_new_session=True))
        return _wait_for(ranks, timeout_s, grace_s)
    finally:
        for process in ranks:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def free_port():
    """A TCP port for a job's store. For a minute no other process is given it, whatever it opens meanwhile: a connection of
    it has just been closed, and only a server that asks for such a port by its number may have it."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
        server.accept()[0].close()  # the first to close keeps the port
        return server.getsockname()[1]


def _wait_for(ranks, timeout_s, grace_s):
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    failure = 0
    while any(process.poll() is None for process in ranks):
        time.sleep(0.05)
        codes = [process.poll() for process in ranks]
        if not failure and any(codes):
            failure = next(128 - code if code < 0 else code for code in codes if code)
            deadline = time.monotonic() + grace_s
        if deadline is not None and time.monotonic() > deadline:
            return failure or 124
    codes = [process.returncode for process in ranks if process.returncode]
    return failure or next((128 - code if code < 0 else code for code in codes), 0)


def _hold_namespace():
    """A process that holds a new network namespace until its standard input closes."""
    holder = subprocess.Popen(["unshare", "--net", "--", "cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, start_new_session=True)
    # The echo proves that the namespace exists: `cat` runs only after unshare succeeded.
    try:
        holder.stdin.write(b"+")
        holder.stdin.flush()
        if holder.stdout.read(1) == b"+":
            return holder
    except BrokenPipeError:
        pass
    holder.kill()
    reason = holder.communicate()[1].decode().strip()
    raise HostError(f"no network namespace ({reason}): run as root, or use emulated links (--links emulated)")


def _find(tool):
    return shutil.which(tool, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")


def _enter(holder):
    return ["nsenter", f"--net=/proc/{holder.pid}/ns/net", "--"]


def _ip(holder, *arguments):
    _command(_enter(holder) + [_find("ip") or "ip", *arguments])


def burst_bytes(bits_per_second):
    """The size of the token bucket of an interface of that rate."""
    return min(max(round(BURST_S * bits_per_second / 8), LEAST_BURST_BYTES), MOST_BURST_BYTES)


def _tc(prefix, interface, bits_per_second):
    prefix = prefix[:-1] + [_find("tc") or "tc"]
    if bits_per_second is None:
        subprocess.run(prefix + ["qdisc", "del", "dev", interface, "root"], capture_output=True)
        return
    if not bits_per_second >= 1e5:
        raise HostError(f"a link of {bits_per_second} bit/s: choose at least 100000 bit/s")
    _command(prefix + ["qdisc", "replace", "dev", interface, "root", "tbf", "rate", f"{round(bits_per_second)}bit",
                       "burst", str(burst_bytes(bits_per_second)), "latency", f"{QUEUE_MS}ms"])


def _command(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise HostError(f"'{' '.join(command)}' failed: {done.stderr.strip()}; run as root on a kernel with veth and tbf, "
                        "or use emulated links (--links emulated)")


_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent():
    """This process is killed when the one that started it ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    print(unavailable_reason() or "")
