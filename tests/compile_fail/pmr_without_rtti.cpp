// SPDX-License-Identifier: Apache-2.0
// error: tarn/pmr.hpp: compares memory resources by their type; compile without -fno-rtti
// flags: -fno-rtti
#include "tarn/pmr.hpp"

int main() {}
