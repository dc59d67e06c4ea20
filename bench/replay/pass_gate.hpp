// SPDX-License-Identifier: Apache-2.0
#pragma once
// Lets another program decide when each pass begins, so that several programs replay in turn (in_turn.py).

namespace tarn::bench {

class pass_gate {
 public:
  pass_gate() noexcept = default;
  explicit pass_gate(bool asks) noexcept : asks_(asks) {}

  /// Called before each pass. If it asks, prints the line "ready" and waits for a line of standard input.
  /// @throws std::runtime_error  standard input has ended
  void pass() const;

 private:
  bool asks_ = false;
};

}  // namespace tarn::bench
