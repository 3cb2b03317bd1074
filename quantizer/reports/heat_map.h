// heat_map.h: one number per matrix of a model, over layers (columns) and kinds of matrix (rows): as characters for a
// terminal, as SVG for a browser; gnuplot.h makes a script of it.
// A matrix has a place in the map when its name has a number between dots: "blocks.3.attn.c_q.weight" is of kind
// "blocks.*.attn.c_q.weight" in layer 3.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "quantizer/reports/html_writer.h"

namespace thimble {

struct HeatMap {
  std::vector<std::string> kinds;                          // in alphabetical order, what all have in common left off
  std::vector<int64_t> layers;                             // ascending
  std::vector<std::vector<std::optional<double>>> values;  // (kinds, layers)
  std::map<std::string, size_t> row_of;                    // the kind of each matrix that has a place

  bool empty() const { return values.empty(); }
};

// Beyond this many cells, in a file made up to have them, there is no map.
constexpr size_t kMaxHeatMapCells = 65536;

// Of finite numbers by matrix name; names without a place are passed over.
HeatMap heat_map(const std::map<std::string, double>& by_name);

// A heading with the range, a line with the layers' last digits, and a line of eight shades for each kind, with its
// mean. Empty for an empty map.
std::string to_text(const HeatMap& map, const std::string& title);

// As an <svg> of its natural size with its own style: a row for each layer, a column for each kind of matrix, in each
// cell a shade and, where there is room, the number. `id` is unique in the page. Nothing for an empty map.
void add_heat_map(HtmlWriter& html, const HeatMap& map, const std::string& title, const std::string& id);

// The same as a file.
std::string heat_map_svg(const HeatMap& map, const std::string& title);

}  // namespace thimble
