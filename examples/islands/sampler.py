"""Gives each sample of a data set to one island, once, though islands die, are cut off, come and go. Copy it.

    python examples/islands/sampler.py --listen 0.0.0.0:29601 --file ledger.sqlite    # the ledger, one for all

docs/islands.md ("Data") says what is promised. In short: data are dealt in chunks, and the ledger says which island has which.
An island tells the ledger how far it is in its chunks before each average that will hold what they gave. Once the average has
landed, all islands count that as trained. What an island had trained besides is lost when it dies or is left out, and so the
rest of its chunks is dealt again.
"""

import argparse
import functools
import http.client
import json
import socketserver
import sqlite3
import threading
import time
import uuid
import xmlrpc.client
import xmlrpc.server
from dataclasses import asdict, dataclass
from typing import Any, Callable, Generic, Iterable, Iterator, NamedTuple, Protocol, TypeVar

import torch
from torch import distributed
from torch.utils.data import DataLoader, Dataset

from gradweave.groups import from_rank_0
from gradweave.islands import Islands

PATIENCE_S = 600.0
ANSWER_S = 10.0
RETRY_S = 0.5

Item = TypeVar("Item")


class Ledger(Protocol):
    """Entries, each a key and a value. Each call may be made twice in a row, with the effect of one."""

    def get(self, key: str) -> str:
        """"" if there is none."""

    def set(self, key: str, value: str) -> str:
        """Returns the value."""

    def compare_set(self, key: str, expected: str, desired: str) -> str:
        """Sets it if its value is the expected one; "": if there is none. Returns the value that it then has."""


class LedgerFile:
    """A ledger in a file. One process has it; any of its threads may call."""

    def __init__(self, path: str) -> None:
        self._lock = threading.RLock()
        self._file = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._file.execute("CREATE TABLE IF NOT EXISTS entries (key TEXT PRIMARY KEY, value TEXT NOT NULL)")

    def get(self, key: str) -> str:
        with self._lock:
            found = self._file.execute("SELECT value FROM entries WHERE key = ?", (key,)).fetchone()
        return found[0] if found else ""

    def set(self, key: str, value: str) -> str:
        with self._lock:
            self._file.execute("INSERT OR REPLACE INTO entries VALUES (?, ?)", (key, value))
        return value

    def compare_set(self, key: str, expected: str, desired: str) -> str:
        with self._lock:
            held = self.get(key)
            return self.set(key, desired) if held == expected else held


class LedgerServer(socketserver.ThreadingMixIn, xmlrpc.server.SimpleXMLRPCServer):
    daemon_threads = True


def serve(listen: str, path: str) -> None:
    """Never returns. Each answer begins with the file's name of its own, so that another one is no ledger without entries."""
    host, _, port = listen.rpartition(":")
    ledger = LedgerFile(path)
    own = ledger.compare_set("ledger", "", uuid.uuid4().hex)
    with LedgerServer((host, int(port)), logRequests=False) as server:
        server.register_function(lambda key: [own, ledger.get(key)], "get")
        server.register_function(lambda key, value: [own, ledger.set(key, value)], "set")
        server.register_function(lambda *given: [own, ledger.compare_set(*given)], "compare_set")
        print(f"the ledger {path} listens on {host}:{server.server_address[1]}", flush=True)
        server.serve_forever()


class _Transport(xmlrpc.client.Transport):
    def make_connection(self, host: Any) -> http.client.HTTPConnection:
        connection = super().make_connection(host)
        connection.timeout = ANSWER_S
        return connection


