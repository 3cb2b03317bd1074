// method_options.cpp: see method_options.h.
#include "quantizer/pipeline/method_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "quantizer/pipeline/quantize_options.h"
#include "runtime/base/error.h"

namespace thimble {
namespace {

std::string names_of(const std::vector<MethodKind>& methods) {
  std::vector<std::string> names;
  for (MethodKind method : methods) names.push_back(method_name(method));
  return fmt::format("{}", fmt::join(names, " or "));
}

}  // namespace

CLI::Option* MethodOptions::add(CLI::Option* option, std::vector<MethodKind> methods) {
  entries_.push_back({option, std::move(methods)});
  return option;
}

void MethodOptions::require_used(const std::vector<MethodKind>& chosen) const {
  for (const Entry& entry : entries_) {
    if (entry.option->count() == 0) continue;
    const bool is_used = std::ranges::any_of(
        entry.methods, [&](MethodKind method) { return std::ranges::find(chosen, method) != chosen.end(); });
    if (!is_used)
      throw UsageError(fmt::format("{} is for --method {}: it has no effect with {}", entry.option->get_name(),
                                   names_of(entry.methods), names_of(chosen)));
  }
}

}  // namespace thimble
