// test_files.cpp: the only file that knows where the repository is, so that a compiler cache serves others anywhere.
#include "tests/support/test_files.h"

namespace thimble {

std::string source_file(const std::string& name) { return THIMBLE_SOURCE_DIR "/" + name; }

std::string shared_data(const std::string& name) { return THIMBLE_SOURCE_DIR "/../shared/data/" + name; }

}  // namespace thimble
