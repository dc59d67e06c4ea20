// SPDX-License-Identifier: Apache-2.0
// error: tarn needs C++20: compile with -std=c++20
// flags: -std=c++17
#include "tarn/tarn.hpp"

int main() {}
