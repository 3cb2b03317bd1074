// gnuplot.h: plots through the gnuplot program, which need not be installed: scripts in, image files out.
// A script is complete in itself (its data is in it), names its outputs by `set output` without a folder, and can be
// run by hand.
#pragma once

#include <string>
#include <vector>

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

}  // namespace thimble
