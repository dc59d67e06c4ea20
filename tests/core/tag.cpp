// SPDX-License-Identifier: Apache-2.0
#include "tarn/core/tag.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "child_process.hpp"
#include "tarn/core/misuse.hpp"

using namespace tarn;

namespace {
attribution attributed(attribution call = attribution::current()) {
  return call;
}
}  // namespace

TEST_CASE("tag compares by name and copies its name", "[core][tag]") {
  std::string text = "a name that changes later";
  tag const first(text);
  text[0] = 'x';
  CHECK(first == tag("a name that changes later"));
  CHECK(std::string(first.name()) == "a name that changes later");
  CHECK_FALSE(first == tag(text));
  CHECK(tag::from_id(first.id()) == first);
  CHECK(tag{} == tag(""));
  CHECK(tag{} == tag("untagged"));  // reports would show two of that name
  CHECK(std::string(tag{}.name()) == "untagged");
}

TEST_CASE("tag names end at a zero byte, and from_id of an unknown id is other tags", "[core][tag]") {
  using namespace std::string_view_literals;
  CHECK(tag("ends\0here"sv) == tag("ends"));
  CHECK(tag("\0nothing"sv) == tag());
  CHECK(std::string(tag::from_id(5000).name()) == "other tags");
}

TEST_CASE("tag cuts a long name between characters", "[core][tag]") {
  CHECK(std::string(tag(std::string(100, 'n')).name()) == std::string(63, 'n'));
  CHECK(tag(std::string(64, 'n')) == tag(std::string(99, 'n')));
  std::string const umlauts = std::string(62, 'u') + "\xc3\xbc";  // bytes 63 and 64 are one character
  CHECK(std::string(tag(umlauts).name()) == std::string(62, 'u'));
  CHECK(std::string(tag(std::string(61, 'u') + "\xc3\xbc").name()) == std::string(61, 'u') + "\xc3\xbc");
}

TEST_CASE("tag_scope nests: the inner tag is current, and the outer one is restored", "[core][tag]") {
  CHECK(tag::current() == tag{});
  {
    tag_scope const outer{"outer scope"};
    CHECK(tag::current() == tag("outer scope"));
    {
      tag_scope const inner{tag("inner scope")};
      CHECK(tag::current() == tag("inner scope"));
      std::thread([] { CHECK(tag::current() == tag{}); }).join();  // a scope belongs to its thread
    }
    CHECK(tag::current() == tag("outer scope"));
  }
  CHECK(tag::current() == tag{});
}

TEST_CASE("attribution of a tag records the location of the call", "[core][tag][attribution]") {
  tag const weights("weights");
  attribution const given = attributed(weights);
  int const line = __LINE__ - 1;
  CHECK(given.where.line == line);
  CHECK(std::string(given.where.file) == source_location::current().file);
  CHECK(std::string(given.where.function) == source_location::current().function);
  CHECK(given.tag_id == weights.id());
  CHECK(attributed().tag_id == 0);
}

TEST_CASE("tag of a location_scope overrides that of a tag_scope, also in a nested location_scope",
          "[core][tag][location_scope]") {
  tag_scope const scope{"of the scope"};
  {
    location_scope const outer;
    CHECK(tag::current() == tag("of the scope"));
    {
      location_scope const inner(tag("of the call"));
      CHECK(tag::current() == tag("of the call"));
      CHECK(location_scope::current().line == __LINE__ - 5);
      location_scope const innermost(tag("further in"));
      CHECK(tag::current() == tag("of the call"));
    }
    CHECK(tag::current() == tag("of the scope"));
  }
  {
    location_scope const named(tag("of the place"));
    CHECK(tag::current() == tag("of the place"));
  }
  CHECK(tag::current() == tag("of the scope"));
}

TEST_CASE("tag of the same name is the same on all threads", "[core][tag][threads]") {
  std::vector<std::vector<tag>> made(4);
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200; ++i) made[t].push_back(tag("made at once " + std::to_string(i)));
    });
  }
  for (auto& thread : threads) thread.join();
  for (std::size_t i = 0; i < 200; ++i) {
    for (std::size_t t = 1; t < 4; ++t) REQUIRE(made[t][i] == made[0][i]);
    REQUIRE(made[0][i].name() == "made at once " + std::to_string(i));
    for (std::size_t j = 0; j < i; ++j) REQUIRE_FALSE(made[0][j] == made[0][i]);
  }
}

TEST_CASE("tag_names gives all names beyond its capacity one tag", "[core][tag]") {
  tag const first("a name of the process");
  auto const names = std::make_unique<detail::tag_names>();  // separate from the process's names
  std::uint32_t last = 0;
  for (int i = 0; i < 1022; ++i) {
    std::uint32_t const id = names->number_of("name " + std::to_string(i));
    REQUIRE(id == last + 1);
    last = id;
  }
  CHECK(names->number_of("one more") == 1023);
  CHECK(names->number_of("and another") == 1023);
  CHECK(std::string(names->name_of(1023)) == "other tags");
  CHECK(names->number_of("name 1021") == 1022);
  CHECK(std::string(names->name_of(1)) == "name 0");
  CHECK(std::string(first.name()) == "a name of the process");
}

