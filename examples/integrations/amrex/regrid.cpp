// SPDX-License-Identifier: Apache-2.0
#include "regrid.hpp"

#include <AMReX.H>
#include <AMReX_AmrCore.H>
#include <AMReX_CArena.H>
#include <AMReX_FillPatchUtil.H>
#include <AMReX_Interpolater.H>
#include <AMReX_MultiFab.H>
#include <AMReX_MultiFabUtil.H>
#include <AMReX_ParReduce.H>
#include <AMReX_ParmParse.H>
#include <AMReX_PhysBCFunct.H>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <iterator>
#include <optional>
#include <tarn/tarn.hpp>

#include "driver_arena.hpp"
#include "replaced_arenas.hpp"
#include "tarn_amrex.hpp"
#ifdef AMREX_USE_GPU
#include "../measure/device_memory.hpp"
#else
#include <tarn/sim.hpp>
#endif

namespace tarn_amrex {

using amrex::Real;

/// Where the shell is at one time; the domain is the unit cube. Its area grows, and so do the finer levels.
struct shell {
  AMREX_GPU_HOST_DEVICE static shell at(Real time) {
    return {Real(0.35) + Real(0.3) * time, Real(0.5), Real(0.5), Real(0.10) + Real(0.22) * time};
  }
  /// Returns the distance from the shell's surface.
  [[nodiscard]] AMREX_GPU_HOST_DEVICE Real distance(Real px, Real py, Real pz) const {
    return std::abs(std::sqrt((px - x) * (px - x) + (py - y) * (py - y) + (pz - z) * (pz - z)) - radius);
  }
  Real x, y, z, radius;
};

/// Mixes 64 bits, so that sums of mixed values differ where values or places do.
AMREX_GPU_HOST_DEVICE inline unsigned long long mixed(unsigned long long x) {
  x = (x ^ (x >> 30U)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27U)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31U);
}

/// Components that spread by diffusion with limited slopes, out of a source in the shell.
class hierarchy : public amrex::AmrCore {
 public:
  static constexpr int ghosts = 2;
  static constexpr std::size_t quantities = 4;  // of a particle
  static constexpr Real first_time = 0;

  hierarchy(amrex::Geometry const& whole, amrex::AmrInfo const& how, int components)
      : AmrCore(whole, how),
        components_(components),
        state_(static_cast<std::size_t>(how.max_level) + 1),
        tracers_(state_.size()) {}

  void begin() { InitFromScratch(first_time); }
  /// One step of all levels: new states, then coarse cells under finer ones are averages of them.
  void step(int n, Real time, Real dt) {
    for (int level = 0; level <= finest_level; ++level) advance(level, time, dt);
    for (int level = finest_level; level > 0; --level)
      amrex::average_down(state(level), state(level - 1), Geom(level), Geom(level - 1), 0, components_,
                          refRatio(level - 1));
    for (int level = 0; level <= finest_level; ++level) {
      derive(level, 1 + (3 * n + level) % 5);
      trace(level, n);
    }
  }
  [[nodiscard]] std::size_t boxes() const {
    std::size_t sum = 0;
    for (int level = 0; level <= finest_level; ++level)
      sum += static_cast<std::size_t>(boxArray(level).size());
    return sum;
  }
  [[nodiscard]] std::size_t cells() const {
    std::size_t sum = 0;
    for (int level = 0; level <= finest_level; ++level) sum += static_cast<std::size_t>(CountCells(level));
    return sum;
  }
  /// A sum of integers, which does not depend on the order of the device's threads.
  [[nodiscard]] std::uint64_t checksum() const {
    unsigned long long sum = 0;
    for (int level = 0; level <= finest_level; ++level) {
      auto const& from = state_[static_cast<std::size_t>(level)];
      auto const& values = from.const_arrays();
      unsigned long long const seed = mixed(static_cast<unsigned long long>(level) + 1);
      sum += amrex::ParReduce(
          amrex::TypeList<amrex::ReduceOpSum>{}, amrex::TypeList<unsigned long long>{}, from,
          amrex::IntVect(0), components_,
          [=] AMREX_GPU_DEVICE(int box, int i, int j, int k,
                               int c) noexcept -> amrex::GpuTuple<unsigned long long> {
            double const value = values[box](i, j, k, c);
            unsigned long long bits = 0;
            memcpy(&bits, &value, sizeof bits);
            auto const place = (static_cast<unsigned long long>(k) << 42U) ^
                               (static_cast<unsigned long long>(j) << 21U) ^
                               static_cast<unsigned long long>(i);
            return {mixed(bits ^ mixed(place ^ mixed(seed + static_cast<unsigned long long>(c))))};
          });
    }
    return sum + static_cast<unsigned long long>(traced_);
  }

