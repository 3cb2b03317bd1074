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
    if (codec.id != CodecId::kNone) libraries[std::string(codec.name)] = codec.version();
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

std::string as_text(const Json& machine) {
  std::vector<std::pair<std::string, std::string>> facts = {{"thimble", machine.at("version").get<std::string>()}};
  facts.push_back({"compiler", machine.at("compiler").get<std::string>()});
  facts.push_back({"instruction set", machine.at("instruction_set").get<std::string>()});
  facts.push_back({"threads", std::to_string(machine.at("threads").get<int>())});
  facts.push_back({"device", machine.at("device").get<std::string>()});
  facts.push_back({"CUDA", machine.at("cuda_runtime").is_null()
                               ? "not in this build (configure with --preset cuda)"
                               : "runtime " + machine.at("cuda_runtime").get<std::string>()});
  for (const Json& device : machine.at("cuda_devices")) facts.push_back({"CUDA device", device.get<std::string>()});
  if (!machine.at("cuda_runtime").is_null() && machine.at("cuda_devices").empty())
    facts.push_back({"CUDA device", "none usable (is the driver installed?)"});
  facts.push_back({"MPI", machine.at("mpi").is_null() ? "not in this build (configure with -DTHIMBLE_MPI=ON)"
                                                      : machine.at("mpi").get<std::string>()});
  facts.push_back({"gnuplot", machine.at("gnuplot") ? "installed" : "not installed (sweep and inspect draw with it)"});
  for (const auto& [name, version] : machine.at("libraries").items())
    facts.push_back({name, version.is_string() ? version.get<std::string>() : version.dump()});
  return facts_text(facts);
}

}  // namespace

void add_doctor_command(CommandLine& line) {
  CLI::App* command =
      add_command(line, "doctor", "Show devices, libraries and versions, and what is missing", "thimble doctor --json");
  command->callback([&line] {
    line.action = [&line](Console& console) {
      Json machine = describe_machine(open_device(line.common));
      console.result(as_text(machine), machine);
    };
  });
}

}  // namespace thimble
