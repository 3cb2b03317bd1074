// allocation_probe.h: the largest single request to operator new, which allocation_probe.cpp replaces in this program.
#pragma once

#include <atomic>
#include <cstddef>

namespace thimble {

extern std::atomic<size_t> largest_request;

}  // namespace thimble
