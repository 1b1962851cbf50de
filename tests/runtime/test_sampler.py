"""The sampler of examples/islands: in the parameters that are kept, each sample is trained once, whatever happens."""

import contextlib
import copy
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from random import Random
from types import SimpleNamespace

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from torch import nn

import ranks
from islander import agreed

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "examples" / "islands"))

from sampler import Accounts, LedgerFile, Order, RemoteLedger, Samples  # noqa: E402

ORDER = Order(samples=21, chunk=6, epochs=8, seed=3, ranks=2)
SAMPLES = [ORDER.of(chunk) for chunk in range(ORDER.chunks)]
NAMES = "abcd"


def samples_of(trained):
    """As often as they were trained, of {chunk: samples of it}."""
    return Counter(sample for chunk, to in trained.items() for sample in SAMPLES[chunk][:to])


class Island:
    """One, as its sampler sees it (gradweave.islands.Islands), whose parameters say how often each sample was trained:
    `anchor`, which all have, and `gain`. What it is told to do waits in a queue."""

    in_lockstep, fragments = False, 1

    def __init__(self, name, world):
        self.name, self.world = name, world
        self.since, self.epoch, self.under_way, self.last_average = {}, 0, 0, 0
        self.begins, self.lands, self.keeps = [], [], []
        self.on_begin, self.on_land, self.on_keep = self.begins.append, self.lands.append, self.keeps.append
        self.anchor, self.gain = Counter(), Counter()
        self.has_state, self.trains, self.taking, self.queue = False, False, None, []
        self.accounts, self.chunk = None, None

    def step(self, size):
        """Trains so many samples for each rank, or waits."""
        if self.chunk is None:
            self.chunk = self.accounts.next()
        if self.chunk is None:
            return
        begin = self.accounts.trained(self.chunk)
        end = min(begin + size * ORDER.ranks, ORDER.size(self.chunk))
        self.accounts.train(self.chunk, end)
        self.gain.update(SAMPLES[self.chunk][begin:end])
        if end == ORDER.size(self.chunk):
            self.chunk = None

    def proceed(self):
        what, *told = self.queue.pop(0)
        getattr(self, what)(*told)

    def enter(self, epoch, since):
        if since[self.name] > self.epoch:  # it was left out
            self.has_state, self.under_way, self.chunk = False, 0, None
        self.epoch, self.since = epoch, since
        self.world.entered(self)

    def begin(self, average):
        self.under_way = average.number
        average.gains[self.name] = Counter(self.gain)
        for call in self.begins:
            call(average.number, average.names)

    def land(self, average):
        for gain in average.gains.values():
            self.anchor.update(gain)
        self.gain.subtract(average.gains[self.name])
        self.under_way, self.last_average = 0, average.number
        if not any(island.under_way == average.number for island in self.world.here):
            self.world.average = None
        for transfer in self.world.transfers:
            if transfer.giver is self and transfer.given:
                transfer.coming.append({"anchor": Counter(self.anchor), "landed": self.last_average})
        for call in self.lands:
            call(average.number, average.names)

    def drop(self):
        self.under_way = 0

    def give(self, transfer):
        if set(self.since) <= {self.name, transfer.taker.name}:
            for call in self.keeps:
                call()
            self.anchor.update(self.gain)
            self.gain.clear()
        transfer.given = True
        transfer.coming.append({"anchor": Counter(self.anchor), "landed": self.last_average,
                                "state": copy.deepcopy(self.accounts.state_dict())})

    def take(self, transfer):
        self.trains, self.taking, self.under_way = False, transfer, 0

    def train(self, landed):
        taken = self.taking.came if self.taking is not None else {}
        self.has_state, self.trains, self.taking, self.last_average = True, True, None, landed
        if self.accounts is None:
            self.accounts = Accounts(self.world.ledger, self, ORDER)
        if taken:
            self.anchor = Counter(taken["anchor"])
            self.gain.clear()
            self.chunk = None
            self.accounts.load_state_dict(taken["state"])
        else:
            self.anchor.update(self.gain)
            self.gain.clear()
            for call in self.keeps:
                call()

    @property
    def whole(self):
        """The last average in the last state that it had whole."""
        return self.taking.came["landed"] if self.taking is not None and self.taking.came else self.last_average


