// report_page.cpp: see report_page.h.
#include "quantizer/reports/report_page.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <ctime>

#include "packer/codecs/codec.h"
#include "quantizer/console/help_formatter.h"
#include "quantizer/console/progress_bar.h"
#include "quantizer/console/version.h"
#include "quantizer/pipeline/quantize_options.h"
#include "quantizer/reports/report_style.h"
#include "runtime/base/atomic_file.h"
#include "runtime/base/json.h"
#include "runtime/base/parallel.h"

namespace thimble {
namespace {

void add_track(HtmlWriter& html, double share) {
  const double percent = std::isfinite(share) ? std::clamp(100 * share, 0.0, 100.0) : 0;
  html.open("span", {{"class", "track"}, {"aria-hidden", "true"}});
  html.open("span", {{"style", fmt::format("width:{:.1f}%", percent)}}).close().close();
}

void add_settings(HtmlWriter& html, const ReportRun& run) {
  begin_section(html, "Settings", "All that decided the result, and where it was computed.");
  html.open("div", {{"class", "two settings"}});
  for (const ReportSettings& group : run.settings) {
    if (group.values.empty()) continue;
    ReportTable table{group.title, {"Setting", "Value"}, 2, {}};
    for (const auto& [name, value] : group.values) table.rows.push_back({{name}, {value}});
    html.open("div");
    add_table(html, table);
    html.close();
  }
  html.close().close();
}

void add_stages(HtmlWriter& html, const ReportRun& run) {
  begin_section(html, "Time and memory",
                fmt::format("Memory is the most that the process had resident {} each stage{}, files that it maps "
                            "included, memory of GPUs and of other processes not.",
                            run.has_stage_peaks ? "during" : "until the end of",
                            run.has_stage_peaks ? "" : " (this system does not let it be counted anew)"));
  double total = 0, longest = 0;
  uint64_t most = run.peak_bytes;
  for (const StageTimes::Stage& stage : run.stages) {
    total += stage.seconds;
    longest = std::max(longest, stage.seconds);
    most = std::max(most, stage.peak_bytes);
  }
  ReportTable table{"By stage", {"Stage", "Time", "Peak memory"}, 1, {}};
  auto part = [](double value, double whole) { return whole > 0 ? value / whole : 0; };
  for (const StageTimes::Stage& stage : run.stages)
    table.rows.push_back(
        {{stage.name},
         {duration_text(stage.seconds), part(stage.seconds, longest)},
         {bytes_text(stage.peak_bytes), part(static_cast<double>(stage.peak_bytes), static_cast<double>(most))}});
  table.rows.push_back({{"All stages"}, {duration_text(total)}, {bytes_text(run.peak_bytes)}});
  add_table(html, table);
  html.close();
}

void add_values(const std::string& name, const Json& value, ReportSettings& settings) {
  if (value.is_object()) {
    for (const auto& [key, member] : value.items())
      add_values(name.empty() ? key : name + ", " + key, member, settings);
    return;
  }
  std::string text = value.is_string() ? value.get<std::string>() : canonical_json(value);
  settings.values.emplace_back(name, std::move(text));
}

std::vector<ReportSettings> option_settings(const CLI::App& command) {
  ReportSettings given{"Options given", {}}, fixed{"Options left at their defaults", {}};
  for (const CLI::Option* option : command.get_options()) {
    const std::string name = option->get_name();
    if (option->get_group() == kGeneralGroup) continue;  // how results are shown
    if (option->count() > 0)
      given.values.emplace_back(name, fmt::format("{}", fmt::join(option->results(), " ")));
    else if (!option->get_default_str().empty())
      fixed.values.emplace_back(name, option->get_default_str());
  }
  return {given, fixed};
}

}  // namespace

std::string percent_text(double share) { return fmt::format("{:.{}f} %", 100 * share, share < 0.0995 ? 2 : 1); }

std::string bpb_text(double bits_per_byte) { return fmt::format("{:.6f}", bits_per_byte); }

std::string gap_text(const BpbGap& gap) {
  std::string text = fmt::format("{:+.6f}", gap.bits_per_byte);
  return gap.standard_error ? text + " ± " + standard_error_text(gap.standard_error) : text;
}

void begin_page(HtmlWriter& html, const std::string& command, const std::string& path, const std::string& detail) {
  const std::string name = path.substr(path.find_last_of('/') + 1), &subject = name.empty() ? path : name;
  html.open("html", {{"lang", "en"}, {"xmlns", "http://www.w3.org/1999/xhtml"}}).open("head");
  html.empty("meta", {{"charset", "utf-8"}});
  html.empty("meta", {{"name", "viewport"}, {"content", "width=device-width, initial-scale=1"}});
  // Nothing is loaded and nothing runs, whatever names of tensors try.
  html.empty("meta", {{"http-equiv", "Content-Security-Policy"},
                      {"content", "default-src 'none'; style-src 'unsafe-inline'; img-src data:"}});
  html.empty("meta", {{"name", "color-scheme"}, {"content", "light dark"}});
  html.empty("link", {{"rel", "icon"}, {"href", "data:,"}});  // else a browser asks a server for one
  html.element("title", {}, subject + ": " + command).style(kReportStyle).close();
  html.open("body").open("main").open("header");
  html.element("p", {{"class", "command"}}, command).element("h1", {}, subject).element("p", {}, detail);
}

void add_key_figures(HtmlWriter& html, const std::vector<KeyFigure>& figures) {
  html.open("dl", {{"class", "figures"}});
  for (const KeyFigure& figure : figures) {
    html.open("div").element("dt", {}, figure.name).element("dd", {{"class", "value"}}, figure.value);
    html.open("dd", {{"class", "detail"}}).text(figure.detail);
    if (figure.share) add_track(html, *figure.share);
    html.close().close();
  }
  html.close();
}

void add_notes(HtmlWriter& html, const std::vector<std::string>& notes) {
  if (notes.empty()) return;
  html.open("ul", {{"class", "notes"}});
  for (const std::string& note : notes) html.element("li", {}, note);
  html.close();
}

void begin_section(HtmlWriter& html, const std::string& title, const std::string& explanation) {
  html.open("section").element("h2", {}, title);
  if (!explanation.empty()) html.element("p", {{"class", "how"}}, explanation);
}

void add_table(HtmlWriter& html, const ReportTable& table) {
  auto align = [&](size_t column) { return std::string(column < table.text_columns ? "" : "n"); };
  // With the keyboard, only what has the focus scrolls.
  html.open("div", {{"class", "scroll"}, {"role", "group"}, {"aria-label", table.caption}, {"tabindex", "0"}});
  html.open("table").element("caption", {}, table.caption).open("thead").open("tr");
  for (size_t i = 0; i < table.heading.size(); ++i)
    html.element("th", {{"scope", "col"}, {"class", align(i)}}, table.heading[i]);
  html.close().close().open("tbody");
  for (const auto& row : table.rows) {
    html.open("tr");
    for (size_t i = 0; i < row.size(); ++i) {
      html.open(i == 0 ? "th" : "td", {{"scope", i == 0 ? "row" : ""}, {"class", align(i)}});
      i == 0 ? html.name(row[i].text) : html.text(row[i].text);
      if (row[i].share) add_track(html, *row[i].share);
      html.close();
    }
    html.close();
  }
  html.close().close().close();
}

std::string end_page(HtmlWriter& html, const ReportRun& run) {
  add_stages(html, run);
  add_settings(html, run);
  html.element("footer", {}, "Written by " + run.written + ".").close().close().close();
  return "<!DOCTYPE html>\n" + html.take();
}

ReportSettings provenance_settings(const std::string& title, const ArtifactSummary& artifact) {
  ReportSettings settings{title, {}};
  add_values("", parse_json(as_bytes_of(artifact.provenance_json), "the artifact"), settings);
  return settings;
}

ReportSettings resolved_settings(const std::string& title, const QuantizeRequest& request) {
  ReportSettings settings{title, {}};
  auto add = [&](const std::string& name, const std::string& value) { settings.values.emplace_back(name, value); };
  add("codec", request.encode.codec ? std::string(codec_name(*request.encode.codec)) : "auto");
  add("matrices kept as fp16", fmt::format("of at most {} elements", count_text(request.plan.min_elements)));
  add("output Fisher", request.fisher ? "collected" : "not collected");
  if (request.method != MethodKind::kSlope) return settings;
  add("effort", level_of(request.effort).name);
  add("distillation steps", count_text(request.tuner.steps));
  if (request.tuner.steps > 0) add("distillation batch", count_text(request.tuner.batch));
  if (request.target_temperature && *request.target_temperature != 1)
    add("temperature of targets", fmt::format("{}", *request.target_temperature));
  if (request.data_share.value_or(0) > 0) add("data share", fmt::format("{}", *request.data_share));
  if (request.codes.steps > 0)
    add("learning of codes", fmt::format("{} steps of {}, {} levels each", count_text(request.codes.steps),
                                         count_text(request.codes.batch), request.codes.rate));
  return settings;
}

ReportRun report_run(StageTimes& times, const std::string& device, const CLI::App& command,
                     const std::vector<ReportSettings>& own) {
  ReportRun run;
  run.stages = times.stages();
  run.peak_bytes = times.peak_memory_bytes();
  run.has_stage_peaks = times.has_stage_peaks();
  run.settings = option_settings(command);
  run.settings.insert(run.settings.begin() + 1, own.begin(), own.end());
  run.settings.push_back(
      {"Machine", {{"device", device}, {"threads", std::to_string(thread_count())}, {"thimble", kVersion}}});
  run.written = fmt::format("thimble {} on {:%Y-%m-%d at %H:%M} UTC", kVersion, fmt::gmtime(std::time(nullptr)));
  return run;
}

void conclude(const std::string& report, const std::function<std::string()>& page, std::vector<std::string>& files,
              const std::function<void()>& print) {
  std::optional<IoError> unwritten;
  try {
    if (!report.empty()) {
      write_file_atomically(report, page());
      files.push_back(report);
    }
  } catch (const IoError& error) {
    unwritten = error;
  }
  print();
  if (unwritten) throw IoError(*unwritten);
}

}  // namespace thimble
