// sweep_plot.cpp: see sweep_plot.h.
#include "quantizer/reports/sweep_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "quantizer/console/byte_unit.h"
#include "quantizer/reports/gnuplot.h"
#include "quantizer/reports/sweep_curves.h"

namespace thimble {
namespace {

constexpr int kWidth = 820, kHeight = 520;

ByteUnit unit_of(const std::vector<SweepCurve>& curves) {
  uint64_t most = 0;
  for (const SweepCurve& curve : curves) most = std::max(most, curve.points.back().bytes);
  return byte_unit(most);
}

}  // namespace

std::string sweep_script(const SweepResults& results, const std::string& name) {
  const std::vector<SweepCurve> curves = sweep_curves(results);
  const ByteUnit unit = unit_of(curves);
  std::string text = "# Run with gnuplot in the folder that the images are to appear in.\n";
  for (size_t i = 0; i < curves.size(); ++i) {
    text += fmt::format("$curve{} << EOD\n", i);
    for (const SweepCurve::Point& point : curves[i].points) {
      text += fmt::format("{:.6f} {:.6f}", static_cast<double>(point.bytes) / unit.bytes, point.bits_per_byte);
      text += curves[i].has_bars() ? " " + standard_error_text(point.standard_error) + "\n" : "\n";
    }
    text += "EOD\n";
  }
  const char* bars = std::ranges::any_of(curves, &SweepCurve::has_bars) ? " (bars: standard error of the gap)" : "";
  std::string plot = "plot ";
  for (size_t i = 0; i < curves.size(); ++i)
    plot +=
        fmt::format("{}$curve{} using {} linewidth 2 pointtype {} dashtype {} title {}", i == 0 ? "" : ", \\\n     ", i,
                    curves[i].has_bars() ? "1:2:3 with yerrorlines" : "1:2 with linespoints",
                    curves[i].is_reference ? 4 : 7, curves[i].is_reference ? 3 : 1, gnuplot_quoted(curves[i].title));
  if (results.original)
    plot += fmt::format(", \\\n     {:.6f} with lines dashtype 2 linecolor '#606060' title 'original'",
                        results.original->bits_per_byte);
  for (const char* extension : {".svg", ".png"}) {
    text += gnuplot_output(name + extension, kWidth, kHeight);
    if (extension == std::string(".svg"))
      text +=
          fmt::format("set title {}\nset xlabel 'artifact, {}'\nset ylabel 'bits per byte of text{}'\n",
                      gnuplot_quoted(std::filesystem::path(results.checkpoint).filename().string()), unit.name, bars) +
          "set format y '%.3f'\nset grid linetype 1 linecolor '#e0e0e0'\nset key top right\nset offsets graph "
          "0.05, graph "
          "0.05, graph 0.05, graph 0.05\n";
    text += plot + "\nset output\n";
  }
  return text;
}

}  // namespace thimble
