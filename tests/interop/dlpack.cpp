// SPDX-License-Identifier: Apache-2.0
#include "tarn/dlpack.hpp"

#include <complex>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "driver/faulty.hpp"
#include "interop/dlpack_layout.hpp"
#include "tarn/report/stats.hpp"
#include "tarn/sim.hpp"
#include "tarn/source/host_memory.hpp"

using namespace tarn;
using namespace dlpack_layout;

namespace {

/// Another library's tensor, which counts the calls of its deleter.
struct foreign {
  int deleted = 0;
  float data[6] = {1, 2, 3, 4, 5, 6};
  std::int64_t shape[2] = {2, 3};
  std::int64_t strides[2] = {3, 1};
  versioned tensor{};

  foreign() {
    tensor.version = {1, 3};
    tensor.manager_ctx = this;
    tensor.deleter = [](versioned* self) { ++static_cast<foreign*>(self->manager_ctx)->deleted; };
    tensor.dl_tensor = {data, {cpu, 0}, 2, {2, 32, 1}, shape, strides, 0};
  }
  foreign(foreign const&) = delete;
};

std::string refusal_of(foreign& from) {
  try {
    (void)from_dlpack<float>(&from.tensor);
  } catch (dlpack_error const& error) {
    CHECK(std::string_view(error.where().file).find("dlpack.cpp") != std::string_view::npos);
    return error.what();
  }
  return "";
}

template <class Tensor>
void frees_in_the_order_of_its_stream() {
  sim_options options;
  options.devices = 2;
  options.checks = sim_checks::stream_order;
  options.late_events = 100'000;
  sim_machine const machine(options);
  {
    auto const driver = machine.driver(device_id{1});
    auto pool = sim_pages{driver} | pooled{} | tracked{};
    sim_stream const producer{driver};
    sim_stream const consumer{driver};
    auto buffer = make_device_buffer<float>(pool, 24, producer);
    float* const p = buffer.data();
    REQUIRE(driver.launch(producer, 1'000'000).ok());
    buffer.fill(std::byte{1});
    Tensor* const made = to_dlpack<Tensor>(std::move(buffer), {2, 3, 4}, consumer);
    CHECK(buffer.data() == nullptr);
    auto const& t = made->dl_tensor;
    CHECK((t.data == p && t.byte_offset == 0));
    CHECK((t.device.device_type == cuda && t.device.device_id == 1));
    CHECK((t.dtype.code == 2 && t.dtype.bits == 32 && t.dtype.lanes == 1));
    CHECK(std::vector<std::int64_t>(t.shape, t.shape + t.ndim) == std::vector<std::int64_t>{2, 3, 4});
    CHECK(std::vector<std::int64_t>(t.strides, t.strides + t.ndim) == std::vector<std::int64_t>{12, 4, 1});
    if constexpr (requires { made->version; }) CHECK((made->version.major == 1 && made->flags == 0));
    // The consumer reads what the producer wrote, and its work is still running when it deletes the tensor.
    std::vector<float> host(24);
    auto mine = from_dlpack<float const>(made, device_id{1});
    copy(driver, mine.span(), std::span<float>(host), consumer);
    REQUIRE(driver.launch(consumer, 1'000'000).ok());
    CHECK(memory_allocated(pool) != 0);
    { auto const gone = std::move(mine); }
    CHECK(mine.span().empty());
    CHECK(memory_allocated(pool) == 0);
    auto next = make_device_buffer<float>(pool, 24, consumer);  // waits for nothing: it is the same stream
    CHECK(next.data() == p);
    next.zero();
    REQUIRE(driver.synchronize_stream(consumer).ok());
    CHECK(host[23] != 0.0F);
  }
  CHECK(machine.findings().empty());
  CHECK(machine.leaks().total() == 0);
}

}  // namespace

TEST_CASE("to_dlpack frees in the order of the consumer's stream", "[interop][dlpack]") {
  frees_in_the_order_of_its_stream<versioned>();
  frees_in_the_order_of_its_stream<unversioned>();
}

