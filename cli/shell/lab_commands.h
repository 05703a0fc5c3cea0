#pragma once

#include <array>
#include <string_view>

namespace penstock {

// The commands of penstock-lab, which `penstock` lists and hands over to it.
inline constexpr std::string_view kLabProgram = "penstock-lab";

struct LabCommand {
  std::string_view name;
  std::string_view summary;
};
inline constexpr LabCommand kBenchCommand = {
    "bench", "measure this machine, or a server with `bench serve`"};
inline constexpr LabCommand kPlanCommand = {"plan", "size workers, blocks and tiers for a load"};
inline constexpr LabCommand kSimulateCommand = {
    "simulate", "replay a trace on a simulated cluster of the real router and workers"};
inline constexpr LabCommand kCalibrateCommand = {"calibrate",
                                                 "calibrate the KV codec cgx for a model"};
inline constexpr LabCommand kEvalCommand = {"eval",
                                            "measure how KV compression changes a model's answers"};

inline constexpr std::array kLabCommands = {kBenchCommand, kPlanCommand, kSimulateCommand,
                                            kCalibrateCommand, kEvalCommand};

}  // namespace penstock
