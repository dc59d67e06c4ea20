// SPDX-License-Identifier: Apache-2.0
// error: tarn: reports errors by exceptions; compile without -fno-exceptions
// flags: -fno-exceptions
#include "tarn/transfer.hpp"

int main() {}
