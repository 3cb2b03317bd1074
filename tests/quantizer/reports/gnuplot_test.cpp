// gnuplot_test.cpp: quoting, and scripts that work and fail where gnuplot is installed.
#include "quantizer/reports/gnuplot.h"

#include <gtest/gtest.h>

#include "runtime/base/file.h"
#include "tests/runtime/base/error_matcher.h"
#include "tests/runtime/base/temporary_folder.h"

namespace thimble::gnuplot_test {
namespace {

TEST(Gnuplot, NothingInAQuotedTextIsACommand) {
  EXPECT_EQ(gnuplot_quoted(""), "''");
  EXPECT_EQ(gnuplot_quoted("it's `date` \\ \"x\""), "'it''s `date` \\ \"x\"'");
  EXPECT_EQ(gnuplot_quoted("a\nsystem 'b'\t"), "'a system ''b'' '");
}

class InstalledGnuplot : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!has_gnuplot()) GTEST_SKIP() << "gnuplot is not installed";
  }
  TemporaryFolder folder_;
};

TEST_F(InstalledGnuplot, DrawsBothFormats) {
  std::string script = gnuplot_output("a.svg", 300, 200) + "set title " + gnuplot_quoted("it's <50%> & _x_ {y}") +
                       "\nplot x\nset output\n" + gnuplot_output("a.png", 300, 200) + "plot x\nset output\n";
  run_gnuplot(script, {"a.svg", "a.png"}, folder_.path());
  EXPECT_EQ(folder_.names().size(), 2);
  std::string svg = read_text_file(folder_.file("a.svg"), 1 << 20);
  EXPECT_NE(svg.find("<svg"), std::string::npos);
  EXPECT_NE(svg.find("&lt;50%> &amp; _x_ {y}"), std::string::npos) << svg;
  EXPECT_EQ(read_text_file(folder_.file("a.png"), 1 << 20).substr(1, 3), "PNG");
}

TEST_F(InstalledGnuplot, AFailureSaysWhyAndWritesNothing) {
  expect_error<Error>([&] { run_gnuplot("plot nonsense\n", {"a.svg"}, folder_.path()); },
                      {"gnuplot: failed", "line 1", "nonsense"});
  EXPECT_TRUE(folder_.names().empty());
}

}  // namespace
}  // namespace thimble::gnuplot_test
