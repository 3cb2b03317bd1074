// run_program.cpp: fork, exec and pipes for run_program.h.
#include "tests/cli/run_program.h"

#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <stdexcept>

namespace thimble::testing {
namespace {

constexpr int kCannotStart = 126;

// What is written at one end is read at the other; a terminal, whose reader sees what a user would, or a pipe.
struct Pipe {
  int read_end = -1, write_end = -1;
  explicit Pipe(bool terminal = false) {
    std::array<int, 2> ends{};
    if (terminal ? ::openpty(&ends[0], &ends[1], nullptr, nullptr, nullptr) != 0 : ::pipe2(ends.data(), O_CLOEXEC) != 0)
      throw std::runtime_error("cannot make a pipe or terminal");
    read_end = ends[0];
    write_end = ends[1];
    for (int end : ends) ::fcntl(end, F_SETFD, FD_CLOEXEC);
  }
  ~Pipe() {
    close_write();
    ::close(read_end);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  void close_write() {
    if (write_end >= 0) ::close(write_end);
    write_end = -1;
  }
};

std::vector<char*> pointers_to(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (const std::string& text : texts) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

// The user is another for each process: limits on a user's processes count no other test's.
bool drop_rights() {
  const uid_t nobody = 40000 + static_cast<uid_t>(::getpid()) % 20000;
  return ::geteuid() != 0 ||
         (::setgroups(0, nullptr) == 0 && ::setgid(nobody) == 0 && ::setuid(nobody) == 0 && ::geteuid() == nobody);
}

// In the child: everything up to exec. Returns only when something failed.
void become(char* const* arguments, char* const* environment, const RunOptions& options, int out, int err) {
  int output = options.stdout_path.empty() ? out : ::open(options.stdout_path.c_str(), O_WRONLY | O_CLOEXEC);
  int errors = options.stderr_path.empty() ? err : ::open(options.stderr_path.c_str(), O_WRONLY | O_CLOEXEC);
  int input = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (options.stderr_unread) {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) return;
    ::close(ends[0]);
    errors = ends[1];
  }
  if (output < 0 || errors < 0 || input < 0 || ::dup2(input, 0) < 0 || ::dup2(output, 1) < 0 || ::dup2(errors, 2) < 0)
    return;
  for (int signal : options.ignored) ::signal(signal, SIG_IGN);
  if (!options.folder.empty() && ::chdir(options.folder.c_str()) != 0) return;
  for (const auto& [resource, value] : options.limits) {
    struct rlimit limit {
      value, value
    };
    if (::setrlimit(static_cast<__rlimit_resource>(resource), &limit) != 0) return;
  }
  // Opened with the caller's rights: others may not reach the program's folder.
  const int program = options.as_nobody ? ::open(arguments[0], O_PATH | O_CLOEXEC) : -1;
  if (options.as_nobody && (program < 0 || !drop_rights())) return;
  for (int descriptor : options.closed) ::close(descriptor);
  if (options.as_nobody)
    ::fexecve(program, arguments, environment);
  else
    ::execve(arguments[0], arguments, environment);
}

// Appends what is there to read; false at the end of the stream.
bool drain(int fd, std::string& text) {
  std::array<char, 65536> buffer{};
  ssize_t count = ::read(fd, buffer.data(), buffer.size());
  if (count > 0) text.append(buffer.data(), static_cast<size_t>(count));
  return count > 0 || (count < 0 && (errno == EINTR || errno == EAGAIN));
}

}  // namespace

RunResult run_program(const std::vector<std::string>& arguments, const RunOptions& options) {
  Pipe out, err(options.terminal), failure;  // one byte in `failure` says that the program could not be started
  std::vector<std::string> variables = options.environment;
  for (char** variable = ::environ; *variable != nullptr; ++variable) variables.emplace_back(*variable);
  std::vector<char*> argument_pointers = pointers_to(arguments), environment_pointers = pointers_to(variables);
  pid_t child = ::fork();
  if (child < 0) throw std::runtime_error("cannot fork");
  if (child == 0) {
    become(argument_pointers.data(), environment_pointers.data(), options, out.write_end, err.write_end);
    [[maybe_unused]] ssize_t told = ::write(failure.write_end, "x", 1);
    ::_exit(kCannotStart);
  }
  out.close_write();
  err.close_write();
  failure.close_write();

  RunResult result;
  auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(options.limit_seconds);
  std::array<pollfd, 2> streams{{{out.read_end, POLLIN, 0}, {err.read_end, POLLIN, 0}}};
  bool killed = false;
  while (streams[0].fd >= 0 || streams[1].fd >= 0) {
    ::poll(streams.data(), streams.size(), 1);
    if (streams[0].revents != 0 && !drain(streams[0].fd, result.out)) streams[0].fd = -1;
    if (streams[1].revents != 0 && !drain(streams[1].fd, result.err)) streams[1].fd = -1;
    result.timed_out = result.timed_out || std::chrono::steady_clock::now() > deadline;
    if (!killed && (result.timed_out || options.kill_when())) {
      ::kill(child, result.timed_out ? SIGKILL : options.kill_signal);
      killed = true;
    }
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
  std::string failed;
  while (drain(failure.read_end, failed)) continue;
  result.started = failed.empty();
  if (WIFEXITED(status)) result.exit_code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) result.signal = WTERMSIG(status);
  return result;
}

std::string thimble_program() {
  const char* other = std::getenv("THIMBLE");
  return other ? other : THIMBLE_PROGRAM;
}

std::string mpirun_program() { return THIMBLE_MPIRUN; }

}  // namespace thimble::testing
