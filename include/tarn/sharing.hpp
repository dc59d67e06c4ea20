// SPDX-License-Identifier: Apache-2.0
#pragma once
// Memory that others use, too: the physical segments behind a block, pins that keep them in place,
// registrations with libraries, and blocks for other processes and devices. Opt-in; needs POSIX.

#include "tarn/tarn.hpp"

#include "tarn/sharing/exported_block.hpp"
#include "tarn/sharing/imported_block.hpp"
#include "tarn/sharing/page_pin.hpp"
#include "tarn/sharing/page_registrations.hpp"
