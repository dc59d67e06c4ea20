// SPDX-License-Identifier: Apache-2.0
#pragma once
#define CUDA_VERSION 11080
