// test_files.h: where tests find files that they do not make.
#pragma once

#include <string>

namespace thimble {

// The path of a file of the repository: source_file("examples/tiny/model.safetensors").
std::string source_file(const std::string& name);

// The same of real checkpoints and their golden values, in a folder beside the repository. Not everybody has it: tests
// skip what is not there.
std::string shared_data(const std::string& name);

}  // namespace thimble
