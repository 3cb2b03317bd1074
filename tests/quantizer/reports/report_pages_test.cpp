// report_pages_test.cpp: what the pages of --report say, and that names cannot break out of their markup.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "tests/quantizer/reports/report_samples.h"

namespace thimble::report_pages_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using testing::sample_quantize_page;
using testing::sample_quantize_report;
using testing::sample_run;
using testing::sample_sweep;

// The tags of well-formed markup, in order: "p", "/p", "br/". A failure when one is not closed by its own end.
std::vector<std::string> tags_of(const std::string& page) {
  std::vector<std::string> tags, opened;
  for (size_t at = page.find('<'); at != std::string::npos; at = page.find('<', at + 1)) {
    const size_t end = page.find('>', at);
    std::string inside = page.substr(at + 1, end - at - 1);
    if (inside.starts_with('!')) continue;
    const bool is_empty = inside.ends_with('/');
    const std::string name = inside.substr(0, inside.find_first_of(" /\n", 1));
    if (inside.starts_with('/')) {
      EXPECT_TRUE(!opened.empty() && "/" + opened.back() == name) << name << " at " << at;
      if (!opened.empty()) opened.pop_back();
    } else if (!is_empty) {
      opened.push_back(name);
    }
    tags.push_back(name);
  }
  EXPECT_TRUE(opened.empty()) << ::testing::PrintToString(opened);
  return tags;
}

int64_t count(const std::vector<std::string>& tags, const std::string& name) { return std::ranges::count(tags, name); }

TEST(QuantizePage, SaysWhatBecameOfTheModel) {
  const std::string page = sample_quantize_page(11);
  for (const char* words :
       {"<!DOCTYPE html>", "<title>final_model.safetensors: thimble quantize</title>", "15,937,377 B", "99.98 % used",
        "60,000 B of it for code", "2,623 B left", "1.278068", "+0.000360 ± 0.000112", "4.257", "29,951,068 parameters",
        "the work folder is full", "56 others", "All 68 tensors", "Hessians", "803,000,000 B", "calibration, sequences",
        "thimble 0.1.0 on 2026-03-01 at 12:00 UTC"})
    EXPECT_THAT(page, HasSubstr(words)) << words;
}

TEST(QuantizePage, IsWellFormedAndLoadsNothing) {
  for (int layers : {0, 1, 11, 130}) {
    const std::string page = sample_quantize_page(layers);
    const std::vector<std::string> tags = tags_of(page);
    for (const char* tag : {"script", "img", "iframe", "object", "embed", "base", "form"})
      EXPECT_EQ(count(tags, tag), 0) << tag;
    EXPECT_EQ(count(tags, "figure"), 2);
    EXPECT_EQ(count(tags, "caption"), count(tags, "table"));
    for (const char* words : {" src=", "url(", "@import", "href=\"http"}) EXPECT_THAT(page, Not(HasSubstr(words)));
  }
}

TEST(QuantizePage, NamesAreText) {
  const std::string page = sample_quantize_page(3);
  EXPECT_THAT(page, Not(HasSubstr("<script")));
  EXPECT_THAT(page, Not(HasSubstr("\" onload")));
  EXPECT_THAT(page, Not(HasSubstr("\x01")));
  EXPECT_THAT(page, HasSubstr("&lt;/<wbr/>title&gt;&lt;script&gt;alert(&#39;x&#39;)"));
}

TEST(QuantizePage, LeavesOutWhatIsNotKnown) {
  QuantizeReport report = sample_quantize_report(11);
  report.scores.clear();
  report.request.budget_bytes.reset();
  report.outcome.encoded.clear();
  report.outcome.rate.matrices.clear();
  const std::string html = quantize_page(report, sample_run());
  tags_of(html);
  for (const char* words : {"figure>", "% used", "bits per byte", "Where the loss is", "Share of the loss"})
    EXPECT_THAT(html, Not(HasSubstr(words))) << words;
  EXPECT_THAT(html, HasSubstr("Where the bytes are"));
  tags_of(quantize_page({}, {}));
}

TEST(QuantizePage, AnOverrunBudgetIsSaidAsSuch) {
  QuantizeReport report = sample_quantize_report(1);
  report.request.budget_bytes = 15'000'000;
  EXPECT_THAT(quantize_page(report, sample_run()), HasSubstr("997,377 B over"));
  report.request.budget_bytes = 16'000'001;
  report.request.code_bytes = 62'623;  // all but one byte
  EXPECT_THAT(quantize_page(report, sample_run()), HasSubstr("99.99 % used")) << "not rounded up to all";
}

TEST(SweepPage, SaysWhatWasFound) {
  const std::string page = sweep_page(sample_sweep(11), sample_run());
  tags_of(page);
  for (const char* words : {"thimble sweep", "PyTorch, int5 and int6 with Brotli", "8,395,411 B",
                            "+0.009048 ± 0.000600", "1 budget was not met", "the smallest artifact takes 9,200,118 B",
                            "not met", "what it holds is not known", "gnuplot is not installed"})
    EXPECT_THAT(page, HasSubstr(words)) << words;
  EXPECT_THAT(page, Not(HasSubstr("<script")));
}

TEST(SweepPage, WithoutAnyPointThatWasMet) {
  SweepResults sweep = sample_sweep(2);
  std::erase_if(sweep.points, [](const SweepPoint& point) { return point.failure.empty(); });
  sweep.references.clear();
  const std::string html = sweep_page(sweep, sample_run());
  tags_of(html);
  EXPECT_THAT(html, HasSubstr("not met"));
  EXPECT_THAT(html, Not(HasSubstr("<svg class=\"chart")));
  sweep.points.clear();
  sweep.original.reset();
  tags_of(sweep_page(sweep, sample_run()));
}

}  // namespace
}  // namespace thimble::report_pages_test
