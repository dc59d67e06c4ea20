// SPDX-License-Identifier: Apache-2.0
// error: tarn/pmr.hpp: RTTI is needed to compare memory resources; compile without -fno-rtti
// flags: -fno-rtti
#include "tarn/pmr.hpp"

int main() {}
