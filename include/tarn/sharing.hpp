// SPDX-License-Identifier: Apache-2.0
#pragma once
// Memory that others use, too: the physical segments behind a block, pins that keep them in place, registrations with libraries, and
// blocks for other processes and devices. Opt-in; needs POSIX.

#include "tarn/tarn.hpp"

#include "tarn/raii/exported_block.hpp"
#include "tarn/raii/imported_block.hpp"
#include "tarn/raii/page_pin.hpp"
#include "tarn/raii/page_registrations.hpp"
