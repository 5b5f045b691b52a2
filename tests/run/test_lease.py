"""One process at a time works in a folder: on one machine by what the kernel knows, on several by the files alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from grpolab.run import lease as lease_module
from grpolab.run.lease import BEAT_SECONDS, HERE, LEASE_SECONDS, WATCH_SECONDS, Host, Lease, LeaseLost, is_taken, leased


class Node(Host):
    """A machine of its own, on a clock of the file system's that all of them share and the test sets."""

    clock = 1_000_000.0

    def __init__(self, name: str, ahead: float = 0.0) -> None:
        super().__init__()
        self.name, self.ahead = name, ahead

    def holder(self) -> dict:
        return super().holder() | {"host": self.name}

    def lives(self, holder: dict) -> bool | None:
        return None if holder["host"] != self.name else holder["token"] in self.held

    def now(self) -> float:
        return Node.clock - 999_000

    def file_time(self, folder: Path) -> float:
        return Node.clock + self.ahead

    def touch(self, file: Path) -> None:
        os.utime(file, (Node.clock + self.ahead,) * 2)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(Node, "clock", 1_000_000.0)
    return tmp_path / "run"


def take(folder: Path, node: Host) -> Lease:
    lease = Lease(folder, node)
    assert lease.attempt()
    if isinstance(node, Node):
        lease.beat()
    return lease


def beat_on(first: Lease, second: Lease) -> None:
    """The first node goes on for long, and the second never gets the folder."""
    for _ in range(100):
        Node.clock += BEAT_SECONDS
        first.beat()
        assert not second.attempt()
        assert first.host.ahead or is_taken(first.folder, Node("c"))


def waits_until_taken(lease: Lease) -> float:
    """Seconds until an attempt succeeds, one a second."""
    start = Node.clock
    while not lease.attempt():
        Node.clock += 1
        assert Node.clock < start + 10_000
    return Node.clock - start


def test_of_eight_nodes_that_come_at_the_same_moment_one_gets_the_folder(folder: Path) -> None:
    barrier = threading.Barrier(8)

    def come(number: int) -> Lease | None:
        lease = Lease(folder, Node(str(number)))
        barrier.wait()
        return lease if lease.attempt() else None

    with ThreadPoolExecutor(8) as pool:
        for _ in range(20):
            (winner,) = filter(None, pool.map(come, range(8)))
            winner.release()


def test_a_node_that_died_is_followed_after_its_lease_and_one_that_lives_never(folder: Path) -> None:
    first, second = take(folder, Node("a")), Lease(folder, Node("b"))
    beat_on(first, second)
    assert LEASE_SECONDS <= waits_until_taken(second) <= LEASE_SECONDS + WATCH_SECONDS + 1


@pytest.mark.parametrize("ahead", [-1200.0, -60.0, 60.0, 1200.0])
def test_a_node_whose_clock_is_off_keeps_its_folder_and_loses_it_when_it_dies(folder: Path, ahead: float) -> None:
    """On a file system that takes its times from the machines."""
    first, second = take(folder, Node("a", ahead)), Lease(folder, Node("b"))
    beat_on(first, second)
    assert waits_until_taken(second) <= 2 * LEASE_SECONDS + WATCH_SECONDS + 1


def test_a_node_that_was_frozen_notices_before_it_writes(folder: Path) -> None:
    frozen, second = take(folder, Node("a")), Lease(folder, Node("b"))
    waits_until_taken(second)
    with pytest.raises(LeaseLost, match="taken over"):
        frozen.check()
    with pytest.raises(LeaseLost):
        frozen.beat()
    frozen.release()
    second.check()
    second.release()
    third = take(folder, Node("c"))
    with pytest.raises(LeaseLost):
        frozen.check()
    third.check()


def test_a_file_system_that_stood_still_ends_no_lease(folder: Path) -> None:
    first, second = take(folder, Node("a")), Lease(folder, Node("b"))
    Node.clock += 10 * LEASE_SECONDS  # nobody could write
    assert not second.attempt()
    Node.clock += BEAT_SECONDS
    first.beat()
    Node.clock += WATCH_SECONDS
    assert not second.attempt()


