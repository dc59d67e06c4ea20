// SPDX-License-Identifier: Apache-2.0
#include "faults/host_faults.hpp"

#include <atomic>
#include <cstdlib>
#include <new>

namespace tarn_test {

namespace {

std::atomic<std::uint64_t> asked_for{0};
std::atomic<std::uint64_t> refused_of{0};
std::atomic<std::uint64_t> refuse_from{0};  // the number of the first request to refuse; 0: none
std::atomic<bool> refuse_all_later{false};
std::atomic<std::int64_t> live_now{0};
// Per thread: threads that a test starts begin uncounted.
thread_local unsigned not_counting = 1;

struct note {
  std::size_t offset;  // from the start of malloc's result
  bool counted;
};
constexpr std::size_t least_offset = 2 * alignof(std::max_align_t);
static_assert(sizeof(note) <= least_offset);

bool is_refused() noexcept {
  std::uint64_t const nth = asked_for.fetch_add(1) + 1;
  std::uint64_t const from = refuse_from.load();
  if (from == 0 || nth < from || (nth > from && !refuse_all_later.load())) return false;
  refused_of.fetch_add(1);
  return true;
}

void* give(std::size_t bytes, std::size_t alignment) noexcept {
  bool const counted = not_counting == 0;
  if (counted && is_refused()) return nullptr;
  std::size_t const offset = alignment > least_offset ? alignment : least_offset;
  if (bytes > static_cast<std::size_t>(-1) - 2 * offset) return nullptr;
  std::size_t const whole = (bytes + offset + offset - 1) / offset * offset;
  void* const base = std::aligned_alloc(offset, whole);
  if (base == nullptr) return nullptr;
  char* const p = static_cast<char*>(base) + offset;
  ::new (static_cast<void*>(p - sizeof(note))) note{offset, counted};
  if (counted) live_now.fetch_add(1);
  return p;
}

void take(void* p) noexcept {
  if (p == nullptr) return;
  note const n = *reinterpret_cast<note*>(static_cast<char*>(p) - sizeof(note));
  if (n.counted) live_now.fetch_sub(1);
  std::free(static_cast<char*>(p) - n.offset);
}

void* give_or_throw(std::size_t bytes, std::size_t alignment) {
  void* const p = give(bytes, alignment);
  if (p == nullptr) throw std::bad_alloc();
  return p;
}

}  // namespace

void host_faults::arm(std::uint64_t nth, lasting how) noexcept {
  refuse_all_later = how == lasting::for_good;
  refuse_from = asked_for.load() + nth;
}
void host_faults::disarm() noexcept {
  refuse_from = 0;
}
std::uint64_t host_faults::asked() noexcept {
  return asked_for.load();
}
std::uint64_t host_faults::refused() noexcept {
  return refused_of.load();
}
std::int64_t host_faults::live() noexcept {
  return live_now.load();
}
void host_faults::reset() noexcept {
  refuse_from = 0;
  asked_for = 0;
  refused_of = 0;
}

host_faults::not_counted::not_counted() noexcept {
  ++not_counting;
}
host_faults::not_counted::~not_counted() {
  --not_counting;
}
host_faults::counted::counted() noexcept : before_(not_counting) {
  not_counting = 0;
}
host_faults::counted::~counted() {
  not_counting = before_;
}

}  // namespace tarn_test

// The replacements. The library's sized and array forms call these.
void* operator new(std::size_t bytes) {
  return tarn_test::give_or_throw(bytes, 1);
}
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return tarn_test::give_or_throw(bytes, static_cast<std::size_t>(alignment));
}
void* operator new(std::size_t bytes, std::nothrow_t const&) noexcept {
  return tarn_test::give(bytes, 1);
}
void* operator new(std::size_t bytes, std::align_val_t alignment, std::nothrow_t const&) noexcept {
  return tarn_test::give(bytes, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t bytes) {
  return tarn_test::give_or_throw(bytes, 1);
}
void* operator new[](std::size_t bytes, std::align_val_t alignment) {
  return tarn_test::give_or_throw(bytes, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t bytes, std::nothrow_t const&) noexcept {
  return tarn_test::give(bytes, 1);
}
void* operator new[](std::size_t bytes, std::align_val_t alignment, std::nothrow_t const&) noexcept {
  return tarn_test::give(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* p) noexcept {
  tarn_test::take(p);
}
void operator delete(void* p, std::size_t) noexcept {
  tarn_test::take(p);
}
void operator delete(void* p, std::align_val_t) noexcept {
  tarn_test::take(p);
}
void operator delete(void* p, std::size_t, std::align_val_t) noexcept {
  tarn_test::take(p);
}
void operator delete(void* p, std::nothrow_t const&) noexcept {
  tarn_test::take(p);
}
void operator delete(void* p, std::align_val_t, std::nothrow_t const&) noexcept {
  tarn_test::take(p);
}
void operator delete[](void* p) noexcept {
  tarn_test::take(p);
}
void operator delete[](void* p, std::size_t) noexcept {
  tarn_test::take(p);
}
void operator delete[](void* p, std::align_val_t) noexcept {
  tarn_test::take(p);
}
void operator delete[](void* p, std::size_t, std::align_val_t) noexcept {
  tarn_test::take(p);
}
void operator delete[](void* p, std::nothrow_t const&) noexcept {
  tarn_test::take(p);
}
void operator delete[](void* p, std::align_val_t, std::nothrow_t const&) noexcept {
  tarn_test::take(p);
}