class Average:
    def __init__(self, number, members):
        self.number, self.members, self.names = number, members, [member.name for member in members]
        self.gains, self.lands = {}, False  # as they have begun; whether all have been told to land it


class Transfer:
    def __init__(self, giver, taker):
        self.giver, self.taker, self.given = giver, taker, False
        self.coming, self.came = [], {}  # the state, and the results that have landed since


class World(RuleBasedStateMachine):
    """What the meeting point and the islands' chair decide (src/islands/council.h), each island hearing of it later."""

    def __init__(self):
        super().__init__()
        self.ledger, self.epoch, self.numbers = LedgerFile(":memory:"), 0, 0
        self.here, self.since, self.left_out = [], {}, []
        self.missing, self.has_state = set(), set()  # islands: that are not in the epoch yet; as the chair knows it
        self.average, self.transfers = None, []
        for name in NAMES[:2]:
            self.come(Island(name, self))

    # ---- what happens

    @rule(random=st.randoms(use_true_random=True), many=st.integers(0, 200))
    def time_passes(self, random, many):
        for _ in range(many):
            random.choice([self.step, self.step, self.proceed, self.proceed, self.proceed, self.begin, self.land, self.comes,
                           self.train_those_that_have_taken])(random)

    @rule(random=st.randoms(use_true_random=True), what=st.sampled_from(["kill", "leave_out"]))
    def goes(self, random, what):
        others = [island for island in self.here if self.has_state != {island}]
        if len(self.here) > 1 and others:
            getattr(self, what)(random.choice(others))

    @rule(random=st.randoms(use_true_random=True), what=st.sampled_from(["kill", "leave_out"]))
    def one_goes_that_has_the_state(self, random, what):
        if self.has_state and any(island.whole for island in self.here if island not in self.has_state):
            getattr(self, what)(random.choice(sorted(self.has_state, key=lambda island: island.name)))

    @rule(random=st.randoms(use_true_random=True))
    def comes_back(self, random):
        if self.left_out:
            self.come(self.left_out.pop(random.randrange(len(self.left_out))))

    @rule(name=st.sampled_from(NAMES))
    def comes_anew(self, name):
        self.left_out = [island for island in self.left_out if island.name != name]  # a process before this one has ended
        gone = next((island for island in self.here if island.name == name), None)
        if gone is None or self.has_state != {gone}:
            self.come(Island(name, self), gone)

    def kill(self, island):
        self.change(gone=island)

    def leave_out(self, island):
        self.change(gone=island)
        self.left_out.append(island)

    def step(self, random):
        training = [island for island in self.here + self.left_out if island.trains]
        if training:
            random.choice(training).step(random.randint(1, 3))

    def proceed(self, random):
        told = [island for island in self.here + self.left_out if island.queue]
        if not told:
            return
        island = random.choice(told)
        at = [what for what, *_ in island.queue].index("enter") if ("enter" in [what for what, *_ in island.queue]) else 0
        if random.random() < 0.3:
            del island.queue[:at]  # what was said in the epoch before comes too late
        island.proceed()

    def begin(self, _=None):
        members = sorted((island for island in self.here if island in self.has_state), key=lambda island: island.name)
        if self.settled and self.average is None and len(members) > 1:
            self.numbers += 1
            self.average = Average(self.numbers, members)
            self.tell(members, "begin", self.average)

    def land(self, _=None):
        average = self.average
        if self.settled and average is not None and not average.lands and all(
                member.under_way == average.number for member in average.members):
            average.lands = True
            self.tell(average.members, "land", average)

    def comes(self, random):
        on_its_way = [transfer for transfer in self.transfers if transfer.coming and transfer.giver in self.here]
        if on_its_way:
            transfer = random.choice(on_its_way)
            transfer.came |= transfer.coming.pop(0)

    def train_those_that_have_taken(self, _=None):
        for transfer in list(self.transfers):
            taker, giver = transfer.taker, transfer.giver
            if (self.settled and self.average is None and transfer.came and not transfer.coming and taker.taking is transfer
                    and giver.whole == transfer.came["landed"]):
                self.has_state.add(taker)
                self.tell([taker], "train", transfer.came["landed"])
                self.transfers.remove(transfer)

    # ---- what follows

    @property
    def settled(self):
        return not self.missing

    def tell(self, islands, *what):
        for island in islands:
            island.queue.append(what)

    def come(self, island, gone=None):
        self.change(gone, island)

    def change(self, gone=None, come=None):
        self.epoch += 1
        if gone is not None:
            self.here.remove(gone)
            del self.since[gone.name]
        if come is not None:
            self.here.append(come)
            self.since[come.name] = self.epoch
        self.has_state = {island for island in self.has_state if island in self.here and island is not come}
        self.missing = set(self.here)
        self.tell(self.here, "enter", self.epoch, dict(self.since))

    def entered(self, island):
        if island.epoch == self.epoch:
            self.missing.discard(island)
        if self.settled:
            self.settle()

    def settle(self):
        self.has_state = {island for island in self.here if island.has_state}
        if (average := self.average) is not None:
            holding = [island for island in average.members if island in self.here and island.under_way == average.number]
            average.lands = any(island.last_average == average.number for island in self.has_state)
            if average.lands:
                self.tell(holding, "land", average)
            elif len(holding) < len(average.members):
                self.tell(holding, "drop")
            if not holding or not average.lands and len(holding) < len(average.members):
                self.average = None
        in_order = sorted(self.here, key=lambda island: (self.since[island.name], island.name))
        if not self.has_state:
            first = max(in_order, key=lambda island: island.whole)  # of several, the first
            self.has_state = {first}
            self.tell([first], "train", first.whole)
        self.transfers = [each for each in self.transfers if each.giver in self.has_state and each.taker in self.here
                          and each.given and each.taker.taking is each and each.taker not in self.has_state]
        giver = next(island for island in in_order if island in self.has_state)
        for taker in in_order:
            if taker not in self.has_state and all(each.taker is not taker for each in self.transfers):
                self.transfers.append(transfer := Transfer(giver, taker))
                self.tell([giver], "give", transfer)
                self.tell([taker], "take", transfer)

    @invariant()
    def accounts_are_of_what_is_in_the_parameters(self):
        for island in self.here + self.left_out:
            if island.trains:
                trained = island.accounts.checkpoint()
                assert +(island.anchor + island.gain) == samples_of(trained), island.name

    def teardown(self):
        """From now on nobody goes: all is trained once."""
        random = Random(0)
        while self.left_out:
            self.come(self.left_out.pop())
        for _ in range(1000):
            for island in self.here:
                while island.queue:
                    island.proceed()
                if island.trains:
                    island.step(1)
                self.comes(random)
            self.land()
            self.train_those_that_have_taken()
            if self.settled and self.average is None:
                if all(island.trains and not island.queue for island in self.here):
                    ended = all(island.accounts.all_trained() for island in self.here)
                    if ended and (len(self.here) == 1 or not any(+island.gain for island in self.here)):
                        break
                    self.begin()
        once = samples_of({chunk: ORDER.size(chunk) for chunk in range(ORDER.chunks)})
        for island in self.here:
            assert +(island.anchor + island.gain) == once, island.name


