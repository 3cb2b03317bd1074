// run_program.h: runs one program to its end and captures what it said, without a shell in between.
#pragma once

#include <sys/resource.h>

#include <csignal>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace thimble::testing {

struct RunOptions {
  std::string folder = {};                                 // working directory; empty: the caller's
  std::vector<std::string> environment = {};               // "NAME=value", besides the caller's
  std::vector<std::pair<int, rlim_t>> limits = {};         // {RLIMIT_FSIZE, 4096}
  bool as_nobody = false;                                  // drop the superuser's rights, where the caller has them
  bool terminal = false;                                   // standard error is a terminal
  std::string stdout_path = {}, stderr_path = {};          // files to write to instead of capturing
  bool stderr_unread = false;                              // standard error is a pipe whose reader has gone
  std::vector<int> ignored = {};                           // signals that it starts with ignored
  std::vector<int> closed = {};                            // descriptors that it starts without
  std::function<bool()> kill_when = [] { return false; };  // asked every millisecond; true sends `kill_signal`
  int kill_signal = SIGKILL;
  int limit_seconds = 120;
};

struct RunResult {
  int exit_code = -1;  // -1: ended by `signal`
  int signal = 0;
  bool started = false;    // false: it could not be executed
  bool timed_out = false;  // killed after limit_seconds
  std::string out, err;
};

// `arguments[0]` is the program's path. Throws std::runtime_error when no process can be made.
RunResult run_program(const std::vector<std::string>& arguments, const RunOptions& options = {});

// The program that the environment variable THIMBLE names, else the one that was built with these tests; and mpirun,
// empty where it was built without MPI.
std::string thimble_program();
std::string mpirun_program();

}  // namespace thimble::testing
