#pragma once
#include <string>

namespace ladder {

// models/tinyworld, in this folder or in the checkout that this program lies in.
std::string tiny_model_folder();

}  // namespace ladder
