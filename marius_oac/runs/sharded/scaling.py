"""Another number of trainers in the middle of a run: the files by which a command asks the run for it.

trainers.json   written by the first process while such a run trains: who it is, how many train, what it answered
scale.json      written by the command: how many are wanted
"""

from __future__ import annotations

import os
import secrets
import threading
from dataclasses import dataclass
from pathlib import Path

import psutil

from marius_oac.errors import InputError
from marius_oac.runs.sharded.in_memory import Held
from marius_oac.runtime.files.atomic import json_text, remove_file, write_atomically
from marius_oac.runtime.files.untrusted import Described, parse_json, read_if_there

STATE, REQUEST = "trainers.json", "scale.json"
_LOOK = 0.2  # seconds between two looks at the answer


@dataclass(frozen=True)
class Change:
    """What the first process has decided.

    Attributes:
        trainers: how many go on; those of the present ones with a lower rank stay.
        start: under this name they find each other.
        joining: how many start.
        in_memory: whether these can read the memory of the others.
    """

    trainers: int
    start: str
    joining: int
    in_memory: bool


class TrainersChange(Exception):
    """Ends a training loop at a batch boundary: another number of trainers goes on.

    Attributes:
        change: see there.
        held: what they go on from; None: a checkpoint on disk.
    """

    def __init__(self, change: Change, held: Held | None = None):
        super().__init__(f"{change.trainers} trainers go on")
        self.change, self.held = change, held


class Request(Described):
    """How many trainers are wanted, and what the answer is known by."""

    trainers: int
    token: str


class State(Described):
    """Who trains.

    Attributes:
        trainers, most: how many, and at most.
        pid, started: the first process.
        answered: the token of the last request that was answered, and what was `said`; `failed`: nothing has changed.
    """

    trainers: int
    most: int
    pid: int
    started: float
    answered: str = ""
    said: str = ""
    failed: bool = False

    @property
    def alive(self) -> bool:
        """Whether the first process is there."""
        try:
            return psutil.Process(self.pid).create_time() == self.started
        except psutil.NoSuchProcess:
            return False


def read_state(run: Path) -> State | None:
    """Who trains in a run's folder; None: nobody who can be asked."""
    content = read_if_there(run / STATE)
    state = None if content is None else parse_json(content, run / STATE, State)
    return state if state and state.alive else None


def write_state(run: Path, trainers: int, most: int, answered: str = "", said: str = "", failed: bool = False) -> None:
    """Writes that this process is the first one, and its last answer."""
    me = psutil.Process()
    about = State(
        trainers=trainers, most=most, pid=me.pid, started=me.create_time(), answered=answered, said=said, failed=failed
    )
    write_atomically(run / STATE, json_text(about.model_dump()))


def read_request(run: Path) -> Request | None:
    """The request that waits, if any; one that is no request is taken away."""
    try:
        content = read_if_there(run / REQUEST)
        return None if content is None else parse_json(content, run / REQUEST, Request)
    except InputError:
        remove_file(run / REQUEST)
        return None


def write_request(run: Path, trainers: int) -> str:
    """Asks for that many trainers; returns the request's token."""
    token = secrets.token_hex(8)
    write_atomically(run / REQUEST, json_text(Request(trainers=trainers, token=token).model_dump()))
    return token


def remove_request(run: Path, token: str) -> None:
    """Removes a request whose answer has been written; a later one stays."""
    request = read_request(run)
    if request is not None and request.token == token:
        remove_file(run / REQUEST)


def remove_files(run: Path) -> None:
    """Removes both files: nobody trains any more, or has not begun."""
    for name in (STATE, REQUEST):
        if os.path.lexists(run / name):
            remove_file(run / name)


def scale(run: Path, trainers: int) -> str:
    """Has a run that trains on this machine go on with another number of trainers; returns its answer when it does.

    Raises:
        InputError: nobody trains there who can be asked, or the run can't do so.
    """
    if (state := read_state(run)) is None:
        raise InputError("no run that can be scaled trains here; it needs nodes.parts and --local-nodes", run)
    if not 1 <= trainers <= state.most:
        raise InputError(f"1 to {state.most} trainers, as nodes.parts says, not {trainers}", str(trainers))
    if os.path.lexists(run / REQUEST):
        raise InputError("another number of trainers has been asked for and is not there yet", run)
    token, pause = write_request(run, trainers), threading.Event()
    while True:
        waiting = read_request(run)
        if (state := read_state(run)) is None:
            raise InputError("the run has ended", run)
        if state.answered == token:
            if state.failed:
                raise InputError(state.said, run)
            return state.said
        if waiting is None or waiting.token != token:  # it is removed after its answer is written
            raise InputError("another request has taken the place of this one", run)
        pause.wait(_LOOK)