TEST_CASE("to_dlpack refuses a shape of another size and leaves the buffer unchanged", "[interop][dlpack]") {
  auto buffer = make_device_buffer<int>(host_memory{}, 6, stream_ref{});
  int const* const p = buffer.data();
  constexpr std::int64_t large = std::numeric_limits<std::int64_t>::max();
  for (std::vector<std::int64_t> const& shape : std::vector<std::vector<std::int64_t>>{
           {}, {5}, {2, 4}, {-2, -3}, {0, 6}, {large, 2}, {6, large, 4, large}}) {
    CHECK_THROWS_AS(to_dlpack<versioned>(std::move(buffer), shape, stream_ref{}), length_error);
    CHECK((buffer.data() == p && buffer.size() == 6));
  }
}

TEST_CASE("to_dlpack leaves the buffer unchanged if its stream cannot be ordered", "[interop][dlpack]") {
  sim_machine const machine;
  {
    fault_plan const plan;
    faulty<sim_driver> const driver(machine.driver(), plan);
    basic_stream<faulty<sim_driver>> const producer(driver);
    basic_stream<faulty<sim_driver>> const consumer(driver);
    auto buffer = make_device_buffer<int>(basic_pages<faulty<sim_driver>>(driver) | pooled{}, 6, producer);
    plan.fail(driver_call::record_event, 1);
    CHECK_THROWS_AS(to_dlpack<versioned>(std::move(buffer), {6}, consumer), cuda_error);
    CHECK((buffer.size() == 6 && buffer.stream() == stream_ref(producer)));
  }
  CHECK(machine.leaks().total() == 0);
}

TEST_CASE("to_dlpack of no elements, and of one without dimensions", "[interop][dlpack]") {
  auto memory = host_memory{} | tracked{};
  versioned* const none =
      to_dlpack<versioned>(device_buffer<bool, decltype(memory)>(memory), {3, 0}, stream_ref{});
  CHECK((none->dl_tensor.data == nullptr && none->dl_tensor.ndim == 2 && none->dl_tensor.dtype.code == 6));
  CHECK(from_dlpack<bool>(none).size() == 0);
  auto cleared = make_device_buffer<int>(memory, 5, stream_ref{});
  cleared.clear();
  versioned* const emptied = to_dlpack<versioned>(std::move(cleared), {0}, stream_ref{});
  CHECK(emptied->dl_tensor.data == nullptr);
  CHECK(from_dlpack<int>(emptied).data() == nullptr);
  versioned* const one = to_dlpack<versioned>(
      make_device_buffer<std::complex<double>>(memory, 1, stream_ref{}), {}, stream_ref{});
  CHECK((one->dl_tensor.ndim == 0 && one->dl_tensor.dtype.code == 5 && one->dl_tensor.dtype.bits == 128));
  CHECK(one->dl_tensor.device.device_type == cpu);
  CHECK(from_dlpack<std::complex<double>>(one).size() == 1);
  CHECK(memory_allocated(memory) == 0);
  using empty = device_buffer<int, decltype(memory)>;
  CHECK_THROWS_AS(to_dlpack<versioned>(empty(), {2}, stream_ref{}), length_error);
  sim_stream const known;
  CHECK_THROWS_AS(to_dlpack<versioned>(device_buffer<int, sim_pool>(), {0}, known), misuse);
}

TEST_CASE("from_dlpack gives the elements and calls the deleter once", "[interop][dlpack]") {
  foreign from;
  {
    auto elements = from_dlpack<float>(&from.tensor);
    CHECK((elements.data() == from.data && elements.size() == 6 && elements.shape().size() == 2));
    auto moved = std::move(elements);
    elements = std::move(moved);
    CHECK((elements.size() == 6 && moved.size() == 0 && moved.shape().empty()));
    CHECK(from.deleted == 0);
    foreign other;
    other.tensor.dl_tensor.strides = nullptr;
    elements = from_dlpack<float>(&other.tensor);
    CHECK((from.deleted == 1 && other.deleted == 0));
    elements = from_dlpack<float>(&from.tensor);
    CHECK(other.deleted == 1);
  }
  CHECK(from.deleted == 2);
  from.tensor.deleter = nullptr;
  CHECK(from_dlpack<float>(&from.tensor).size() == 6);
}

