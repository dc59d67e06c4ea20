// SPDX-License-Identifier: Apache-2.0
#define CUDART_VERSION 11080
