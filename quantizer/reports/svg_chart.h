// svg_chart.h: points over two axes: curves with error bars, lines across. As inline SVG with a legend in HTML;
// gnuplot.h makes a script of them. In: numbers, of which those that are not finite are left out.  Out: a figure in two
// sizes; which one is shown decides the page's style (report_page.h).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "quantizer/reports/html_writer.h"

namespace thimble {

// Ticks at multiples of 1, 2 or 5 times a power of ten.
struct ChartScale {
  double low = 0, high = 1;  // low < high, finite
  double step = 0.2;
  int decimals = 1;  // that tell one tick from the next

  std::vector<double> ticks() const;  // within [low, high], ascending
  double share(double value) const { return (value - low) / (high - low); }
};

// Holds all finite values with some room on both sides. Of one value, or of equal ones, an interval around it; of none,
// [0, 1]. At most about `most_ticks` ticks.
ChartScale chart_scale(std::span<const double> values, int most_ticks);

struct ChartPoint {
  double x = 0, y = 0;
  std::optional<double> error;  // the bar reaches from y - error to y + error
  std::string note;             // what a pointer over the point shows
  bool is_chosen = false;       // drawn larger
};

struct ChartSeries {
  std::string name;
  std::vector<ChartPoint> points;
  bool is_joined = true;      // by lines, in this order
  bool is_reference = false;  // a dashed line and hollow marks

  bool has_bars() const;  // on all points
};

// Across the whole chart.
struct ChartRule {
  std::string name;
  double at = 0;
};

struct Chart {
  std::string id;                  // unique in the page
  std::string title, description;  // for those who hear it; the title is the caption too
  std::string x_label, y_label;
  std::vector<ChartSeries> series;
  std::vector<ChartRule> horizontal;
};

// For an axis of bytes that ends at about `most`.
struct ByteUnit {
  double bytes;
  const char* name;
};
inline ByteUnit byte_unit(uint64_t most) {
  return most >= 1'000'000 ? ByteUnit{1e6, "MB (1,000,000 B)"} : ByteUnit{1e3, "kB (1,000 B)"};
}

// A <figure>. Without a finite point nothing is written.
void add_chart(HtmlWriter& html, const Chart& chart);

}  // namespace thimble
