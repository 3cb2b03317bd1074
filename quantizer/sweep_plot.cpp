// sweep_plot.cpp: see sweep_plot.h.
#include "quantizer/sweep_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <utility>
#include <vector>

#include "quantizer/gnuplot.h"

namespace thimble {
namespace {

constexpr int kWidth = 820, kHeight = 520;

struct CurvePoint {
  uint64_t bytes = 0;
  double bits_per_byte = 0;
  std::optional<double> standard_error;  // of the gap
};

struct Curve {
  std::string title;
  bool is_reference = false;
  std::vector<CurvePoint> points;  // by bytes

  bool has_bars() const {
    return std::ranges::all_of(points, [](const CurvePoint& point) { return point.standard_error.has_value(); });
  }
};

std::vector<Curve> curves_of(const SweepResults& results) {
  std::vector<Curve> curves;
  auto add = [&](const std::string& title, bool is_reference, const CurvePoint& point) {
    auto found = std::ranges::find_if(
        curves, [&](const Curve& curve) { return curve.title == title && curve.is_reference == is_reference; });
    if (found == curves.end()) found = curves.insert(curves.end(), {title, is_reference, {}});
    found->points.push_back(point);
  };
  for (const SweepPoint& point : results.points)
    if (point.failure.empty())
      add(point.method, false, {point.artifact_bytes, point.bits_per_byte, point.gap_standard_error});
  for (const ReferencePoint& reference : results.references)
    add(reference.label, true, {reference.bytes, reference.bits_per_byte, {}});
  for (Curve& curve : curves)
    std::ranges::sort(curve.points, {},
                      [](const CurvePoint& point) { return std::pair(point.bytes, point.bits_per_byte); });
  return curves;
}

struct Unit {
  double bytes;
  const char* name;
};

Unit unit_of(const std::vector<Curve>& curves) {
  uint64_t most = 0;
  for (const Curve& curve : curves) most = std::max(most, curve.points.back().bytes);
  return most >= 1'000'000 ? Unit{1e6, "MB (1,000,000 B)"} : Unit{1e3, "kB (1,000 B)"};
}

}  // namespace

std::string sweep_script(const SweepResults& results, const std::string& name) {
  const std::vector<Curve> curves = curves_of(results);
  const Unit unit = unit_of(curves);
  std::string text = "# Run with gnuplot in the folder that the images are to appear in.\n";
  for (size_t i = 0; i < curves.size(); ++i) {
    text += fmt::format("$curve{} << EOD\n", i);
    for (const CurvePoint& point : curves[i].points) {
      text += fmt::format("{:.6f} {:.6f}", static_cast<double>(point.bytes) / unit.bytes, point.bits_per_byte);
      text += curves[i].has_bars() ? " " + standard_error_text(point.standard_error) + "\n" : "\n";
    }
    text += "EOD\n";
  }
  const char* bars = std::ranges::any_of(curves, &Curve::has_bars) ? " (bars: standard error of the gap)" : "";
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
