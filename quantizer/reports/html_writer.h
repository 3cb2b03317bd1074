// html_writer.h: builds HTML that is well-formed XML too: every element is closed, every text and attribute escaped.
// In: names, attributes and texts, which may come from hostile files.  Out: UTF-8 text.
// Not for scripts: pages of thimble have none.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace thimble {

// Text as it may stand between tags and in attributes: &, <, > and quotes as entities; control characters but newline
// and tab, those that change the direction of writing, and bytes that are not UTF-8 as U+FFFD.
std::string html_escaped(std::string_view text);

class HtmlWriter {
 public:
  using Attributes = std::initializer_list<std::pair<std::string_view, std::string>>;

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

}  // namespace thimble
