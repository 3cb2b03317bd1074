// gnuplot.h: charts and maps through the gnuplot program, which need not be installed: scripts, and image files of
// them. A script is complete in itself (its data is in it), names its outputs by `set output` without a folder, and can
// be run by hand.
#pragma once

#include <string>
#include <vector>

#include "quantizer/reports/heat_map.h"
#include "quantizer/reports/svg_chart.h"

namespace thimble {

// Is there a program of that name in PATH?
bool has_gnuplot();

// Runs the script in a temporary folder, then writes each of `names` atomically to `folder` ("" is the working folder).
// An IoError when gnuplot cannot be started; an Error (input/output) with its message when it fails.
void run_gnuplot(const std::string& script, const std::vector<std::string>& names, const std::string& folder);

// Text as a single-quoted string of gnuplot, in which nothing but the quote has a meaning. Control characters become
// spaces.
std::string gnuplot_quoted(const std::string& text);

// `set terminal` and `set output` for a .svg or .png file of that name; `width` and `height` in pixels.
std::string gnuplot_output(const std::string& name, int width, int height);

// Draws the chart into each of `names`. There must be at least one point.
std::string chart_script(const Chart& chart, const std::string& title, const std::vector<std::string>& names);

// With the numbers in the cells while there are few.
std::string heat_map_script(const HeatMap& map, const std::string& title, const std::string& output_name);

}  // namespace thimble
