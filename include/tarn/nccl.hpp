// SPDX-License-Identifier: Apache-2.0
#pragma once
// NCCL interoperability: buffers of a pool registered with a communicator. Opt-in; needs nccl.h and, to link,
// libnccl (Debian and Ubuntu: libnccl-dev of NVIDIA's repository; PyPI: nvidia-nccl-cu13).

#include "tarn/core/config.hpp"

#if TARN_HAS_CUDA && __has_include(<nccl.h>)
#include <nccl.h>
#define TARN_HAS_NCCL 1
#else
#define TARN_HAS_NCCL 0
#endif

#include <cstddef>
#include <stdexcept>
#include <utility>

#include "tarn/core/error.hpp"
#include "tarn/sharing/page_registrations.hpp"

namespace TARN_NAMESPACE {

#if TARN_HAS_NCCL
static_assert(NCCL_VERSION_CODE >= 21903,
              "tarn: ncclCommRegister needs NCCL 2.19.3 or newer; this nccl.h is older");

/// A call of NCCL failed.
class nccl_error : public detail::error_of<std::runtime_error, 512> {
 public:
  nccl_error(ncclResult_t code, char const* call, ncclComm_t communicator) : code_(code) {
    text_.add("tarn: ").add(call).add(" failed: ").add(ncclGetErrorString(code)).add(" (");
    text_.add_number(static_cast<int>(code)).add("); ");
    char const* const more = ncclGetLastError(communicator);
    text_.add(more != nullptr && *more != '\0' ? more : "set NCCL_DEBUG=INFO for more");
  }
  [[nodiscard]] ncclResult_t code() const noexcept { return code_; }

 private:
  ncclResult_t code_;
};

/// Registers pages with a communicator (ncclCommRegister), which then sends from them and receives into them
/// without a copy where the transport can. Without registration NCCL works, too, and copies through buffers
/// of its own.
class nccl_pages {
 public:
  using handle = void*;
  static constexpr bool takes_one_handle = true;
  explicit nccl_pages(ncclComm_t communicator) noexcept : communicator_(communicator) {}

  /// @throws nccl_error
  [[nodiscard]] void* add(void* p, std::size_t bytes) const {
    void* registered = nullptr;
    ncclResult_t const code = ncclCommRegister(communicator_, p, bytes, &registered);
    if (code != ncclSuccess) throw nccl_error(code, "ncclCommRegister", communicator_);
    return registered;
  }
  void remove(void* registered) const noexcept { (void)ncclCommDeregister(communicator_, registered); }

 private:
  ncclComm_t communicator_;
};

/// The registrations of a pool's pages with one communicator, see page_registrations: `registered.ensure(p,
/// bytes)` before a collective. They must end before the communicator: declare them after it, or clear() them
/// before ncclCommDestroy. No collective that uses a buffer may still run when its registration ends.
///
/// The pool must have been made with `pooled{.handles = handles_per_block::one}`, on all ranks. NCCL uses
/// only buffers that lie in one handle in place. If one registration covered several handles, NCCL up to 2.30
/// would use the address of one for the others (NVIDIA/nccl#2362); and NCCL does not allow that some ranks of
/// a collective use registered buffers and others do not, which would depend on where each rank's pool found
/// memory. Buffers of other pools work without registration: NCCL copies them.
///
/// NCCL's windows (ncclCommWindowRegister) are not used: all ranks must register the same offsets at the same
/// time, and each rank's pool decides for itself where a block lies.
template <class Memory>
using nccl_registrations = page_registrations<Memory, nccl_pages>;

/// @throws cuda_error (unsupported)  blocks of the pool may lie in several handles
/// @throws std::bad_alloc
template <class Memory>
[[nodiscard]] nccl_registrations<Memory> register_with_nccl(
    Memory memory, ncclComm_t communicator, source_location where = source_location::current()) {
  return {std::move(memory), nccl_pages(communicator), where};
}
#else
namespace detail {
template <class>
inline constexpr bool has_nccl = false;
}

/// Without NCCL's header it compiles nowhere, and says what is missing.
template <class Memory, class Communicator>
void register_with_nccl(Memory const&, Communicator const&) {
  static_assert(
      detail::has_nccl<Memory>,
      "tarn: nccl.h or CUDA was not found: install libnccl-dev, or add the folder of nccl.h to the include "
      "path, and compile with CUDA");
}
#endif

}  // namespace TARN_NAMESPACE