TestWorld = World.TestCase
TestWorld.settings = settings(max_examples=100, stateful_step_count=20, deadline=None)


def all_train(*names):
    """A world in which these islands train, and {name: island}."""
    world = World()
    for name in names[2:]:
        world.come(Island(name, world))
    caught_up(world)
    return world, {island.name: island for island in world.here}


def caught_up(world):
    while not all(island.trains and not island.queue for island in world.here):
        for island in world.here:
            while island.queue:
                island.proceed()
        world.comes(Random(0))
        world.train_those_that_have_taken()


def test_a_chunk_is_not_dealt_again_while_an_average_under_way_may_hold_it():
    world, of = all_train("a", "b", "c")
    of["a"].step(ORDER.chunk)
    world.begin()
    for island in of.values():
        island.proceed()
    world.land()
    of["c"].proceed()  # has landed it
    world.kill(of["a"])
    of["b"].queue.pop(0)  # has not heard that it may land it
    of["b"].proceed()
    assert "a" not in of["b"].since and of["b"].under_way
    assert [of["b"].accounts.next() for _ in range(2)] == [1, 1]  # it knows whose the first is when it asks again
    caught_up(world)
    assert [of["b"].accounts.trained(chunk) for chunk in (0, 1)] == [ORDER.chunk, 0]


