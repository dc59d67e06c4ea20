// SPDX-License-Identifier: Apache-2.0
#pragma once
// The version, for programs and for CMake, which reads this file.

#define TARN_VERSION_MAJOR 0
#define TARN_VERSION_MINOR 1
#define TARN_VERSION_PATCH 0
