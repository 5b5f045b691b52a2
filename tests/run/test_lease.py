"""One process at a time works in a folder: on one machine by what the kernel knows, on several by the files alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
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


def waits_until_taken(lease: Lease) -> float:
    """Seconds until an attempt succeeds, one a second."""
    start = Node.clock
    while not lease.attempt():
        Node.clock += 1
        assert Node.clock < start + 10_000
    return Node.clock - start


def test_of_two_nodes_that_come_at_the_same_moment_one_gets_the_folder(folder: Path) -> None:
    for _ in range(20):
        barrier, won = threading.Barrier(8), list[Lease]()

        def come(barrier: threading.Barrier = barrier, won: list[Lease] = won) -> None:
            lease = Lease(folder, Node(str(threading.get_ident())))
            barrier.wait()
            if lease.attempt():
                won.append(lease)

        threads = [threading.Thread(target=come) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1
        won[0].release()


def test_a_node_that_died_is_followed_after_its_lease_and_one_that_lives_never(folder: Path) -> None:
    first, second = take(folder, Node("a")), Lease(folder, Node("b"))
    for _ in range(100):
        Node.clock += BEAT_SECONDS
        first.beat()
        assert not second.attempt()
        assert is_taken(folder, Node("c"))
    assert LEASE_SECONDS <= waits_until_taken(second) <= LEASE_SECONDS + WATCH_SECONDS + 1


def test_a_node_that_was_frozen_notices_before_it_writes(folder: Path) -> None:
    frozen = take(folder, Node("a"))
    second = Lease(folder, Node("b"))
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


@pytest.mark.parametrize("ahead", [-1200.0, -60.0, 60.0, 1200.0])
def test_a_node_whose_clock_is_off_keeps_its_folder_and_loses_it_when_it_dies(folder: Path, ahead: float) -> None:
    """On a file system that takes its times from the machines."""
    first, second = take(folder, Node("a", ahead)), Lease(folder, Node("b"))
    for _ in range(100):
        Node.clock += BEAT_SECONDS
        first.beat()
        assert not second.attempt()
    assert waits_until_taken(second) <= 2 * LEASE_SECONDS + WATCH_SECONDS + 1


def test_a_file_system_that_stood_still_ends_no_lease(folder: Path) -> None:
    first, second = take(folder, Node("a")), Lease(folder, Node("b"))
    Node.clock += 10 * LEASE_SECONDS  # nobody could write
    assert not second.attempt()
    Node.clock += BEAT_SECONDS
    first.beat()
    Node.clock += WATCH_SECONDS
    assert not second.attempt()


def test_a_process_of_this_machine_is_seen_to_live_or_to_be_dead(folder: Path) -> None:
    code = (
        f"from pathlib import Path; from grpolab.run.lease import Lease; print(Lease(Path({str(folder)!r})).attempt())"
    )
    with subprocess.Popen([sys.executable, "-c", code + "; input()"], stdin=-1, stdout=-1, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "True\n"
        os.utime(folder / ".lease-1", (0, 0))  # however long it was silent
        assert is_taken(folder)
        assert not Lease(folder).attempt()
        child.kill()
        child.wait()
    assert not is_taken(folder)
    take(folder, HERE).release()


@pytest.mark.parametrize(
    ("key", "value", "taken"),
    [
        ("process_start", -1.0, False),  # another process has its number now
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


def test_a_clock_that_is_set_does_not_kill_the_owner(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system counts a process's start from the machine's, and moves both when its clock is set."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        start = psutil.Process(child.pid).create_time() - psutil.boot_time()
        folder.mkdir()
        holder = HERE.holder() | {"pid": child.pid, "process_start": start}
        (folder / ".lease-1").write_text(json.dumps(holder))
        booted = psutil.boot_time()
        monkeypatch.setattr(psutil._psplatform, "boot_time", lambda: booted - 3600)
        assert is_taken(folder)
        child.kill()


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


def test_without_hard_links_still_one_gets_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    take(folder, Node("a")).check()
    assert not Lease(folder, Node("b")).attempt()
    assert [file.name for file in folder.iterdir()] == [".lease-1"]


def test_an_answer_that_was_lost_is_not_taken_for_a_refusal(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = os.link

    def lose_answer(source: Path, target: Path) -> None:
        link(source, target)
        link(source, target)  # the client asks again, as NFS does

    monkeypatch.setattr(os, "link", lose_answer)
    take(folder, Node("a")).check()


@pytest.mark.parametrize("name", ["x", "", "1.5", "-1", "0", "٣", "²", "1_0", "9" * 30])
def test_a_file_with_another_name_is_no_lease(folder: Path, name: str) -> None:
    folder.mkdir()
    (folder / f".lease-{name}").write_text("{}")
    assert not is_taken(folder)
    assert take(folder, HERE)._file.name == ".lease-1"


@pytest.mark.parametrize(
    "content",
    [
        *("", "[]", "3", "null", "[1]", '"x"', '{"a": 1}', "\0", "[" * 100_000, "9" * 5000),
        *(
            json.dumps({**HERE.holder(), **odd})
            for odd in ({"pid": "x"}, {"pid": -1}, {"pid": 2**70}, {"process_start": "x"}, {"token": []}, {"pid": None})
        ),
        json.dumps({key: value for key, value in HERE.holder().items() if key != "boot"}),
    ],
)
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
    lease = Lease(folder, Node("a"))
    waits_until_taken(lease)
    assert other.read_text() == "precious"