def test_what_an_island_had_trained_since_the_last_average_is_dealt_again_from_there():
    world, of = all_train("a", "b")
    of["b"].step(1)
    world.begin()
    caught_up(world)
    world.land()
    caught_up(world)
    of["b"].step(1)
    assert of["a"].accounts.next() == 1  # the other's is its own
    world.kill(of["b"])
    caught_up(world)
    assert of["a"].accounts.next() == 0 and of["a"].accounts.trained(0) == ORDER.ranks


def test_an_island_that_was_left_out_takes_nothing_from_one_that_it_does_not_know():
    world, of = all_train("a", "b")
    world.leave_out(of["b"])
    newcomer = Island("c", world)
    world.come(newcomer)
    caught_up(world)
    newcomer.step(1)
    assert newcomer.chunk == 0
    assert [of["b"].accounts.next() for _ in range(2)] == [1, 1]


def test_what_was_dealt_to_an_island_that_then_took_the_state_is_still_its():
    world, of = all_train("a", "b")
    world.leave_out(of["b"])
    of["b"].step(1)
    world.come(world.left_out.pop())
    of["b"].proceed()
    assert of["b"].trains and of["b"].since["b"] == of["b"].epoch  # it knows that it is back, and trains on with what it had
    of["b"].step(2)
    caught_up(world)
    assert of["a"].accounts.next() == 1
    assert of["b"].chunk is None and of["b"].accounts.next() == 0 and of["b"].accounts.trained(0) == 0


@pytest.mark.parametrize("how, said", [({"in_lockstep": True, "fragments": 1}, "average parameters"),
                                       ({"in_lockstep": False, "fragments": 2}, "wrap(between={'fragments': 1})")])
def test_islands_that_average_otherwise_are_refused(how, said):
    with pytest.raises(ValueError) as error:
        Samples(range(8), 1, 2, SimpleNamespace(**how), "nowhere:1")
    assert said in str(error.value)


def test_islands_of_different_data_are_refused():
    world, of = all_train("a", "b")
    other = Accounts(world.ledger, of["a"], Order(samples=40, chunk=6, epochs=8, seed=3, ranks=2))
    with pytest.raises(ValueError, match="give all the same data set"):
        other.load_state_dict(of["b"].accounts.state_dict())


def test_all_begin_again_from_a_checkpoint():
    _, of = all_train("a", "b")
    of["a"].step(ORDER.chunk)
    of["a"].step(1)
    kept = of["a"].accounts.checkpoint()
    world = World()
    again = Accounts(world.ledger, of["a"], ORDER, kept)
    assert again.next() == 1 and again.trained(1) == ORDER.ranks and again.checkpoint() == kept


@pytest.mark.parametrize("samples, ranks_", [(21, 2), (24, 4), (7, 7)])
def test_an_epoch_has_each_sample_once_but_for_those_that_ranks_cannot_share(samples, ranks_):
    order = Order(samples=samples, chunk=2 * ranks_, epochs=3, seed=1, ranks=ranks_)
    chunks = [order.of(chunk) for chunk in range(order.chunks)]
    assert all(len(chunk) == order.size(at) and len(chunk) % ranks_ == 0 for at, chunk in enumerate(chunks))
    in_epoch = len(chunks) // 3
    for epoch in range(3):
        found = Counter(sum(chunks[epoch * in_epoch:(epoch + 1) * in_epoch], []))
        assert set(found.values()) == {1} and len(found) == samples - samples % ranks_
    with pytest.raises(ValueError, match="multiple of the island's"):
        Order(samples=samples, chunk=2 * ranks_ + 1, epochs=1, seed=1, ranks=ranks_)


