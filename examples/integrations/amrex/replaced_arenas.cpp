// SPDX-License-Identifier: Apache-2.0
#include "replaced_arenas.hpp"

namespace {
amrex::Arena* replacement = nullptr;

amrex::Arena* replaced_or(amrex::Arena* (*own)()) {
  return replacement != nullptr ? replacement : own();
}
}  // namespace

void tarn_amrex::replace_arenas(amrex::Arena* arena) noexcept {
  replacement = arena;
}

// The linker renames each reference to a function to __wrap_ and its name, and __real_ and its name to the
// function. The names are those of amrex::The_Arena() and of the two others.
extern "C" {
amrex::Arena* __real__ZN5amrex9The_ArenaEv();
amrex::Arena* __real__ZN5amrex16The_Device_ArenaEv();
amrex::Arena* __real__ZN5amrex15The_Async_ArenaEv();

amrex::Arena* __wrap__ZN5amrex9The_ArenaEv() {
  return replaced_or(&__real__ZN5amrex9The_ArenaEv);
}
amrex::Arena* __wrap__ZN5amrex16The_Device_ArenaEv() {
  return replaced_or(&__real__ZN5amrex16The_Device_ArenaEv);
}
amrex::Arena* __wrap__ZN5amrex15The_Async_ArenaEv() {
  return replaced_or(&__real__ZN5amrex15The_Async_ArenaEv);
}
}