def test_a_process_of_this_machine_is_seen_to_live_or_to_be_dead(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it was silent, and also where the clock is set: that moves its start and the machine's alike."""
    code = f"from pathlib import Path; from grpolab.run.lease import Lease; Lease(Path({str(folder)!r})).attempt()"
    child = subprocess.Popen([sys.executable, "-c", code + "; print(1); input()"], stdin=-1, stdout=-1, text=True)
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == "1\n"
        os.utime(folder / ".lease-1", (0, 0))
        assert is_taken(folder)
        assert not Lease(folder).attempt()
        booted = psutil.boot_time()
        monkeypatch.setattr(psutil._psplatform, "boot_time", lambda: booted - 3600)
        assert is_taken(folder)
        child.kill()
        child.wait()
    assert not is_taken(folder)
    take(folder, HERE).release()


@pytest.mark.parametrize(
    ("key", "value", "taken"),
    [
        ("process_start", -100.0, False),  # another process has its number now
        ("boot", "before", False),  # the machine was started again
        ("processes", "container", True),  # its process cannot be seen
        ("machine", "twin", True),  # another machine of that name
    ],
)
def test_whose_process_cannot_be_looked_at_counts_by_its_touches(
    folder: Path, key: str, value: object, taken: bool
) -> None:
    take(folder, HERE)
    file = folder / ".lease-1"
    file.write_text(json.dumps({**json.loads(file.read_text()), "pid": os.getppid(), key: value}))
    assert is_taken(folder) == taken
    os.utime(file, (time.time() - LEASE_SECONDS - 1,) * 2)
    assert not is_taken(folder)


def test_it_beats_until_it_is_released(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_module, "BEAT_SECONDS", 0.01)
    with leased(folder):
        file = folder / ".lease-1"
        os.utime(file, (0, 0))
        deadline = time.monotonic() + 10
        while not file.stat().st_mtime:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    os.utime(file, (0, 0))
    time.sleep(0.05)
    assert not file.stat().st_mtime


def test_a_folder_in_use_is_waited_for(folder: Path) -> None:
    order: list[str] = []

    def other() -> None:
        with leased(folder):
            order.append("second")

    with ThreadPoolExecutor(1) as pool, leased(folder):
        pool.submit(other)
        time.sleep(0.2)
        order.append("first")
    assert order == ["first", "second"]


def test_without_hard_links_still_one_gets_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    take(folder, Node("a")).check()
    assert not Lease(folder, Node("b")).attempt()
    assert [file.name for file in folder.iterdir()] == [".lease-1"]


def test_an_answer_that_was_lost_is_not_taken_for_a_refusal(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = os.link
    monkeypatch.setattr(os, "link", lambda *paths: (link(*paths), link(*paths)))  # asked again, as NFS does
    take(folder, Node("a")).check()


@pytest.mark.parametrize("name", ["x", "", "1.5", "-1", "0", "٣", "²", "1_0", "9" * 30])
def test_a_file_with_another_name_is_no_lease(folder: Path, name: str) -> None:
    folder.mkdir()
    (folder / f".lease-{name}").write_text("{}")
    assert not is_taken(folder)
    assert take(folder, HERE)._file.name == ".lease-1"


ODD = ({"pid": "x"}, {"pid": -1}, {"pid": 2**70}, {"process_start": "x"}, {"token": []}, {"pid": None})
NAMES_NOBODY = [
    *("", "[]", "3", "null", "[1]", '"x"', '{"a": 1}', "\0", "[" * 100_000, "9" * 5000),
    *(json.dumps({**HERE.holder(), **odd}) for odd in ODD),
    json.dumps({key: value for key, value in HERE.holder().items() if key != "boot"}),
]


@pytest.mark.parametrize("content", NAMES_NOBODY)
def test_a_lease_that_names_nobody_counts_by_its_age(folder: Path, content: str) -> None:
    """As one that a power cut has eaten: somebody may be there."""
    folder.mkdir()
    (folder / ".lease-1").write_text(content)
    assert is_taken(folder)
    assert not Lease(folder).attempt()
    lease_module.end_of_session(folder, "x")
    os.utime(folder / ".lease-1", (0, 0))
    assert not is_taken(folder)


@pytest.mark.parametrize("odd", ["link", "loop", "folder", "pipe"])
def test_what_is_no_file_is_no_lease_and_nothing_is_written_through_it(folder: Path, odd: str) -> None:
    folder.mkdir()
    place, other = folder / ".lease-4", folder.parent / "other"
    other.write_text("precious")
    if odd == "folder":
        place.mkdir()
    elif odd == "pipe":
        os.mkfifo(place)
        os.utime(place, (0, 0))  # it is empty, so that it counts by its age, and by being watched
    else:
        place.symlink_to(other if odd == "link" else place.name)
    assert not is_taken(folder)
    lease_module.end_of_session(folder, "x")
    waits_until_taken(Lease(folder, Node("a")))
    assert other.read_text() == "precious"