class Served:
    """A ledger's process."""

    def __init__(self, folder):
        self.file, self.address = f"{folder}/ledger.sqlite", "127.0.0.1:0"
        self.start()

    def start(self):
        command = [sys.executable, ROOT / "examples/islands/sampler.py", "--listen", self.address, "--file", self.file]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True,
                                        env=os.environ | {"PYTHONPATH": str(ROOT / "python")})
        self.address = self.process.stdout.readline().split()[-1]

    def end(self):
        self.process.kill()
        self.process.wait()


@pytest.fixture
def served(tmp_path):
    served = Served(tmp_path)
    yield served
    served.end()


def test_a_ledger_dies_and_comes_again(served):
    ledger = RemoteLedger(served.address)
    assert ledger.compare_set("key", "", "a") == "a" and ledger.compare_set("key", "", "b") == "a"
    served.end()
    answers = []
    asks = threading.Thread(target=lambda: answers.append(ledger.compare_set("key", "a", "c")))
    asks.start()
    served.start()
    asks.join()
    assert answers == ["c"] and ledger.get("key") == "c" and ledger.get("other") == ""
    served.end()
    with pytest.raises(RuntimeError, match="no ledger has answered at .* with the file that it had"):
        RemoteLedger(served.address, patience_s=0.0)
    os.remove(served.file)
    served.start()
    with pytest.raises(RuntimeError, match="another one than before.*from a checkpoint"):
        ledger.get("key")


def test_a_ledger_that_fails_is_waited_for(served):
    ledger = RemoteLedger(served.address)
    with contextlib.closing(sqlite3.connect(served.file, isolation_level=None, check_same_thread=False)) as file:
        file.execute("ALTER TABLE entries RENAME TO gone")  # as where its disk is full: it lives, and each request fails
        with pytest.raises(RuntimeError, match="no ledger has answered at .*no such table"):
            RemoteLedger(served.address, patience_s=0.0)
        mends = threading.Timer(0.3, file.execute, ["ALTER TABLE gone RENAME TO entries"])
        mends.start()
        assert ledger.set("key", "a") == "a" == ledger.get("key")
        mends.join()


NUMBER, CHUNK, EPOCHS = 120, 12, 3


class Counts(nn.Module):
    """One step of SGD with a rate of 1 adds 1 for each sample."""

    def __init__(self, ranks_):
        super().__init__()
        self.counts = nn.Parameter(torch.zeros(NUMBER))
        self.ranks = ranks_

    def forward(self, samples):
        return -self.counts[samples].sum() * self.ranks


def counter(number, given, ledger, size):
    """(island `number`'s model of the counts of samples, its optimizer, its samples)."""
    import gradweave

    model = Counts(size)
    if size > 1:
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    model, optimizer = gradweave.wrap(model, optimizer, **given, island=f"island{number}", timeout=60.0, report=False,
                                      between={"period": 3, "compressor": "none"})
    return model, optimizer, Samples(range(NUMBER), batch_size=2, chunk=CHUNK, islands=model.gradweave.islands, ledger=ledger,
                                     epochs=EPOCHS)


def train(model, optimizer, batch):
    optimizer.zero_grad()
    model(batch).backward()
    optimizer.step()
    time.sleep(0.01)


def counted(model):
    """What the island ends with."""
    import gradweave

    islands = model.gradweave.islands
    gradweave.finish(model)
    found = {"counts": next(model.parameters()).detach().clone(), "last": islands.last_average, "with": islands.finished_with}
    model.gradweave.close()
    return found


def counting(rank, number, given, ledger, size, folder, comes_again=False):
    """Trains the counts of samples; in the middle it waits for the file `again`, which one that comes again makes."""
    model, optimizer, samples = counter(number, given, ledger, size)
    islands, again = model.gradweave.islands, Path(folder) / "again"
    while not comes_again and not agreed(islands.workers == 3):  # one that is alone would train what no average has
        islands.wait()
    before = islands.averages
    for step, batch in enumerate(samples):
        train(model, optimizer, batch)
        if comes_again and step == 3:
            again.touch()
        if islands.averages >= before + 3:
            Path(os.environ["JOB_FOLDER"], f"averaged{rank}").touch()
        while islands.averages > before + 3 and not agreed(again.exists()):
            islands.wait()
    return counted(model)


