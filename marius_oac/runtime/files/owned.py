"""Folders in which nobody else can write: what lies there may be executed or unpickled."""

from __future__ import annotations

import functools
import grp
import os
import pwd
import stat
from pathlib import Path


def exchangeable(folder: Path) -> str | None:
    """Why what lies in a folder, which need not be there yet, may be another one's than this user's; None: it is not.

    Only this user and root may write to it, and exchange a folder above it. A group counts as this user where it has
    the user's name and no other members, as systems make one for each user, and as root where it is root's. A relative
    path names another folder wherever a program is called.
    """
    if not folder.is_absolute():
        return "its path is not absolute"
    for path in dict.fromkeys((folder, Path(os.path.realpath(folder)))):
        for each in (path, *path.parents):
            try:
                found = os.stat(each)
            except FileNotFoundError:
                continue
            except OSError as error:
                return f"{each}: {error.strerror}"
            if found.st_uid not in (0, os.geteuid()):
                return f"{each} is another user's"
            # In a folder such as /tmp others can't exchange what they have not made.
            if _others_write(found) and (each == path or not found.st_mode & stat.S_ISVTX):
                return f"others may write to {each}"
    return None


def _others_write(found: os.stat_result) -> bool:
    return bool(found.st_mode & stat.S_IWOTH or (found.st_mode & stat.S_IWGRP and not _is_own(found.st_gid)))


@functools.cache
def _is_own(group: int) -> bool:
    try:
        found, name = grp.getgrgid(group), pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return group == 0
    return group == 0 or (found.gr_name == name and {*found.gr_mem} <= {name})
