// heat_map_svg.h: a heat map (heat_map.h) as SVG: a row for each layer, a column for each kind of matrix, in each cell
// a shade and, where there is room, the number.
#pragma once

#include <string>

#include "quantizer/reports/heat_map.h"
#include "quantizer/reports/html_writer.h"

namespace thimble {

struct HeatMapLabels {
  std::string id;     // unique in the page
  std::string title;  // "bits per weight"
};

// An <svg> of its natural size with its own style; nothing for an empty map.
void add_heat_map(HtmlWriter& html, const HeatMap& map, const HeatMapLabels& labels);

// The same as a file.
std::string heat_map_svg(const HeatMap& map, const std::string& title);

}  // namespace thimble
