// gnuplot.cpp: see gnuplot.h. No shell comes in between.
#include "quantizer/reports/gnuplot.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "runtime/base/atomic_file.h"
#include "runtime/base/error.h"
#include "runtime/base/file.h"

extern char** environ;  // NOLINT: POSIX wants it declared here

namespace thimble {
namespace {

constexpr const char* kProgram = "gnuplot";
constexpr const char* kScript = "script.gp";
constexpr const char* kLog = "messages.txt";
constexpr uint64_t kMostLogBytes = 1 << 20;

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::error_code ignored;
    path_ = (std::filesystem::temp_directory_path(ignored) / "thimble-XXXXXX").string();
    if (::mkdtemp(path_.data()) == nullptr) throw IoError(path_, "cannot create a temporary folder", errno);
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  std::string file(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Exit status of the program run in `folder`, all it says in a file there.
int run_in(const TemporaryFolder& folder) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addchdir_np(&actions, folder.path().c_str());
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, kLog, O_WRONLY | O_CREAT | O_TRUNC, 0600);
  posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
  std::string program = kProgram, own_settings_only = "-d", script = kScript;
  char* arguments[] = {program.data(), own_settings_only.data(), script.data(), nullptr};
  pid_t child = 0;
  const int error = ::posix_spawnp(&child, kProgram, &actions, nullptr, arguments, environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) throw IoError(kProgram, "cannot be started (Debian's package is gnuplot-nox)", error);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0)
    if (errno != EINTR) throw IoError(kProgram, "cannot be waited for", errno);
  return status;
}

// The first line that says something: errors come with the line of the script and a caret above.
std::string first_message(const std::string& log) {
  std::istringstream lines(log);
  for (std::string line; std::getline(lines, line);)
    if (line.find("line ") != std::string::npos) return line;
  return log.substr(0, 200);
}

}  // namespace

bool has_gnuplot() {
  const char* path = std::getenv("PATH");
  std::istringstream folders(path == nullptr ? "" : path);
  for (std::string folder; std::getline(folders, folder, ':');)
    if (::access((folder + "/" + kProgram).c_str(), X_OK) == 0) return true;
  return false;
}

void run_gnuplot(const std::string& script, const std::vector<std::string>& names, const std::string& folder) {
  TemporaryFolder place;
  write_file_atomically(place.file(kScript), script);
  const int status = run_in(place);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
    throw Error(ExitCode::kIo, fmt::format("{}: failed: {}", kProgram,
                                           first_message(read_text_file(place.file(kLog), kMostLogBytes))));
  for (const std::string& name : names) {
    MappedFile image(place.file(name));
    write_file_atomically((std::filesystem::path(folder) / name).string(), image.bytes());
  }
}

std::string gnuplot_quoted(const std::string& text) {
  std::string quoted = "'";
  for (char c : text) {
    quoted += static_cast<unsigned char>(c) < ' ' ? ' ' : c;  // a newline would begin the next command
    if (c == '\'') quoted += c;
  }
  return quoted + "'";
}

std::string gnuplot_output(const std::string& name, int width, int height) {
  std::string terminal =
      name.ends_with(".svg")
          ? fmt::format("set terminal svg size {},{} noenhanced font 'sans,13' background '#ffffff'\n", width, height)
          : fmt::format("set terminal pngcairo size {},{} noenhanced font 'sans,11'\n", width, height);
  return terminal + "set output " + gnuplot_quoted(name) + "\n";
}

}  // namespace thimble
