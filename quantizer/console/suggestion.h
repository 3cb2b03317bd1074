// suggestion.h: the name that a user probably meant.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace thimble {

// Letters to insert, drop, replace, or swap with their neighbour, to turn one text into the other (optimal string
// alignment).
size_t edit_distance(std::string_view a, std::string_view b);

// The name nearest to `text`, the first of several; empty where even that differs in more than a third of its letters.
std::string nearest_name(std::string_view text, std::span<const std::string> names);

// "; did you mean 'slope'?", or nothing where no name is near.
std::string suggestion(std::string_view text, std::span<const std::string> names);

// What is wrong with a text that is none of `names`: "'slpoe', allowed are slope, trace; did you mean 'slope'?"
std::string not_one_of(std::string_view text, std::span<const std::string> names);

}  // namespace thimble
