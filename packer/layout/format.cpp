// format.cpp: names and numbers of the container's enumerations.
#include "packer/layout/format.h"

namespace thimble {
namespace {

constexpr std::array<std::string_view, 4> kSectionKindNames = {"header", "codes", "scales", "raw"};
constexpr std::array<std::string_view, 6> kLayoutNames = {"plain",  "columns",       "bits",
                                                          "digits", "digit-columns", "planes"};

static_assert(kSectionKindNames.size() == static_cast<size_t>(SectionKind::kRaw) + 1);
static_assert(kLayoutNames.size() == static_cast<size_t>(LayoutId::kPlanes) + 1);

}  // namespace

std::string_view section_kind_name(SectionKind kind) { return kSectionKindNames.at(static_cast<size_t>(kind)); }
std::string_view layout_name(LayoutId layout) { return kLayoutNames.at(static_cast<size_t>(layout)); }

std::optional<SectionKind> section_kind_from(uint8_t number) {
  if (number >= kSectionKindNames.size()) return std::nullopt;
  return static_cast<SectionKind>(number);
}

std::optional<LayoutId> layout_from(uint8_t number) {
  if (number >= kLayoutNames.size()) return std::nullopt;
  return static_cast<LayoutId>(number);
}

}  // namespace thimble
