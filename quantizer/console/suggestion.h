// suggestion.h: what is wrong with a name or a command line, with the name that was probably meant.
#pragma once

#include <CLI/CLI.hpp>
#include <span>
#include <string>
#include <string_view>

namespace thimble {

// Letters to insert, drop, replace, or swap with their neighbour, to turn one text into the other (optimal string
// alignment).
size_t edit_distance(std::string_view a, std::string_view b);

// "; did you mean 'slope'?": the name nearest to `text`, the first of several; nothing where even that differs in more
// than a third of its letters.
std::string suggestion(std::string_view text, std::span<const std::string> names);

// What is wrong with a text that is none of `names`: "'slpoe', allowed are slope, trace; did you mean 'slope'?"
std::string not_one_of(std::string_view text, std::span<const std::string> names);

// `app` has just thrown `error` from parse(). Arguments that it knows nothing about come first: what else it says may
// follow from them.
std::string usage_message(const CLI::App& app, const CLI::ParseError& error);

}  // namespace thimble