  // AMReX's functions, and those with kernels, are public: nvcc accepts no device lambda in a private one.

  void MakeNewLevelFromScratch(int level, Real, amrex::BoxArray const& boxes,
                               amrex::DistributionMapping const& owners) override {
    make(level, boxes, owners);
    auto const& to = state(level).arrays();
    auto const cell = Geom(level).CellSizeArray();
    shell const s = shell::at(first_time);
    amrex::ParallelFor(state(level), state(level).nGrowVect(), components_,
                       [=] AMREX_GPU_DEVICE(int box, int i, int j, int k, int c) noexcept {
                         Real const d = s.distance((i + Real(0.5)) * cell[0], (j + Real(0.5)) * cell[1],
                                                   (k + Real(0.5)) * cell[2]);
                         to[box](i, j, k, c) = Real(1) / (Real(1) + Real(400) * d * d * (c + 1));
                       });
    amrex::Gpu::streamSynchronize();
  }
  void MakeNewLevelFromCoarse(int level, Real time, amrex::BoxArray const& boxes,
                              amrex::DistributionMapping const& owners) override {
    make(level, boxes, owners);
    amrex::PhysBCFunctNoOp none;
    amrex::InterpFromCoarseLevel(state(level), time, state(level - 1), 0, 0, components_, Geom(level - 1),
                                 Geom(level), none, 0, none, 0, refRatio(level - 1), &amrex::cell_cons_interp,
                                 periodic(), 0);
  }
  void RemakeLevel(int level, Real time, amrex::BoxArray const& boxes,
                   amrex::DistributionMapping const& owners) override {
    amrex::MultiFab fresh(boxes, owners, components_, ghosts);
    fill(level, time, fresh);
    std::swap(fresh, state(level));
    tracers_[static_cast<std::size_t>(level)].clear();
  }
  void ClearLevel(int level) override {
    state(level).clear();
    tracers_[static_cast<std::size_t>(level)].clear();
  }
  void ErrorEst(int level, amrex::TagBoxArray& tags, Real time, int) override {
    auto const& tag = tags.arrays();
    auto const cell = Geom(level).CellSizeArray();
    shell const s = shell::at(time);
    Real const width = Real(0.06) / static_cast<Real>(1 << (2 * level));
    amrex::ParallelFor(tags, [=] AMREX_GPU_DEVICE(int box, int i, int j, int k) noexcept {
      Real const d =
          s.distance((i + Real(0.5)) * cell[0], (j + Real(0.5)) * cell[1], (k + Real(0.5)) * cell[2]);
      tag[box](i, j, k) = d < width ? amrex::TagBox::SET : amrex::TagBox::CLEAR;
    });
    amrex::Gpu::streamSynchronize();
  }