TEST_CASE("from_dlpack accepts an offset, and any stride of a dimension that has one index",
          "[interop][dlpack]") {
  foreign from;
  from.shape[0] = 1;
  from.strides[0] = 77;
  from.tensor.dl_tensor.byte_offset = 12;
  auto const elements = from_dlpack<float>(&from.tensor);
  CHECK(elements.size() == 3);
  CHECK(elements.span()[0] == 4);
}

TEST_CASE("from_dlpack refuses what it cannot show, and calls the deleter", "[interop][dlpack]") {
  struct mistake {
    void (*make)(foreign&);
    char const* text;
  };
  for (mistake const& m : {
           mistake{[](foreign& f) { f.tensor.version.major = 2; }, "not of DLPack 1"},
           mistake{[](foreign& f) { f.tensor.version.major = 0; }, "not of DLPack 1"},
           mistake{[](foreign& f) { f.tensor.flags = 3; }, "read-only"},
           mistake{[](foreign& f) { f.tensor.dl_tensor.device.device_type = cuda; }, "memory of this kind"},
           mistake{[](foreign& f) { f.tensor.dl_tensor.dtype.code = 0; }, "another type"},
           mistake{[](foreign& f) { f.tensor.dl_tensor.dtype.bits = 64; }, "another type"},
           mistake{[](foreign& f) { f.tensor.dl_tensor.dtype.lanes = 4; }, "another type"},
           mistake{[](foreign& f) { f.tensor.dl_tensor.ndim = -1; }, "no shape"},
           mistake{[](foreign& f) { f.tensor.dl_tensor.shape = nullptr; }, "no shape"},
           mistake{[](foreign& f) { f.shape[1] = -3; }, "not a size"},
           mistake{[](foreign& f) { f.shape[1] = std::numeric_limits<std::int64_t>::max(); }, "not a size"},
           mistake{[](foreign& f) { f.shape[1] = std::int64_t{1} << 61; }, "not a size"},
           mistake{[](foreign& f) { f.strides[0] = 4; }, "not contiguous"},
           mistake{[](foreign& f) { std::swap(f.strides[0], f.strides[1]); }, "not contiguous"},
           mistake{[](foreign& f) { f.strides[1] = -1; }, "not contiguous"},
           mistake{[](foreign& f) { f.tensor.dl_tensor.data = nullptr; }, "no memory"},
           mistake{[](foreign& f) { f.tensor.dl_tensor.byte_offset = 2; }, "not aligned"},
       }) {
    foreign from;
    m.make(from);
    INFO(m.text);
    CHECK(refusal_of(from).find(m.text) != std::string::npos);
    CHECK(from.deleted == 1);
  }
  foreign from;
  from.tensor.flags = 1;
  CHECK(from_dlpack<float const>(&from.tensor).size() == 6);
  CHECK_THROWS_AS(from_dlpack<float>(static_cast<versioned*>(nullptr)), dlpack_error);
}

TEST_CASE("from_dlpack refuses memory of another device", "[interop][dlpack]") {
  foreign from;
  auto const count_on = [&](type_of_device type, std::int32_t of, device_id wanted) {
    from.tensor.dl_tensor.device = {type, of};
    try {
      return from_dlpack<float>(&from.tensor, wanted).size();
    } catch (dlpack_error const&) {
      return std::size_t{0};
    }
  };
  CHECK(count_on(cuda, 1, device_id{1}) == 6);
  CHECK(count_on(cuda, 0, device_id{1}) == 0);
  CHECK(count_on(cuda_managed, 0, device_id{1}) == 6);  // DLPack sets its number to 0
  CHECK(count_on(cuda_host, 0, device_id{0}) == 0);
  CHECK(count_on(cpu, 0, device_id{0}) == 0);
  CHECK(count_on(rocm, 0, device_id{0}) == 0);
  CHECK(from.deleted == 6);
}
