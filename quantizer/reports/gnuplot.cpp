// gnuplot.cpp: see gnuplot.h. No shell comes in between.
#include "quantizer/reports/gnuplot.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
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
constexpr int kChartWidth = 820, kChartHeight = 520;
constexpr size_t kMostLabelledLayers = 24;

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

// A tic label of gnuplot is a format.
std::string tic_label(std::string text) {
  for (size_t at = text.find('%'); at != std::string::npos; at = text.find('%', at + 2)) text.insert(at, "%");
  return gnuplot_quoted(text);
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

std::string chart_script(const Chart& chart, const std::string& title, const std::vector<std::string>& names) {
  std::string data, plot;
  for (size_t i = 0; i < chart.series.size(); ++i) {
    const ChartSeries& series = chart.series[i];
    const bool has_bars = series.has_bars();
    data += fmt::format("$curve{} << EOD\n", i);
    for (const ChartPoint& point : series.points)
      data +=
          fmt::format("{:.6f} {:.6f}", point.x, point.y) + (has_bars ? fmt::format(" {:.6f}\n", *point.error) : "\n");
    data += "EOD\n";
    plot +=
        fmt::format("{}$curve{} using {} linewidth 2 pointtype {} dashtype {} title {}",
                    i == 0 ? "plot " : ", \\\n     ", i, has_bars ? "1:2:3 with yerrorlines" : "1:2 with linespoints",
                    series.is_reference ? 4 : 7, series.is_reference ? 3 : 1, gnuplot_quoted(series.name));
  }
  for (const ChartRule& rule : chart.horizontal)
    plot += fmt::format(", \\\n     {:.6f} with lines dashtype 2 linecolor '#606060' title {}", rule.at,
                        gnuplot_quoted(rule.name));
  const bool has_bars = std::ranges::any_of(chart.series, &ChartSeries::has_bars);
  std::string script = "# Run with gnuplot in the folder that the images are to appear in.\n" + data;
  script +=
      fmt::format("set title {}\nset xlabel {}\nset ylabel {}\n", gnuplot_quoted(title), gnuplot_quoted(chart.x_label),
                  gnuplot_quoted(chart.y_label + (has_bars ? " (bars: standard error of the gap)" : "")));
  script +=
      "set format y '%.3f'\nset grid linetype 1 linecolor '#e0e0e0'\nset key top right\n"
      "set offsets graph 0.05, graph 0.05, graph 0.05, graph 0.05\n";
  for (const std::string& name : names)
    script += gnuplot_output(name, kChartWidth, kChartHeight) + plot + "\nset output\n";
  return script;
}

std::string heat_map_script(const HeatMap& map, const std::string& title, const std::string& output_name) {
  const auto columns = static_cast<int>(map.layers.size()), rows = static_cast<int>(map.kinds.size());
  std::string text = gnuplot_output(output_name, std::clamp(220 + 44 * columns, 420, 2400), 110 + 36 * rows);
  text += "$cells << EOD\n";  // layer, kind, value
  for (size_t i = 0; i < map.kinds.size(); ++i)
    for (size_t j = 0; j < map.layers.size(); ++j)
      if (map.values[i][j]) text += fmt::format("{} {} {:.6g}\n", j, i, *map.values[i][j]);
  text += "EOD\nset title " + gnuplot_quoted(title) + "\nset xlabel 'layer'\nset xtics nomirror out (";
  const size_t every = 1 + map.layers.size() / kMostLabelledLayers;
  for (size_t j = 0; j < map.layers.size(); j += every)
    text += fmt::format("{}'{}' {}", j == 0 ? "" : ", ", map.layers[j], j);
  text += ")\nset ytics nomirror out (";
  for (size_t i = 0; i < map.kinds.size(); ++i)
    text += fmt::format("{}{} {}", i == 0 ? "" : ", ", tic_label(map.kinds[i]), i);
  text += fmt::format(
      ")\nset xrange [-0.5:{}.5]\nset yrange [{}.5:-0.5]\n"
      "set palette defined (0 '#f7fbff', 0.5 '#9ecae1', 1 '#4292c6')\nunset key\n",
      columns - 1, rows - 1);
  text += "plot $cells using 1:2:(0.5):(0.5):3 with boxxyerror fillstyle solid 1 noborder linecolor palette";
  if (map.layers.size() <= kMostLabelledLayers)
    text += ", $cells using 1:2:(sprintf('%.2f', $3)) with labels font 'sans,9'";
  return text + "\nset output\n";
}

}  // namespace thimble
