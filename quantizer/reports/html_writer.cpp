// html_writer.cpp: see html_writer.h.
#include "quantizer/reports/html_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <cstdint>
#include <map>

#include "eval/tokenizers/utf8.h"

namespace thimble {
namespace {

constexpr std::string_view kReplacement = "\xef\xbf\xbd";  // U+FFFD
const std::map<uint32_t, std::string_view> kEntities = {
    {'&', "&amp;"}, {'<', "&lt;"}, {'>', "&gt;"}, {'"', "&quot;"}, {'\'', "&#39;"}};

bool is_shown(uint32_t value) {
  if (value < 0x20) return value == '\n' || value == '\t';
  if (value >= 0x7f && value < 0xa0) return false;
  const bool is_direction = value == 0x200e || value == 0x200f || (value >= 0x202a && value <= 0x202e) ||
                            (value >= 0x2066 && value <= 0x2069);
  return !is_direction && value != 0xfffe && value != 0xffff;
}

}  // namespace

std::string html_escaped(std::string_view text) {
  std::string escaped;
  escaped.reserve(text.size());
  while (!text.empty()) {
    const CodePoint point = decode_utf8(text);
    const size_t length = point.length == 0 ? 1 : point.length;
    if (point.length == 0 || !is_shown(point.value))
      escaped += kReplacement;
    else if (const auto entity = kEntities.find(point.value); entity != kEntities.end())
      escaped += entity->second;
    else
      escaped += text.substr(0, length);
    text.remove_prefix(length);
  }
  return escaped;
}

std::string px(double value) {
  std::string text = fmt::format("{:.1f}", value);
  return text.ends_with(".0") ? text.substr(0, text.size() - 2) : text;
}

void HtmlWriter::tag(std::string_view tag, Attributes attributes, std::string_view end) {
  html_ += '<';
  html_ += tag;
  for (const auto& [name, value] : attributes) {
    if (value.empty()) continue;
    html_ += ' ';
    html_ += name;
    html_ += "=\"" + html_escaped(value) + '"';
  }
  html_ += end;
}

HtmlWriter& HtmlWriter::open(std::string_view name, Attributes attributes) {
  tag(name, attributes, ">");
  opened_.push_back(name);
  return *this;
}

HtmlWriter& HtmlWriter::close() {
  assert(!opened_.empty());
  html_ += "</";
  html_ += opened_.back();
  html_ += ">\n";
  opened_.pop_back();
  return *this;
}

HtmlWriter& HtmlWriter::text(std::string_view text) {
  html_ += html_escaped(text);
  return *this;
}

HtmlWriter& HtmlWriter::name(std::string_view name) {
  while (!name.empty()) {
    const size_t end = std::min(name.find_first_of("./_"), name.size() - 1) + 1;
    text(name.substr(0, end));
    name.remove_prefix(end);
    if (!name.empty()) empty("wbr");
  }
  return *this;
}

HtmlWriter& HtmlWriter::element(std::string_view name, Attributes attributes, std::string_view content) {
  return open(name, attributes).text(content).close();
}

HtmlWriter& HtmlWriter::empty(std::string_view name, Attributes attributes) {
  tag(name, attributes, "/>");
  return *this;
}

HtmlWriter& HtmlWriter::style(std::string_view rules) {
  assert(rules.find_first_of("<&>") == std::string_view::npos);
  html_ += "<style>";
  html_ += rules;
  html_ += "</style>\n";
  return *this;
}

std::string HtmlWriter::take() {
  assert(opened_.empty());
  return std::move(html_);
}

}  // namespace thimble
