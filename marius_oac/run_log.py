"""Which files of a click log a run trains on: legs of its road, in the order in which they were given.

`log.json` in the run's folder:

    files    path, format, rows and fingerprint of each, in order; the files of one leg stand together
    legs     how many files each has, how often they are passed over, whether each file ends an epoch

Files that have been passed over are needed no more: yesterday's may be gone when today's is trained on.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from marius_oac.config_ctr import CtrConfig
from marius_oac.data.log_batches import Leg, LogRoad
from marius_oac.data.log_files import LogFile, LogFiles, natural_order
from marius_oac.errors import CheckpointError, InputError

LOG = "log.json"


@dataclass(frozen=True)
class RunLog:
    """Files and legs of one run."""

    files: tuple[LogFile, ...] = ()
    legs: tuple[Leg, ...] = ()

    @classmethod
    def start(cls, config: CtrConfig) -> RunLog:
        """The road of a new run. Raises InputError where a file is missing or can't be trained on."""
        return cls().extended(config, config.data.train)

    def extended(self, config: CtrConfig, patterns: Sequence[str]) -> RunLog:
        """One leg more, over the files of `patterns`.

        Raises:
            InputError: a file is missing, can't be trained on, or has been trained on already; or in a progressive run
                files of one folder are not in the order of their names.
        """
        found = LogFiles.scan(patterns, config.data).files
        known = {file.fingerprint: file for file in self.files}
        for file in found:
            if file.fingerprint in known:
                raise InputError(f"has been trained on already, as {known[file.fingerprint].path}", file.path)
        if config.training.progressive:
            _check_order((*self.files[-1:], *found))
        first, training = len(self.files), config.training
        by_file = training.progressive or config.keys.drop_after > 0
        leg = Leg(first, first + len(found), training.epochs, by_file)
        return RunLog((*self.files, *found), (*self.legs, leg))

    def with_epochs(self, epochs: int) -> RunLog:
        """The same with another number of passes over the last leg."""
        return replace(self, legs=(*self.legs[:-1], replace(self.legs[-1], passes=epochs)))

    @classmethod
    def read(cls, folder: Path) -> RunLog:
        """Raises CheckpointError where it is missing or damaged."""
        path = folder / LOG
        try:
            return cls.parse(path.read_text("utf-8"), path)
        except OSError as error:
            raise CheckpointError(error.strerror.lower(), path) from None

    @classmethod
    def parse(cls, text: str, path: Path) -> RunLog:
        """What `dump` gave. Raises CheckpointError where it is damaged."""
        try:
            content = json.loads(text)
            files = tuple(LogFile(**{**each, "path": Path(each["path"])}) for each in content["files"])
            return cls(files, tuple(Leg(**each) for each in content["legs"]))
        except (ValueError, KeyError, TypeError):
            raise CheckpointError("is damaged", path) from None

    def dump(self) -> str:
        """The text of `log.json`."""
        files = [{**asdict(file), "path": str(file.path)} for file in self.files]
        return json.dumps({"files": files, "legs": [asdict(leg) for leg in self.legs]}, indent=1) + "\n"

    def road(self, batch_size: int) -> LogRoad:
        return LogRoad(self.files, self.legs, batch_size)

    def check_files(self, config: CtrConfig, sequence: int) -> None:
        """Raises CheckpointError where a file that batches from `sequence` on need is missing or has changed."""
        road = self.road(config.training.batch_size)
        needed = {file for _, file in road.visits[road.visit(sequence) :]} if sequence < road.ends[-1] else set()
        for number in sorted(needed):
            file = self.files[number]
            (found,) = LogFiles.scan([str(file.path)], config.data).files
            if found.fingerprint != file.fingerprint:
                raise CheckpointError("has changed since the run began", file.path)


def _check_order(files: Sequence[LogFile]) -> None:
    """A model that has seen tomorrow predicts today too well."""
    for before, after in itertools.pairwise(files):
        same_folder = before.path.resolve().parent == after.path.resolve().parent
        if same_folder and natural_order(after.path.name) < natural_order(before.path.name):
            raise InputError(f"comes after {before.path.name}: a progressive run takes files in order", after.path)
