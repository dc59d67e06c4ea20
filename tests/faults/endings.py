#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# Runs each ending in a separate process, and checks its exit status and all its output.
#
#   endings.py PROGRAM PLUGIN   exit status 77 if the program's device is missing
import re
import signal
import subprocess
import sys

quiet = r"\A\Z"
# name: exit status (negative: the signal), all of standard output, a pattern for standard error
expected = {
    "exit_with_a_live_pool": (0, "leaving\n", quiet),
    "owners_with_static_storage": (0, "leaving main\n", quiet),
    "quick_exit_with_a_live_pool": (0, "leaving\n", quiet),
    "exit_while_threads_sleep": (0, "leaving\n", quiet),
    "thread_local_owners": (0, "the thread's owner is gone\n", quiet),
    "context_destroyed": (0, "the context is gone\n", quiet),
    "context_destroyed_before_exit": (0, "leaving main\n", quiet),
    "context_reset_while_another_device_is_current": (0, "the reset was detected\n", quiet),
    "fork_and_the_child_exits": (0, "the parent continues\n", quiet),
    "fork_and_the_child_uses_the_host": (0, "the parent continues\n", quiet),
    "fork_with_threads_inside": (0, "no child was blocked\n", quiet),
    "fork_with_threads_inside_the_device": (0, "every child was refused\n", quiet),
    "fork_in_a_handler": (0, "the child of a handler works\n", quiet),
    "fork_of_a_thread_that_never_leaves": (0, "the child is refused\n", quiet),
    "threads_outlive_the_pool": (0, "the threads continued\n", quiet),
    "pools_outlive_threads": (0, "the threads left no memory\n", quiet),
    "exhaustion_handler_throws": (0, "the caller has the handler's exception\n", quiet),
    "misuse_ends_the_program": (-signal.SIGABRT, "", r"\Atarn: deallocation of 0x[0-9a-f]+: .*already free.*\n\Z"),
    "misuse_handler_goes_on": (0, "the handler was called\n", quiet),
    "misuse_handler_throws": (-signal.SIGABRT, "", r"terminate.*runtime_error[\s\S]*tarn: deallocation of 0x"),
    "leaks_are_reported_at_exit": (-signal.SIGABRT, "two owners were forgotten\n",
                                   r"\A(tarn: block 0x[0-9a-f]+ of [23]000 bytes was not freed; number of leaks: 2; allocated: endings.*\n){2}\Z"),
    "plugin_closed_with_live_threads": (0, "the plug-in was closed and opened again\n", quiet),
    "plugin_closed_with_a_live_pool": (0, "the plug-in was closed and opened again\n", quiet),
    "plugin_unloaded_with_a_live_pool": (0, "the plug-in is unloaded\n", quiet),
    "plugin_pool_ended_by_the_program": (0, "the program ended the plug-in's pool\n", quiet),
}


def main():
    program, plugin = sys.argv[1:3]
    names = subprocess.run([program], capture_output=True, text=True, check=True).stdout.split()
    if sorted(names) != sorted(expected):
        sys.exit(f"endings.py and the program do not name the same endings: {set(names) ^ set(expected)}")
    failed = 0
    for name in names:
        status, out, err = expected[name]
        try:
            ran = subprocess.run([program, name, plugin], capture_output=True, text=True, timeout=60)
        except subprocess.TimeoutExpired:
            failed += 1
            print(f"FAILED  {name}: still running after 60 s")
            continue
        if ran.returncode == 77:
            print("SKIPPED: no device")
            print("evidence: endings skipped=1")
            return 77
        fine = ran.returncode == status and ran.stdout == out and re.search(err, ran.stderr)
        print(f"{'ok' if fine else 'FAILED':<7} {name}: status {ran.returncode}")
        if not fine:
            failed += 1
            print(f"  expected status {status}, output {out!r}, errors matching {err!r}")
            print(f"  output {ran.stdout!r}\n  errors {ran.stderr[-2000:]!r}")
    print(f"evidence: endings cases={len(names)} failed={failed}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
