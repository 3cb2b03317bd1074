// write_report_pages.cpp: write_report_pages FOLDER: pages of made-up runs, for the test in a browser
// (report_browser_test.py).
#include <cstdio>
#include <string>

#include "runtime/base/atomic_file.h"
#include "runtime/base/error.h"
#include "tests/quantizer/reports/report_samples.h"

int main(int argc, char** argv) {
  using namespace thimble;
  if (argc != 2) {
    std::fputs("usage: write_report_pages FOLDER\n", stderr);
    return 2;
  }
  const std::string folder = std::string(argv[1]) + "/";
  try {
    write_file_atomically(folder + "quantize-11.html", testing::sample_quantize_page(11));
    write_file_atomically(folder + "quantize-120.html", testing::sample_quantize_page(120));
    write_file_atomically(folder + "quantize-bare.html", quantize_page({}, {}));
    write_file_atomically(folder + "sweep-48.html", sweep_page(testing::sample_sweep(48), testing::sample_run()));
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
