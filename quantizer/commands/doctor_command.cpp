// doctor_command.cpp: `thimble doctor`: what this build and this machine have, for bug reports and first contact.
#include <fmt/format.h>
#include <oneapi/tbb/version.h>
#include <zlib.h>
#include <CLI/Version.hpp>
#include <Eigen/Core>
#include <nlohmann/json.hpp>

#include "packer/codecs/codec.h"
#include "quantizer/commands/commands.h"
#include "quantizer/console/version.h"
#include "quantizer/ranks/join_ranks.h"
#include "quantizer/reports/gnuplot.h"
#include "runtime/base/json.h"
#include "runtime/base/parallel.h"
#include "runtime/cpu/gemm.h"
#include "runtime/cuda/kernels/cuda_devices.h"

namespace thimble {
namespace {

Json describe_machine(const Device& device) {
  Json libraries = {{"CLI11", CLI11_VERSION},
                    {"Eigen", fmt::format("{}.{}.{}", EIGEN_WORLD_VERSION, EIGEN_MAJOR_VERSION, EIGEN_MINOR_VERSION)},
                    {"fmt", FMT_VERSION},
                    {"nlohmann-json", fmt::format("{}.{}.{}", NLOHMANN_JSON_VERSION_MAJOR, NLOHMANN_JSON_VERSION_MINOR,
                                                  NLOHMANN_JSON_VERSION_PATCH)},
                    {"oneTBB", TBB_runtime_version()},
                    {"zlib", zlibVersion()}};
  for (const Codec& codec : all_codecs())
    if (codec.id != CodecId::kNone) libraries[std::string(codec.name())] = codec.version();
  std::string cuda = cuda_runtime_version(), mpi = mpi_version();
  return {{"version", kVersion},
          {"compiler", __VERSION__},
          {"instruction_set", cpu_instruction_set()},
          {"threads", thread_count()},
          {"device", device.name()},
          {"cuda_runtime", cuda.empty() ? Json() : Json(cuda)},
          {"cuda_devices", cuda_device_names()},
          {"mpi", mpi.empty() ? Json() : Json(mpi)},
          {"gnuplot", has_gnuplot()},
          {"libraries", libraries}};
}

std::string machine_text(const Json& machine) {
  auto text_of = [](const Json& value) { return value.is_string() ? value.get<std::string>() : canonical_json(value); };
  std::vector<std::pair<std::string, std::string>> facts;
  for (const auto& [name, key] : {std::pair("thimble", "version"),
                                  {"compiler", "compiler"},
                                  {"instruction set", "instruction_set"},
                                  {"threads", "threads"},
                                  {"device", "device"}})
    facts.emplace_back(name, text_of(machine.at(key)));
  const bool has_cuda = !machine.at("cuda_runtime").is_null();
  facts.emplace_back("CUDA", has_cuda ? "runtime " + text_of(machine.at("cuda_runtime"))
                                      : "not in this build (configure with --preset cuda)");
  for (const Json& device : machine.at("cuda_devices")) facts.emplace_back("CUDA device", text_of(device));
  if (has_cuda && machine.at("cuda_devices").empty())
    facts.emplace_back("CUDA device", "none usable (is the driver installed?)");
  facts.emplace_back("MPI", machine.at("mpi").is_null() ? "not in this build (configure with -DTHIMBLE_MPI=ON)"
                                                        : text_of(machine.at("mpi")));
  facts.emplace_back("gnuplot", machine.at("gnuplot") ? "installed" : "not installed (sweep and inspect draw with it)");
  for (const auto& [name, version] : machine.at("libraries").items()) facts.emplace_back(name, text_of(version));
  return facts_text(facts);
}

}  // namespace

void add_doctor_command(CommandLine& line) {
  CLI::App* command =
      add_command(line, "doctor", "Show devices, libraries and versions, and what is missing", "thimble doctor --json");
  set_action(line, *command, [&line](Console& console) {
    Json machine = describe_machine(open_device(line.common));
    console.result(machine_text(machine), machine);
  });
}

}  // namespace thimble
