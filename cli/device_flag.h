#pragma once
// The value of --device: auto, cpu, cuda or cuda:N.
#include <CLI/CLI.hpp>
#include <string>

#include "step1_layers/core/device.h"

namespace ladder {

CLI::Validator device_name_check();

// What the name means on this machine. Error naming --device: no GPU (and why), none of that number, or one
// that is too old; auto takes the CPU then.
Device find_device(const std::string& name);

}  // namespace ladder
