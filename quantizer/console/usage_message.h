// usage_message.h: what is wrong with a command line that does not parse, with the name that was probably meant.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace thimble {

// `app` has just thrown `error` from parse(). Arguments that it knows nothing about come first: what else it says may
// follow from them.
std::string usage_message(const CLI::App& app, const CLI::ParseError& error);

}  // namespace thimble