namespace {

/// Calls f with each permutation of three.
template <class F>
void in_every_order(F const& f) {
  std::array<std::size_t, 3> order{0, 1, 2};
  do {
    f(order);
  } while (std::next_permutation(order.begin(), order.end()));
}

}  // namespace

TEST_CASE("tag_scope objects end in any order, and the innermost that is left is current", "[core][tag]") {
  tag_scope const around{"around"};
  tag const names[] = {tag("first"), tag("second"), tag("third")};
  in_every_order([&](auto const& order) {
    std::optional<tag_scope> scopes[3];
    for (std::size_t i = 0; i < 3; ++i) scopes[i].emplace(names[i]);
    for (std::size_t const ended : order) {
      scopes[ended].reset();
      tag expected("around");
      for (std::size_t i = 0; i < 3; ++i) {
        if (scopes[i]) expected = names[i];
      }
      CHECK(tag::current() == expected);
    }
    CHECK(tag::current() == tag("around"));
  });
}

TEST_CASE("location_scope objects end in any order, and the outermost that is left is current",
          "[core][tag][location_scope]") {
  int const before = location_scope::current().line;
  CHECK(before == 0);
  source_location const places[] = {source_location{"a", 1, "f"}, source_location{"b", 2, "g"},
                                    source_location{"c", 3, "h"}};
  in_every_order([&](auto const& order) {
    std::optional<location_scope> scopes[3];
    for (std::size_t i = 0; i < 3; ++i) scopes[i].emplace(places[i]);
    for (std::size_t const ended : order) {
      CHECK(location_scope::current().line == (scopes[0] ? 1 : scopes[1] ? 2 : 3));
      scopes[ended].reset();
    }
    CHECK(location_scope::current().line == 0);
  });
}

TEST_CASE("location_scope removes only its own tag at its end", "[core][tag][location_scope]") {
  std::optional<location_scope> outer(std::in_place), inner(std::in_place, attribution(tag("further in")));
  outer.reset();
  CHECK(tag::current() == tag("further in"));
  std::optional<location_scope> further(std::in_place, attribution(tag("of the next")));
  CHECK(tag::current() == tag("further in"));
  inner.reset();
  CHECK(tag::current() == tag("of the next"));
  further.reset();
  CHECK(tag::current() == tag());
}

TEST_CASE("tag_scope and location_scope on two threads do not affect each other",
          "[core][tag][location_scope][threads]") {
  std::atomic<int> step{0};
  auto const await = [&](int wanted) {
    while (step.load() != wanted) std::this_thread::yield();
  };
  std::thread other([&] {
    await(1);
    {
      tag_scope const mine{"the other thread's"};
      location_scope const here(source_location{"other", 7, "f"});
      step = 2;
      await(3);
      CHECK(tag::current() == tag("the other thread's"));
      CHECK(location_scope::current().line == 7);
    }
    CHECK(tag::current() == tag());
    CHECK(location_scope::current().line == 0);
  });
  {
    tag_scope const mine{"this thread's"};
    location_scope const here(source_location{"this", 5, "f"});
    step = 1;
    await(2);
    CHECK(tag::current() == tag("this thread's"));
    CHECK(location_scope::current().line == 5);
  }
  CHECK(tag::current() == tag());
  CHECK(location_scope::current().line == 0);
  step = 3;
  other.join();
}

// Otherwise the thread that began it would use it after its end.
TEST_CASE("tag_scope reports misuse and aborts if it ends on another thread", "[core][tag][scope_chain]") {
  auto const end_elsewhere = [] {
    std::optional<tag_scope> scope;
    std::thread([&] { scope.emplace("begun elsewhere"); }).join();
    tag_scope const here{"of this thread"};
    scope.reset();
    return false;
  };
  CHECK(child_of([&] {
          (void)set_misuse_handler([](misuse const& what) {
            bool const named =
                std::string_view(what.what()).find("tag_scope ended on a thread") != std::string_view::npos;
            ::_exit(named && what.kind() == misuse_kind::wrong_thread ? 0 : 2);
          });
          return end_elsewhere();
        }) == 0);
  CHECK(child_of([&] {
          (void)set_misuse_handler([](misuse const&) {});
          (void)std::signal(SIGABRT, [](int) { ::_exit(3); });
          return end_elsewhere();
        }) == 3);
}

TEST_CASE("tag is made in a child that was forked while another thread made the first one",
          "[core][tag][at_fork]") {
  CHECK(child_forked_during([] { (void)tag("of the other thread"); },
                            [] { return tag("of the child") != tag(); }) == 0);
}
