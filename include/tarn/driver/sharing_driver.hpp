// SPDX-License-Identifier: Apache-2.0
#pragma once
// Memory and events that other processes use: what the driver calls exchange, and the optional part of the
// driver contract.
//
// | call                                                    | cost     | meaning                                                        |
// |---------------------------------------------------------|----------|----------------------------------------------------------------|
// | can_export_pages(type, bool&)                           | once     | whether the device creates pages that this type can export      |
// | create_pages(bytes, type, handle&)                      | 10 us    | as create_pages(bytes, handle&); the type cannot be changed later |
// | export_pages(handle, page_export&)                      |          | exports with the type that is set; a new descriptor at each call |
// | import_pages(page_export const&, handle&)               |          | the same memory, in this process; the descriptor stays the caller's |
// | create_shared_event(event&, token&)                     |          | an event for other processes, and what they open it with        |
// | open_shared_event(token, event&)                        |          | destroy_event() closes it                                       |
// | export_dma_buf(p, bytes, descriptor&)                   |          | a dma-buf of mapped pages; unsupported if the system has none   |
// | uuid(device_uuid&)                                      | 1 us     | the same in all processes; of a partition, its own              |

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>

#include "tarn/core/resource.hpp"
#include "tarn/driver/driver.hpp"

namespace TARN_NAMESPACE {

/// How other processes get at pages. Fixed when the pages are created.
enum class allocation_handle_type : std::uint8_t {
  none,                   ///< not at all
  posix_file_descriptor,  ///< processes of this machine, by a file descriptor
  fabric  ///< also processes of other machines, by a token of 64 bytes; needs a multi-node NVLink fabric
};

/// Pages as one process gives them to another.
struct page_export {
  allocation_handle_type type = allocation_handle_type::none;
  int descriptor = -1;                     ///< of posix_file_descriptor; whoever receives it closes it
  std::array<unsigned char, 64> fabric{};  ///< of fabric
};

/// What a process opens another process's event with.
using shared_event_token = std::array<unsigned char, 64>;

/// Identifies a device on any machine (CUuuid).
using device_uuid = std::array<unsigned char, 16>;

/// A driver whose pages and events other processes can use.
template <class D>
concept sharing_driver =
    page_driver<D> &&
    requires(D const& d, std::size_t bytes, void* p, page_handle h, page_handle& new_h, bool& yes,
             allocation_handle_type type, page_export& out, page_export const& in, event_handle& event,
             shared_event_token& token, int& descriptor, device_uuid& uuid) {
      { d.can_export_pages(type, yes) } noexcept -> std::same_as<status>;
      { d.create_pages(bytes, type, new_h) } noexcept -> std::same_as<status>;
      { d.export_pages(h, out) } noexcept -> std::same_as<status>;
      { d.import_pages(in, new_h) } noexcept -> std::same_as<status>;
      { d.create_shared_event(event, token) } noexcept -> std::same_as<status>;
      { d.open_shared_event(token, event) } noexcept -> std::same_as<status>;
      { d.export_dma_buf(p, bytes, descriptor) } noexcept -> std::same_as<status>;
      { d.uuid(uuid) } noexcept -> std::same_as<status>;
    };

}  // namespace TARN_NAMESPACE