def first_alone(rank, number, given, ledger):
    """Island 1 trains until another one has come, then on. "alone": {chunk: samples of it} that became the state before."""
    model, optimizer, samples = counter(number, given, ledger, 1)
    islands, alone = model.gradweave.islands, {}
    islands.on_keep(lambda: alone.update(samples.checkpoint()))
    for step, batch in enumerate(samples):
        train(model, optimizer, batch)
        if step == 10:
            Path(os.environ["JOB_FOLDER"], "trained").touch()
        while step == 40 and islands.workers == 1:
            islands.wait()
    return counted(model) | {"alone": alone}


def expected_of(ledger, order, last, alone):
    """What each sample's count has to be, by a ledger's file: an average adds for each sample its island's share. `alone`:
    {chunk: samples of it} that were trained before."""
    with contextlib.closing(sqlite3.connect(ledger)) as file:
        found = file.execute("SELECT * FROM entries WHERE key LIKE '% average %'").fetchall()
        entries = {key.split(" ", 1)[1]: json.loads(value) for key, value in found}
    landed = []
    while last:
        # One that came late has the first averages in the state that it took.
        entry = next(entry for key, entry in entries.items() if key.startswith(f"average {last} "))
        landed.append([entries[f"average {last} {each}"]["trained"] for each in entry["islands"]])
        last = entry["before"]
    counts, kept = torch.zeros(NUMBER), dict(alone)
    for chunk, to in alone.items():
        for sample in order.of(chunk)[:to]:
            counts[sample] += 1
    for of_islands in reversed(landed):
        gained = [[sample for chunk, to in trained for sample in order.of(chunk)[kept.get(chunk, 0):to]]
                  for trained in of_islands]
        total = sum(map(len, gained))
        for samples in gained:
            for sample in samples:
                counts[sample] += len(samples) / total
        for trained in of_islands:
            kept.update(trained)
    assert kept == {chunk: order.size(chunk) for chunk in range(order.chunks)}
    return counts


@pytest.mark.parametrize("size", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_each_sample_counts_once_though_an_island_is_killed_and_comes_back(served, meeting, tmp_path, size):
    told = {"given": meeting.given, "ledger": served.address, "size": size, "folder": str(tmp_path)}
    jobs = [ranks.start(counting, size, number=number, **told) for number in (1, 2, 3)]
    jobs[2].wait_for_file("averaged0")
    for process in jobs[2].processes:
        process.send_signal(signal.SIGKILL)
    jobs[2].end()
    served.end()
    served.start()
    jobs[2] = ranks.start(counting, size, number=3, comes_again=True, **told)
    found = [each for job in jobs for each in job.results()]
    expected = expected_of(served.file, Order(NUMBER, CHUNK, EPOCHS, 0, size), found[0]["last"], alone={})
    for each in found:
        assert each["with"] == ["island1", "island2", "island3"]
        assert torch.equal(each["counts"], found[0]["counts"])
        torch.testing.assert_close(each["counts"], expected)


def test_what_an_island_trained_before_others_came_counts_once(served, meeting):
    told = {"given": meeting.given, "ledger": served.address}
    first = ranks.start(first_alone, 1, number=1, **told)
    first.wait_for_file("trained")
    second = ranks.start(first_alone, 1, number=2, **told)
    found = [*first.results(), *second.results()]
    alone = found[0]["alone"]
    assert sum(alone.values()) > 20 and not found[1]["alone"]
    expected = expected_of(served.file, Order(NUMBER, CHUNK, EPOCHS, 0, 1), found[0]["last"], alone)
    for each in found:
        assert each["with"] == ["island1", "island2"]
        assert torch.equal(each["counts"], found[0]["counts"])
        torch.testing.assert_close(each["counts"], expected)
