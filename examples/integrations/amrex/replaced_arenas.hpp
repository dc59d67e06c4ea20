// SPDX-License-Identifier: Apache-2.0
#pragma once
// Replaces AMReX's arenas of device memory. AMReX has no function for it: amrex::Arena::Initialize makes
// them, and they are private. The linker renames the functions that return them: link with --wrap of those in
// replaced_arenas.cpp.

#include <AMReX_Arena.H>

namespace tarn_amrex {

/// From now on amrex::The_Arena(), The_Device_Arena() and The_Async_Arena() return `arena`; null: AMReX's
/// own. Call it before amrex::Initialize(), and not before amrex::Finalize() has returned again. AMReX's own
/// arenas are made as ever, so set amrex.the_arena_init_size to 0.
void replace_arenas(amrex::Arena* arena) noexcept;

}  // namespace tarn_amrex
