// SPDX-License-Identifier: Apache-2.0
// error: tarn needs 64-bit addresses: compile without -m32
// flags: -m32
#include "tarn/tarn.hpp"

int main() {}