  /// A state with filled ghost cells, a slope for each box from The_Async_Arena(), a limit for each box from
  /// The_Arena(), which an Elixir keeps until its kernels are done, and a flux for each direction.
  void advance(int level, Real time, Real dt) {
    auto const& boxes = boxArray(level);
    auto const& owners = DistributionMap(level);
    int const components = components_;
    amrex::MultiFab old(boxes, owners, components, ghosts);
    fill(level, time, old);
    std::array<amrex::MultiFab, 3> flux;
    for (int d = 0; d < 3; ++d)
      flux[static_cast<std::size_t>(d)].define(amrex::convert(boxes, amrex::IntVect::TheDimensionVector(d)),
                                               owners, components, 0);
    auto const cell = Geom(level).CellSizeArray();
    for (amrex::MFIter it(old); it.isValid(); ++it) {
      amrex::Box const around = amrex::grow(it.validbox(), 1);
      auto const& from = old.const_array(it);
      amrex::FArrayBox limits(around, 1);
      amrex::Elixir const kept = limits.elixir();
      auto const& limit = limits.array();
      amrex::ParallelFor(around, [=] AMREX_GPU_DEVICE(int i, int j, int k) noexcept {
        Real most = 0;
        for (int c = 0; c < components; ++c) most = amrex::max(most, std::abs(from(i, j, k, c)));
        limit(i, j, k) = Real(1) / (Real(1) + most);
      });
      amrex::FArrayBox slopes(around, 3 * components, amrex::The_Async_Arena());
      auto const& slope = slopes.array();
      amrex::ParallelFor(around, components, [=] AMREX_GPU_DEVICE(int i, int j, int k, int c) noexcept {
        slope(i, j, k, 3 * c) = Real(0.5) * (from(i + 1, j, k, c) - from(i - 1, j, k, c)) * limit(i, j, k);
        slope(i, j, k, 3 * c + 1) =
            Real(0.5) * (from(i, j + 1, k, c) - from(i, j - 1, k, c)) * limit(i, j, k);
        slope(i, j, k, 3 * c + 2) =
            Real(0.5) * (from(i, j, k + 1, c) - from(i, j, k - 1, c)) * limit(i, j, k);
      });
      for (int d = 0; d < 3; ++d) {
        auto const& to = flux[static_cast<std::size_t>(d)].array(it);
        int const di = d == 0;
        int const dj = d == 1;
        int const dk = d == 2;
        amrex::ParallelFor(flux[static_cast<std::size_t>(d)].box(it.index()), components,
                           [=] AMREX_GPU_DEVICE(int i, int j, int k, int c) noexcept {
                             to(i, j, k, c) =
                                 Real(0.5) *
                                     (slope(i, j, k, 3 * c + d) + slope(i - di, j - dj, k - dk, 3 * c + d)) +
                                 Real(0.5) * (from(i, j, k, c) - from(i - di, j - dj, k - dk, c));
                           });
      }
    }
    auto const& to = state(level).arrays();
    auto const& from = old.const_arrays();
    auto const& fx = flux[0].const_arrays();
    auto const& fy = flux[1].const_arrays();
    auto const& fz = flux[2].const_arrays();
    shell const s = shell::at(time);
    Real const rate = Real(0.1);
    amrex::ParallelFor(state(level), amrex::IntVect(0), components,
                       [=] AMREX_GPU_DEVICE(int box, int i, int j, int k, int c) noexcept {
                         Real const d = s.distance((i + Real(0.5)) * cell[0], (j + Real(0.5)) * cell[1],
                                                   (k + Real(0.5)) * cell[2]);
                         to[box](i, j, k, c) =
                             from[box](i, j, k, c) +
                             rate * (fx[box](i + 1, j, k, c) - fx[box](i, j, k, c) + fy[box](i, j + 1, k, c) -
                                     fy[box](i, j, k, c) + fz[box](i, j, k + 1, c) - fz[box](i, j, k, c)) +
                             dt / (Real(1) + Real(400) * d * d * (c + 1));
                       });
    amrex::Gpu::streamSynchronize();
  }
  /// A quantity of `count` components with ghost cells, as for output: its size differs from step to step.
  void derive(int level, int count) {
    amrex::MultiFab derived(boxArray(level), DistributionMap(level), count, 1);
    derived.setVal(0);  // ghost cells beyond the level's boxes, too
    auto const& to = derived.arrays();
    auto const& from = state(level).const_arrays();
    int const components = components_;
    amrex::ParallelFor(derived, amrex::IntVect(0), count,
                       [=] AMREX_GPU_DEVICE(int box, int i, int j, int k, int c) noexcept {
                         Real const value = from[box](i, j, k, c % components);
                         to[box](i, j, k, c) = value * value;
                       });
    amrex::Gpu::streamSynchronize();
    derived.FillBoundary(Geom(level).periodicity());
    traced_ += static_cast<std::int64_t>(derived.norm0(0, 1) * Real(1e6));
  }
  /// Particles in each box, which become a few more at each step: a vector for each of their quantities.
  void trace(int level, int n) {
    auto& all = tracers_[static_cast<std::size_t>(level)];
    all.resize(static_cast<std::size_t>(boxArray(level).size()) * quantities);
    for (amrex::MFIter it(state(level)); it.isValid(); ++it) {
      auto const cells = static_cast<std::size_t>(it.validbox().numPts());
      std::size_t const wanted = 2 * cells + cells * static_cast<std::size_t>(n) / 16;
      for (std::size_t q = 0; q < quantities; ++q) {
        auto& values = all[static_cast<std::size_t>(it.index()) * quantities + q];
        if (wanted > values.size()) values.resize(wanted);
        Real* const to = values.dataPtr();
        amrex::ParallelFor(static_cast<amrex::Long>(values.size()),
                           [=] AMREX_GPU_DEVICE(amrex::Long i) noexcept { to[i] = static_cast<Real>(i); });
      }
    }
  }

