#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What ./dev installs, with apt: it reads this file. A bare Debian or Ubuntu has neither a compiler nor Python.
missing_of() {
  for package in "$@"; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || printf ' %s' "$package"
  done
}
root=
if [ "$(id -u)" != 0 ]; then root=sudo; fi
can_install() { [ -z "$root" ] || command -v sudo >/dev/null; }
# Reads the lists of packages once, which apt needs before it knows any.
refresh_apt() {
  if [ -z "${apt_is_fresh:-}" ] && can_install; then
    say "reading apt's lists of packages"
    $root apt-get update -qq >/dev/null 2>&1 || true
  fi
  apt_is_fresh=yes
}
# install PACKAGE...: with apt, as root or through sudo; what apt says is shown only where it fails.
install() {
  can_install || { say "neither root nor sudo: cannot install $*" && return 1; }
  apt_log=$(mktemp)
  refresh_apt
  say "installing $*"
  if $root env DEBIAN_FRONTEND=noninteractive LC_ALL=C apt-get install -y -qq --no-install-recommends \
    -o DPkg::Lock::Timeout=120 "$@" >>"$apt_log" 2>&1 </dev/null; then
    rm -f "$apt_log"
  else
    tail -n "${apt_lines:-20}" "$apt_log"
    rm -f "$apt_log"
    return 1
  fi
}
# need PACKAGE...: installs what is missing; nothing works without it. Where there is no apt, it must be there already.
need() {
  command -v apt-get >/dev/null || return 0
  missing=$(missing_of "$@")
  # shellcheck disable=SC2086
  [ -z "$missing" ] || install $missing || { say "please install:$missing"; exit 1; }
}
# want PACKAGE...: the same, but what this system does not have is named and left out; the build leaves out its part.
want() {
  command -v apt-get >/dev/null || return 0
  for package in $(missing_of "$@"); do
    apt_lines=0 install "$package" || say "skipped $package: apt cannot install it here"
  done
}

# zlib: gzipped traces. CLI11: the replay's arguments. nlohmann-json: its --json. Thrust, TBB: the Thrust allocator without CUDA.
setup() {
  need g++ cmake make python3 zlib1g-dev libcli11-dev nlohmann-json3-dev
  want libthrust-dev libtbb-dev
  if [ -z "${CXX:-}" ] && [ "$(g++ -dumpversion | cut -d. -f1)" -lt 12 ]; then
    need g++-12
    export CXX=g++-12
  fi
}
# clang++ with the runtime that its sanitizers and libFuzzer link.
clang_sanitizes() {
  if [ -n "${clang_works:-}" ]; then return 0; fi
  command -v clang++ >/dev/null || return 1
  echo 'int main() {}' | clang++ -x c++ -fsanitize=address,undefined - -o /dev/null 2>/dev/null &&
    echo 'int main() {}' | clang++ -x c++ -fsanitize=thread - -o /dev/null 2>/dev/null &&
    echo 'extern "C" int LLVMFuzzerTestOneInput(unsigned char const*, unsigned long) { return 0; }' |
    clang++ -x c++ -fsanitize=fuzzer,address - -o /dev/null 2>/dev/null && clang_works=yes
}
# Debian has the runtime in a package of its own, libclang-rt-N-dev; older releases of Ubuntu have it in libclang-common-N-dev.
want_clang() {
  want clang
  if ! command -v clang++ >/dev/null || clang_sanitizes; then return 0; fi
  if command -v apt-get >/dev/null; then
    refresh_apt
    version=$(clang++ -dumpversion | cut -d. -f1)
    for package in "libclang-rt-$version-dev" "libclang-common-$version-dev" libclang-rt-dev; do
      if apt-cache policy "$package" 2>/dev/null | grep -q '^  Candidate: [^(]'; then want "$package"; fi
      if clang_sanitizes; then return 0; fi
    done
  fi
  say "clang++ has no sanitizer runtime: g++ builds the sanitized tests, and the fuzz targets only replay their corpora"
}