class RemoteLedger:
    """A ledger that another process serves, which may die and come again."""

    def __init__(self, address: str, patience_s: float = PATIENCE_S) -> None:
        self._address, self._patience_s = address, patience_s
        self._named = self._answer("get", "ledger")[0]

    def get(self, key: str) -> str:
        return self._call("get", key)

    def set(self, key: str, value: str) -> str:
        return self._call("set", key, value)

    def compare_set(self, key: str, expected: str, desired: str) -> str:
        return self._call("compare_set", key, expected, desired)

    def _call(self, name: str, *arguments: str) -> str:
        named, value = self._answer(name, *arguments)
        if named != self._named:
            raise RuntimeError(f"the ledger at {self._address} is another one than before, and doesn't know who has which "
                               "data: start all islands again, from a checkpoint if there is one (Samples.checkpoint())")
        return value

    def _answer(self, name: str, *arguments: str) -> list[str]:
        deadline = time.monotonic() + self._patience_s
        while True:
            try:
                with xmlrpc.client.ServerProxy(f"http://{self._address}", _Transport()) as server:
                    return list(map(str, getattr(server, name)(*arguments)))  # type: ignore[arg-type]
            except (OSError, http.client.HTTPException, xmlrpc.client.Fault) as error:
                if time.monotonic() > deadline:
                    raise RuntimeError(f"no ledger has answered at {self._address} for {self._patience_s:g} s ({error}): "
                                       "start it, sampler.py --listen HOST:PORT --file FILE, with the file that it had"
                                       ) from error
                time.sleep(RETRY_S)


