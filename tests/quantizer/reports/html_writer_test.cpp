// html_writer_test.cpp: what is escaped, and how elements are written.
#include "quantizer/reports/html_writer.h"

#include <gtest/gtest.h>

namespace thimble::html_writer_test {
namespace {

TEST(HtmlEscaped, MarkupBecomesText) {
  EXPECT_EQ(html_escaped("a < b & c > d"), "a &lt; b &amp; c &gt; d");
  EXPECT_EQ(html_escaped("\"it's\""), "&quot;it&#39;s&quot;");
  EXPECT_EQ(html_escaped("&lt;"), "&amp;lt;") << "nothing is taken for escaped already";
  EXPECT_EQ(html_escaped("]]>"), "]]&gt;");
  EXPECT_EQ(html_escaped(""), "");
  EXPECT_EQ(html_escaped("Größe ± 1 €, 𝛽"), "Größe ± 1 €, 𝛽");
}

TEST(HtmlEscaped, ControlCharactersAreReplaced) {
  EXPECT_EQ(html_escaped("a\nb\tc"), "a\nb\tc");
  EXPECT_EQ(html_escaped(std::string("a\0b\x1b\x7f\r", 6)), "a�b���");
  EXPECT_EQ(html_escaped("\xc2\x85"), "�") << "C1";
  EXPECT_EQ(html_escaped("gnp.\xe2\x80\xae"
                         "exe"),
            "gnp.�exe")
      << "right to left";
  EXPECT_EQ(html_escaped("\xef\xbf\xbe"), "�") << "U+FFFE is no character of XML";
}

TEST(HtmlEscaped, BytesThatAreNotUtf8AreReplacedOneByOne) {
  EXPECT_EQ(html_escaped("\xff"), "�");
  EXPECT_EQ(html_escaped("a\xe2\x82"), "a��") << "cut short";
  EXPECT_EQ(html_escaped("\xc0\xbc"), "��") << "a < in two bytes";
  EXPECT_EQ(html_escaped("\xe0\x80\xbc"), "���") << "in three";
  EXPECT_EQ(html_escaped("\xed\xa0\x80"), "���") << "a surrogate";
  EXPECT_EQ(html_escaped("\xf4\x90\x80\x80"), "����") << "above U+10FFFF";
  EXPECT_EQ(html_escaped("\xe2<b"), "�&lt;b") << "the byte after a bad one counts";
}

TEST(HtmlWriter, ElementsAndAttributes) {
  HtmlWriter html;
  html.open("p", {{"class", "a\"b"}, {"id", ""}}).text("1 < 2").empty("br").element("b", {}, "&").close();
  EXPECT_EQ(html.take(), "<p class=\"a&quot;b\">1 &lt; 2<br/><b>&amp;</b>\n</p>\n");
}

TEST(HtmlWriter, NamesBreakAfterTheirParts) {
  HtmlWriter html;
  html.name("a.b/c_d").name("x.").name("").name(".<.");
  EXPECT_EQ(html.take(), "a.<wbr/>b/<wbr/>c_<wbr/>dx..<wbr/>&lt;.");
}

}  // namespace
}  // namespace thimble::html_writer_test
