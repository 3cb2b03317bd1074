// error.cpp: the one exception that has to ask the operating system for its text.
#include "runtime/base/error.h"

#include <system_error>

namespace thimble {

IoError::IoError(const std::string& path, const std::string& what, int errno_value)
    : Error(ExitCode::kIo, path + ": " + what + ": " + std::generic_category().message(errno_value)) {}

}  // namespace thimble