@dataclass(frozen=True)
class Order:
    """The samples of all epochs of the data in one random order, the same on all islands, cut into chunks. Each chunk has as
    many for each rank of an island: an epoch leaves out the rest, which are fewer than ranks, and others each time."""

    samples: int
    chunk: int
    epochs: int
    seed: int
    ranks: int

    def __post_init__(self) -> None:
        if self.chunk < 1 or self.chunk % self.ranks:
            raise ValueError(f"chunk={self.chunk}: give a multiple of the island's {self.ranks} ranks")
        if self.samples < self.ranks:
            raise ValueError(f"the data set has {self.samples} samples for {self.ranks} ranks: each needs one")

    @property
    def chunks(self) -> int:
        return self.epochs * self._in_epoch

    def size(self, chunk: int) -> int:
        return min(self.chunk, self.samples // self.ranks * self.ranks - chunk % self._in_epoch * self.chunk)

    def of(self, chunk: int) -> list[int]:
        begin = chunk % self._in_epoch * self.chunk
        order = _shuffled(self.samples, self.seed + chunk // self._in_epoch)
        found: list[int] = order[begin:begin + self.size(chunk)].tolist()
        return found

    @property
    def _in_epoch(self) -> int:
        return -(-(self.samples // self.ranks) * self.ranks // self.chunk)


@functools.lru_cache(maxsize=2)
def _shuffled(samples: int, seed: int) -> torch.Tensor:
    return torch.randperm(samples, generator=torch.Generator().manual_seed(seed))


class Holder(NamedTuple):
    """An island from when it came to the others until it goes, or is left out: with that, what it had gained alone is lost."""

    since: int
    island: str


class Accounts:
    """What of each chunk is trained, as the first rank of an island knows it. Chunks are trained from their beginning on, so
    it is a number of samples. What is `kept` is in the parameters that any island begins with that comes now."""

    def __init__(self, ledger: Ledger, islands: Islands, order: Order, kept: dict[int, int] | None = None) -> None:
        self._ledger, self._islands, self._order = ledger, islands, order
        self._run = uuid.uuid4().hex  # entries of a training that began before, with this ledger, mean nothing now
        self._first = 0  # all chunks before are kept
        self._kept: dict[int, int] = {}
        self._own: dict[int, int] = {}  # with what this island has trained since
        self._holders: dict[int, str] = {}  # as the ledger last said
        self._keep(kept or {})
        islands.on_begin(self._begins)
        islands.on_land(self._lands)
        islands.on_keep(lambda: self._keep(self._own))

    def trained(self, chunk: int) -> int:
        """In this island's parameters."""
        return self._order.size(chunk) if chunk < self._first else max(self._kept.get(chunk, 0), self._own.get(chunk, 0))

    def all_trained(self) -> bool:
        return all(self.trained(chunk) == self._order.size(chunk) for chunk in range(self._first, self._order.chunks))

    def train(self, chunk: int, to: int) -> None:
        """The next step is of samples up to that one."""
        self._own[chunk] = to

    def next(self) -> int | None:
        """The next chunk that this island has, to be trained from trained() on; None while there is none that it may have."""
        own = Holder(self._islands.since[self._islands.name], self._islands.name)
        for chunk in range(self._first, self._order.chunks):
            if self.trained(chunk) == self._order.size(chunk):
                continue
            held = self._holders.get(chunk, "")
            if held and Holder(*json.loads(held)) != own and not self._is_lost(Holder(*json.loads(held))):
                continue
            desired = json.dumps(own)
            self._holders[chunk] = self._ledger.compare_set(self._key(f"chunk {chunk}"), held, desired)
            if self._holders[chunk] == desired:
                return chunk
        return None

    def checkpoint(self) -> dict[int, int]:
        """What this island's parameters are trained with, for `kept` where all islands begin again from them."""
        return {chunk: self._order.size(chunk) for chunk in range(self._first)} | self._kept | self._own

    # What islands take with the state (islands.carry()).

    def state_dict(self) -> dict[str, Any]:
        return {"order": asdict(self._order), "run": self._run, "first": self._first, "kept": self._kept,
                "giver": self._islands.name, "average": self._islands.last_average}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["order"] != asdict(self._order):
            raise ValueError(f"the other islands train with {state['order']}, and this one with {asdict(self._order)}: "
                             "give all the same data set, chunk, epochs and seed")
        self._run, self._first, self._kept = state["run"], state["first"], dict(state["kept"])
        self._own, self._holders = {}, {}
        average = self._islands.last_average
        while average != state["average"]:  # those that have landed while the state was on its way
            entry = self._entry(average, state["giver"])
            self._lands(average, entry["islands"])
            average = entry["before"]

    def _begins(self, average: int, islands: list[str]) -> None:
        entry = {"before": self._islands.last_average, "islands": islands, "trained": list(self._own.items())}
        self._ledger.set(self._key(f"average {average} {self._islands.name}"), json.dumps(entry))

    def _lands(self, average: int, islands: list[str]) -> None:
        for island in islands:
            self._keep(dict(self._entry(average, island)["trained"]))

    def _keep(self, trained: dict[int, int]) -> None:
        for chunk, to in trained.items():
            if chunk >= self._first:
                self._kept[chunk] = max(to, self._kept.get(chunk, 0))
        while self._kept.get(self._first) == self._order.size(self._first):
            del self._kept[self._first]
            self._first += 1
        self._own = {chunk: to for chunk, to in self._own.items() if chunk >= self._first and to > self._kept.get(chunk, 0)}

    def _is_lost(self, holder: Holder) -> bool:
        """Whether nothing of what it had trained can be kept any more, but for what is. Not while an average is under way: it
        may hold it. Nor if it came after the last change that this island knows."""
        islands = self._islands
        return not islands.under_way and holder.since <= islands.epoch and islands.since.get(holder.island) != holder.since

    def _entry(self, average: int, island: str) -> dict[str, Any]:
        found = self._ledger.get(self._key(f"average {average} {island}"))
        if not found:
            raise RuntimeError(f"island '{island}' has averaged its model without telling the ledger what it trained: on all "
                               "islands make Samples with one ledger, after gradweave.wrap() and before the first step")
        entry: dict[str, Any] = json.loads(found)
        return entry

    def _key(self, what: str) -> str:
        return f"{self._run} {what}"


class Samples(Generic[Item]):
    """The batches that this rank trains, each with the next step of the optimizer; the loop ends once all samples are trained.
    All ranks of the island make one after gradweave.wrap(), before the first step, and take the same number of batches.

    chunk: samples of a chunk; a multiple of the island's ranks. islands, ledger: model.gradweave.islands, and where
    the ledger is, "host:port". kept: from checkpoint(), where all islands begin again. carried: what newcomers take besides,
    for islands.carry(). loader: options of DataLoader. All islands give the same data, chunk, epochs and seed; batches may
    differ."""

    def __init__(self, data: Dataset[Any], batch_size: int, chunk: int, islands: Islands, ledger: str, epochs: int = 1,
                 seed: int = 0, kept: dict[int, int] | None = None, carried: Iterable[Any] = (),
                 **loader: Any) -> None:
        if islands.in_lockstep:
            raise ValueError("islands that average gradients make as many steps each, and the ledger gives the faster ones "
                             "more: average parameters, or give each island data of its own")
        if islands.fragments > 1:
            raise ValueError("averages of fragments hold a step's samples in one part of the model before the others: call "
                             "wrap(between={'fragments': 1}), or give each island data of its own")
        grouped = distributed.is_initialized()
        self._rank, self._ranks = (distributed.get_rank(), distributed.get_world_size()) if grouped else (0, 1)
        self._group = distributed.new_group(backend="gloo") if self._ranks > 1 else None
        self._order = Order(len(data), chunk, epochs, seed, self._ranks)  # type: ignore[arg-type]
        self._islands, self._batch_size = islands, batch_size
        self._states = 0  # that it took
        self._accounts = Accounts(RemoteLedger(ledger), islands, self._order, kept) if self._rank == 0 else None
        self._batches: list[list[int]] = []  # of the chunk, on this rank
        self._loader: DataLoader[Item] = DataLoader(data, batch_sampler=self._batches, **loader)
        islands.carry(self, *carried)

    def __iter__(self) -> Iterator[Item]:
        step = self._batch_size * self._ranks
        while (given := self._next()) is not None:
            chunk, begin = given
            samples, life = self._order.of(chunk), self._life()
            ends = [min(at + step, len(samples)) for at in range(begin, len(samples), step)]
            self._batches[:] = [samples[at + self._rank:end:self._ranks] for at, end in zip([begin, *ends], ends)]
            for batch, end in zip(self._loader, ends):
                if self._accounts is not None:
                    self._accounts.train(chunk, end)
                self._islands.samples_per_step = end - begin
                begin = end
                yield batch
                if self._life() != life:
                    break  # it was left out: the chunk is not its any more

    def checkpoint(self) -> dict[int, int]:
        """What the parameters are trained with now, after a step. Collective."""
        return self._from_rank_0(Accounts.checkpoint)

    def state_dict(self) -> dict[str, Any]:
        return {} if self._accounts is None else self._accounts.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._states += 1
        if self._accounts is not None:
            self._accounts.load_state_dict(state)

    def _life(self) -> tuple[int, int]:
        """Another one once it was left out, and again once it has another island's state."""
        return self._islands.since[self._islands.name], self._states

    def _next(self) -> tuple[int, int] | None:
        """A chunk and from where on it is to be trained. None: all is trained."""
        while True:
            found, ends = self._from_rank_0(_dealt)
            if found or ends:
                return found
            self._islands.wait()  # others are at the last chunks, and may die

    def _from_rank_0(self, ask: Callable[[Accounts], Any]) -> Any:
        own = None if self._accounts is None else ask(self._accounts)
        return own if self._group is None else from_rank_0(own, self._group)


def _dealt(accounts: Accounts) -> tuple[tuple[int, int] | None, bool]:
    chunk = accounts.next()
    return (None, accounts.all_trained()) if chunk is None else ((chunk, accounts.trained(chunk)), False)


def main() -> None:
    arguments = argparse.ArgumentParser(description="Serves the ledger of the islands' data.")
    arguments.add_argument("--listen", default="127.0.0.1:29601")
    arguments.add_argument("--file", default="ledger.sqlite", help="it is kept in; start it again with the same one")
    given = arguments.parse_args()
    serve(given.listen, given.file)


if __name__ == "__main__":
    main()
