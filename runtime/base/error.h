// error.h: the exceptions of thimble and the exit code each one ends the program with.
// Only main() catches them. An input error names the file, the object, what was found and what is allowed.
#pragma once

#include <stdexcept>
#include <string>
#include <system_error>

namespace thimble {

enum class ExitCode : int {
  kOk = 0,
  kInternal = 1,     // our own bug
  kUsage = 2,        // bad command line
  kCheckFailed = 3,  // the budget, or a check the user asked for, is not met
  kBadInput = 4,     // a file's contents are not what they must be
  kIo = 5,           // reading or writing failed (missing file, no permission, disk full)
  kDevice = 6,       // the requested device is missing or failed
};

class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

struct UsageError : Error {
  explicit UsageError(const std::string& message) : Error(ExitCode::kUsage, message) {}
};

struct CheckError : Error {
  explicit CheckError(const std::string& message) : Error(ExitCode::kCheckFailed, message) {}
};

// A file whose bytes are not what its format allows. Message: "<path>: <what>".
struct FormatError : Error {
  FormatError(const std::string& path, const std::string& what) : Error(ExitCode::kBadInput, path + ": " + what) {}
};

// An operating system call on `path` failed. Message: "<path>: <what>: <strerror(errno_value)>".
struct IoError : Error {
  IoError(const std::string& path, const std::string& what, int errno_value)
      : Error(ExitCode::kIo, path + ": " + what + ": " + std::generic_category().message(errno_value)) {}
};

struct DeviceError : Error {
  explicit DeviceError(const std::string& message) : Error(ExitCode::kDevice, message) {}
};

}  // namespace thimble
