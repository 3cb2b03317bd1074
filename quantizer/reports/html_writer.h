// html_writer.h: builds HTML that is well-formed XML too: every element is closed, every text and attribute escaped.
// In: names, attributes and texts, which may come from hostile files.  Out: UTF-8 text.
// Not for scripts: pages of thimble have none.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace thimble {

// Text as it may stand between tags and in attributes: &, <, > and quotes as entities; control characters but newline
// and tab, those that change the direction of writing, and bytes that are not UTF-8 as U+FFFD.
std::string html_escaped(std::string_view text);

// A length or a place in a drawing, to a tenth of a pixel.
std::string px(double value);

struct HtmlAttribute {
  std::string_view name;
  std::string value;
  HtmlAttribute(std::string_view key, std::string text) : name(key), value(std::move(text)) {}
  HtmlAttribute(std::string_view key, double length) : name(key), value(px(length)) {}
};

class HtmlWriter {
 public:
  using Attributes = std::initializer_list<HtmlAttribute>;

  // Names of tags and attributes are the program's own and outlive the writer. An attribute without a value is left
  // off: {"class", ""} is nothing.
  HtmlWriter& open(std::string_view tag, Attributes attributes = {});
  HtmlWriter& close();  // the innermost
  HtmlWriter& text(std::string_view text);
  // <tag ...>text</tag>
  HtmlWriter& element(std::string_view tag, Attributes attributes, std::string_view text);
  // A name that may be broken after its dots, slashes and underscores.
  HtmlWriter& name(std::string_view name);
  // <tag .../>: elements of SVG, and of HTML those that never have content
  HtmlWriter& empty(std::string_view tag, Attributes attributes = {});
  // A <style> of the program's own rules, which have no <, & or >.
  HtmlWriter& style(std::string_view rules);

  // All that was written; every element must be closed.
  std::string take();

 private:
  void tag(std::string_view tag, Attributes attributes, std::string_view end);

  std::string html_;
  std::vector<std::string_view> opened_;
};

// Text of a drawing. `anchor`: which part of it lies at (x, y): "start", "middle" or "end".
inline void add_text(HtmlWriter& html, const std::string& classes, double x, double y, const char* anchor,
                     std::string_view text) {
  html.element("text", {{"class", classes}, {"x", x}, {"y", y}, {"text-anchor", anchor}}, text);
}

}  // namespace thimble
