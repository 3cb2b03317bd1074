// output_check.h: what can be known about output files before hours of computing go into them.
#pragma once

#include <string>
#include <vector>

namespace thimble {

// Throws UsageError when an output is one of the inputs, and the IoError that writing it would end with. Empty paths
// stand for options that were not given.
void check_outputs(const std::vector<std::string>& outputs, const std::vector<std::string>& inputs);

}  // namespace thimble