 private:
  [[nodiscard]] amrex::MultiFab& state(int level) { return state_[static_cast<std::size_t>(level)]; }
  [[nodiscard]] amrex::Vector<amrex::BCRec> periodic() const {
    amrex::Vector<amrex::BCRec> all(static_cast<std::size_t>(components_));
    for (amrex::BCRec& one : all) {
      for (int d = 0; d < 3; ++d) {
        one.setLo(d, amrex::BCType::int_dir);
        one.setHi(d, amrex::BCType::int_dir);
      }
    }
    return all;
  }
  void make(int level, amrex::BoxArray const& boxes, amrex::DistributionMapping const& owners) {
    state(level).define(boxes, owners, components_, ghosts);
    tracers_[static_cast<std::size_t>(level)].clear();
  }
  /// Fills `to` and its ghost cells from this level, and from the coarser one where this level is not.
  void fill(int level, Real time, amrex::MultiFab& to) {
    amrex::PhysBCFunctNoOp none;
    if (level == 0) {
      amrex::FillPatchSingleLevel(to, time, {&state(0)}, {time}, 0, 0, components_, Geom(0), none, 0);
    } else {
      amrex::FillPatchTwoLevels(to, time, {&state(level - 1)}, {time}, {&state(level)}, {time}, 0, 0,
                                components_, Geom(level - 1), Geom(level), none, 0, none, 0,
                                refRatio(level - 1), &amrex::cell_cons_interp, periodic(), 0);
    }
  }

  int components_;
  amrex::Vector<amrex::MultiFab> state_;
  std::vector<std::vector<amrex::Gpu::DeviceVector<Real>>>
      tracers_;  ///< for each quantity of each box, for each level
  std::int64_t traced_ = 0;
};

namespace {

using clock = std::chrono::steady_clock;

double ms_since(clock::time_point start) {
  return std::chrono::duration<double, std::milli>(clock::now() - start).count();
}

#ifdef AMREX_USE_GPU
using pages = tarn::cuda_pages;
#else
using pages = tarn::sim_pages;
#endif
using pool_type = tarn::pool_over<pages>;  // with a GPU: tarn::device_pool
using traced_type = tarn::stack<pages, tarn::pooled, tarn::tracked, tarn::traced>;

/// AMReX's own settings of its arenas.
void set_parameters(memory from) {
  amrex::ParmParse amrex_parameters("amrex");
  amrex_parameters.add("verbose", 0);
  amrex_parameters.add("signal_handling", 0);
  amrex_parameters.add("throw_exception", 1);
  if (from != memory::carena) amrex_parameters.add("the_arena_init_size", 0L);
  if (from == memory::carena_tight) amrex_parameters.add("the_arena_release_threshold", 0L);
}

/// The arena that takes the place of AMReX's own, where one does.
class chosen_arena {
 public:
  chosen_arena(memory from, std::string const& trace) {
    if (from == memory::tarn && trace.empty()) on_tarn_.emplace(pages{} | tarn::pooled{} | tarn::tracked{});
    if (from == memory::tarn && !trace.empty())
      traced_.emplace(pages{} | tarn::pooled{} | tarn::tracked{} | tarn::traced{trace.c_str()});
    if (from == memory::cuda_malloc) on_driver_.emplace(driver_call::malloc);
    if (from == memory::cuda_async) on_driver_.emplace(driver_call::malloc_async);
#ifndef AMREX_USE_GPU
    // The_Arena() is malloc there: take what it is with a GPU. The initial size is not reserved.
    if (from == memory::carena || from == memory::carena_grows) own_.emplace();
    if (from == memory::carena_tight) own_.emplace(0, amrex::ArenaInfo{}.SetReleaseThreshold(0));
#endif
    replace_arenas(on_tarn_     ? static_cast<amrex::Arena*>(&*on_tarn_)
                   : traced_    ? static_cast<amrex::Arena*>(&*traced_)
                   : on_driver_ ? static_cast<amrex::Arena*>(&*on_driver_)
                   : own_       ? static_cast<amrex::Arena*>(&*own_)
                                : nullptr);
  }
  chosen_arena(chosen_arena const&) = delete;
  chosen_arena& operator=(chosen_arena const&) = delete;
  ~chosen_arena() { replace_arenas(nullptr); }

