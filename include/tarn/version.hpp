// SPDX-License-Identifier: Apache-2.0
#pragma once
// The version, for programs and for CMake, and the namespace that belongs to it.
//
// All of tarn is in TARN_NAMESPACE, so that two versions may be linked into one program: `tarn::device_pool`
// of one version is another type, with other symbols, than that of another version. The last part is a
// fingerprint of the headers' code; it is written by .ci/amalgamate.py and changes with any line of code, so
// two commits of one version differ, too. Code that declares something of tarn itself opens this namespace;
// `namespace tarn` suffices to use it.
//
// What is one for a process is one for each version in it: the list of pools that ask each other for memory,
// tags, the handler of misuse, the locks that a fork waits for, the streams and devices that are known. The
// exception is the gate of captures, a C interface with a version of its own (driver/capture_gate.hpp).
// Errors of another version are caught by their standard type.

#define TARN_VERSION 200  // major * 10000 + minor * 100 + patch
#define TARN_NAMESPACE tarn::inline v0_2_0_7912ec55
