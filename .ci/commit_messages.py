#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the messages of the commits since the newest tag, or where there is none since the rules began: a subject of at most 72
characters without ";", an empty line, and a body that says why. Merges are left out. Exit status 77 where git or the history that it
needs is missing, as in a shallow clone or an archive."""
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
BEGAN = "2f405b1"  # the last commit that these rules did not hold for
LONGEST = 72


def git(*arguments):
    try:
        done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True)
    except FileNotFoundError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def wrong_in(message):
    subject, _, rest = message.partition("\n")
    if len(subject) > LONGEST:
        yield f"the subject has {len(subject)} characters, more than {LONGEST}"
    if ";" in subject:
        yield "the subject has a ';': one commit is one change"
    if rest and not rest.startswith("\n"):
        yield "the line after the subject is not empty"
    if not rest.strip():
        yield "there is no body that says why"


def main():
    since = git("describe", "--tags", "--abbrev=0") or BEGAN
    messages = git("log", "--no-merges", "-z", "--format=%h %B", f"{since}..HEAD")
    if messages is None or git("merge-base", "--is-ancestor", since, "HEAD") is None:
        print(f"SKIPPED: the history since {since} is not here")
        return 77
    commits = [each.strip() for each in messages.split("\0") if each.strip()]
    wrong = [(each.split()[0], each.split("\n")[0], what) for each in commits for what in wrong_in(each.partition(" ")[2])]
    for commit, line, what in wrong:
        print(f"{line}\n  {commit}: {what}")
    print(f"{len(commits)} commits since {since}; {len(wrong)} mistakes in their messages")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
