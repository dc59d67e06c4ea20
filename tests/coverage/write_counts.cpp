// SPDX-License-Identifier: Apache-2.0
// gcov writes its counts at the end of main(). A child that a test has forked ends by _exit(), and a test of
// a fatal error by abort(): linked with --wrap for both, these write the counts first.

extern "C" {
void __gcov_dump(void);
[[noreturn]] void __real__exit(int status);
[[noreturn]] void __real_abort(void);

[[noreturn]] void __wrap__exit(int status) {
  __gcov_dump();
  __real__exit(status);
}
[[noreturn]] void __wrap_abort(void) {
  __gcov_dump();
  __real_abort();
}
}
