#pragma once
// Where the checkout lies. Only source_folder.cpp is compiled with the path, so that the other tests compile
// to the same objects in every checkout and come out of a compiler cache.
#include <filesystem>

namespace ladder::testing {

std::filesystem::path source_folder();

}  // namespace ladder::testing