  void report(figures& f) const {
    if (on_tarn_) {
      report(on_tarn_->memory(), f);
    } else if (traced_) {
      report(traced_->memory(), f);
    } else if (auto const* own = dynamic_cast<amrex::CArena const*>(amrex::The_Arena())) {
      f.arena_after = own->heap_space_used();
    }
  }

 private:
  template <class Memory>
  static void report(Memory memory, figures& f) {
    auto const statistics = [](auto& layer) -> decltype(layer.statistics()) { return layer.statistics(); };
    f.live = static_cast<std::size_t>(tarn::nearest(memory, statistics).requested_bytes[0].peak);
    auto const state = [](auto& layer) -> decltype(layer.state()) { return layer.state(); };
    tarn::pool_state const now = tarn::nearest(memory, state);
    f.arena_after = now.reserved;
    f.arena_peak = now.reserved_peak;
    f.creates = now.creates;
    f.remaps = now.remaps;
    f.host_waits = now.host_waits;
  }

  std::optional<arena<pool_type>> on_tarn_;
  std::optional<arena<traced_type>> traced_;
  std::optional<driver_arena> on_driver_;
  std::optional<amrex::CArena> own_;
};

/// Calls `at_end` after the last step, while the grids are there.
template <class AtEnd>
void run(work const& what, figures& f, AtEnd const& at_end) {
  amrex::AmrInfo how;
  how.max_level = what.levels;
  how.ref_ratio.assign(static_cast<std::size_t>(std::max(what.levels, 1)), amrex::IntVect(2));
  how.blocking_factor.assign(static_cast<std::size_t>(what.levels) + 1, amrex::IntVect(what.grid / 2));
  how.max_grid_size.assign(static_cast<std::size_t>(what.levels) + 1, amrex::IntVect(what.grid));
  how.n_error_buf.assign(static_cast<std::size_t>(what.levels) + 1, amrex::IntVect(2));
  how.grid_eff = Real(0.8);
  amrex::Geometry const whole(amrex::Box(amrex::IntVect(0), amrex::IntVect(what.cells - 1)),
                              amrex::RealBox({0, 0, 0}, {1, 1, 1}), amrex::CoordSys::cartesian, {1, 1, 1});
  auto const start = clock::now();
  hierarchy all(whole, how, what.components);
  all.begin();
  Real time = hierarchy::first_time;
  Real const dt = Real(1) / static_cast<Real>(what.steps);
  for (int n = 0; n < what.steps; ++n, time += dt) {
    auto const step_start = clock::now();
    if (n > 0 && n % what.regrid == 0) {
      all.regrid(0, time);
      amrex::Gpu::streamSynchronizeAll();
      f.regrid_ms += ms_since(step_start);
      ++f.regrids;
    }
    all.step(n, time, dt);
    amrex::Gpu::streamSynchronizeAll();
    f.step_ms.push_back(ms_since(step_start));
  }
  f.run_ms = ms_since(start);
  at_end();
  f.boxes = all.boxes();
  f.cells = all.cells();
  f.checksum = all.checksum();
}

}  // namespace

bool runs_on_cpu() noexcept {
#ifdef AMREX_USE_GPU
  return false;
#else
  return true;
#endif
}

figures measure(memory from, work const& what) {
  figures f;
#ifdef AMREX_USE_GPU
  (void)cudaFree(nullptr);  // makes the context
  std::size_t const before = tarn_clients::free_on_device();
#endif
  chosen_arena arenas(from, what.trace);
  int count = 1;
  char name[] = "tarn_amrex";
  char* arguments[] = {name, nullptr};
  char** values = arguments;
  amrex::Initialize(count, values, true, MPI_COMM_WORLD, [&] { set_parameters(from); });
  try {
#ifdef AMREX_USE_GPU
    std::optional<tarn_clients::memory_watch> watch;
    if (what.watch) watch.emplace();
#endif
    run(what, f, [&] {
#ifdef AMREX_USE_GPU
      f.held_after = before - std::min(before, tarn_clients::free_on_device());
      if (watch) f.held_peak = before - std::min(before, watch->stop());
#endif
      arenas.report(f);
    });
  } catch (...) {
    amrex::Finalize();
    throw;
  }
  amrex::Finalize();
  return f;
}

}  // namespace tarn_amrex
